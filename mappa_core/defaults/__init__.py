"""Core's own offers, through the same hooks as those of plugins. Heavy imports are deferred to `build`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from mappa_core.coaching.investigation.options import InvestigatorOptions
from mappa_core.config.schema import Use
from mappa_core.credit import estimators, shapers
from mappa_core.defaults.task_sources import FileOptions, FileTasks, HuggingFaceOptions, HuggingFaceTasks
from mappa_core.hookspecs import Offer, hookimpl
from mappa_core.protocols import Coach, Estimator, Shaper, TaskSource, Transport

if TYPE_CHECKING:
    from mappa_core.calls.api_policy import ApiPolicy


@hookimpl
def mappa_tasks() -> Iterable[Offer[TaskSource]]:
    yield Offer("file", FileTasks, FileOptions)
    yield Offer("huggingface", HuggingFaceTasks, HuggingFaceOptions)


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("investigator", _build_investigator, InvestigatorOptions, composite=True)


@hookimpl
def mappa_shapers() -> Iterable[Offer[Shaper]]:
    yield Offer("scale", shapers.ScaleShaper, shapers.ScaleOptions)
    yield Offer("outcome", shapers.OutcomeShaper, shapers.OutcomeOptions)
    yield Offer("outcome_mix", shapers.OutcomeMixShaper, shapers.OutcomeMixOptions)
    yield Offer("difference", shapers.DifferenceShaper, shapers.DifferenceOptions)
    yield Offer("return_to_go", shapers.ReturnToGoShaper, shapers.ReturnToGoOptions)
    yield Offer("length_penalty", shapers.LengthPenaltyShaper, shapers.LengthPenaltyOptions)


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
