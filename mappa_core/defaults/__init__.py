"""Core's own offers, through the same hooks as those of plugins. Heavy imports are deferred to `build`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from mappa_core.coaching.investigation.options import InvestigatorOptions
from mappa_core.config.schema import Use
from mappa_core.credit import estimators, shapers
from mappa_core.defaults.functions import FunctionOptions, function_builder
from mappa_core.defaults.task_sources import FileOptions, FileTasks, HuggingFaceOptions, HuggingFaceTasks
from mappa_core.hookspecs import Offer, hookimpl
from mappa_core.plugins import OfferKind
from mappa_core.protocols import (
    Coach,
    Engine,
    Estimator,
    Loss,
    PromptOptimizer,
    Shaper,
    TaskSource,
    Tool,
    Toolbox,
    Tracker,
    Transport,
    Workflow,
)

if TYPE_CHECKING:
    from mappa_core.calls.api_policy import ApiPolicy


@hookimpl
def mappa_tasks() -> Iterable[Offer[TaskSource]]:
    yield Offer("file", FileTasks, FileOptions)
    yield Offer("huggingface", HuggingFaceTasks, HuggingFaceOptions)
    yield _function("tasks")


@hookimpl
def mappa_workflows() -> Iterable[Offer[Workflow]]:
    yield _function("workflows")


@hookimpl
def mappa_tools() -> Iterable[Offer[Tool | Toolbox]]:
    yield _function("tools")


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("investigator", _build_investigator, InvestigatorOptions, composite=True)
    yield _function("coaches")


@hookimpl
def mappa_shapers() -> Iterable[Offer[Shaper]]:
    yield Offer("scale", shapers.ScaleShaper, shapers.ScaleOptions)
    yield Offer("outcome", shapers.OutcomeShaper, shapers.OutcomeOptions)
    yield Offer("outcome_mix", shapers.OutcomeMixShaper, shapers.OutcomeMixOptions)
    yield Offer("difference", shapers.DifferenceShaper, shapers.DifferenceOptions)
    yield Offer("return_to_go", shapers.ReturnToGoShaper, shapers.ReturnToGoOptions)
    yield Offer("length_penalty", shapers.LengthPenaltyShaper, shapers.LengthPenaltyOptions)
    yield _function("shapers")


@hookimpl
def mappa_estimators() -> Iterable[Offer[Estimator]]:
    yield Offer("reinforce", estimators.Reinforce, estimators.ReinforceOptions)
    yield Offer("reinforce_plus_plus", estimators.ReinforcePlusPlus, estimators.ReinforcePlusPlusOptions)
    baseline = (estimators.ReinforcePlusPlusBaseline, estimators.ReinforcePlusPlusBaselineOptions)
    yield Offer("reinforce_plus_plus_baseline", *baseline, siblings=True)
    yield Offer("rloo", estimators.Rloo, estimators.RlooOptions, siblings=True)
    yield Offer("grpo", estimators.Grpo, estimators.GrpoOptions, siblings=True)
    yield Offer("dr_grpo", estimators.DrGrpo, estimators.DrGrpoOptions, siblings=True)
    yield Offer("gae", estimators.Gae, estimators.GaeOptions, values=True)
    yield Offer("gigpo", estimators.Gigpo, estimators.GigpoOptions, siblings=True)
    yield _function("estimators")


@hookimpl
def mappa_prompt_optimizers() -> Iterable[Offer[PromptOptimizer]]:
    yield _function("prompt_optimizers")


@hookimpl
def mappa_losses() -> Iterable[Offer[Loss]]:
    yield _function("losses")


@hookimpl
def mappa_engines() -> Iterable[Offer[Engine]]:
    yield _function("engines")


@hookimpl
def mappa_trackers() -> Iterable[Offer[Tracker]]:
    yield _function("trackers")


def _function(kind: OfferKind) -> Offer[Any]:
    """The offer of whatever `module:name` names. Of transports there is none: core derives coaches and policies from
    them, and there is a coach of this name."""
    return Offer("function", function_builder(kind), FunctionOptions)


def _build_investigator(options: InvestigatorOptions, build: Callable[[Use], Coach]) -> Coach:
    from mappa_core.coaching.investigation.investigator import build_investigator

    return build_investigator(options, build)


def coach_from_transport(offer: Offer[Transport]) -> Offer[Coach]:
    from mappa_core.coaching.llm_coach import llm_coach_offer

    return llm_coach_offer(offer)


def policy_from_transport(offer: Offer[Transport]) -> Offer[ApiPolicy]:
    from mappa_core.calls.api_policy import ApiPolicy
    from mappa_core.calls.client import derive_offer
    from mappa_core.calls.options import ApiPolicyOptions

    return derive_offer(offer, ApiPolicyOptions, ApiPolicy)
