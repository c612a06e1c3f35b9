"""Core's own offers, through the same hooks as those of plugins. Heavy imports are deferred to `build`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from mappa_core.coaching.options import EnsembleOptions
from mappa_core.config.schema import Use
from mappa_core.credit import estimators, shapers
from mappa_core.defaults.imported import ImportedCoach, ImportedOptions, ImportedWorkflow
from mappa_core.defaults.task_sources import FileOptions, FileTasks, HuggingFaceOptions, HuggingFaceTasks
from mappa_core.engine.options import CISPOOptions, ClusterOptions, GSPOOptions, LocalOptions, PPOOptions
from mappa_core.engine.process_info import installed_version
from mappa_core.errors import ConfigError
from mappa_core.gateway.options import GatewayOptions
from mappa_core.hookspecs import Offer, hookimpl
from mappa_core.protocols import (
    Coach,
    Engine,
    Estimator,
    Loss,
    Shaper,
    TaskSource,
    Tool,
    Toolbox,
    Transport,
    Workflow,
)
from mappa_core.tools.calculator import Calculator
from mappa_core.tools.mcp.options import McpOptions
from mappa_core.tools.python.options import PythonOptions
from mappa_core.tools.python.tool import PythonTool

if TYPE_CHECKING:
    from mappa_core.calls.api_policy import ApiPolicy


@hookimpl
def mappa_tasks() -> Iterable[Offer[TaskSource]]:
    yield Offer("file", FileTasks, FileOptions)
    yield Offer("huggingface", HuggingFaceTasks, HuggingFaceOptions)


@hookimpl
def mappa_recipes() -> Mapping[str, Traversable]:
    return {"gateway": files(__name__) / "recipes" / "gateway.yaml"}


@hookimpl
def mappa_workflows() -> Iterable[Offer[Workflow]]:
    yield Offer("gateway", _build_gateway, GatewayOptions)
    yield Offer("imported", ImportedWorkflow, ImportedOptions)


@hookimpl
def mappa_tools() -> Iterable[Offer[Tool | Toolbox]]:
    yield Offer("python", PythonTool, PythonOptions)
    yield Offer("calculator", lambda options: Calculator())
    yield Offer("mcp", _build_mcp, McpOptions)


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("ensemble", _build_ensemble, EnsembleOptions, composite=True)
    yield Offer("imported", ImportedCoach)


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
    yield Offer(
        "reinforce_plus_plus_baseline",
        estimators.ReinforcePlusPlusBaseline,
        estimators.ReinforcePlusPlusBaselineOptions,
    )
    yield Offer("rloo", estimators.Rloo, estimators.RlooOptions)
    yield Offer("grpo", estimators.Grpo, estimators.GrpoOptions)
    yield Offer("dr_grpo", estimators.DrGrpo, estimators.DrGrpoOptions)
    yield Offer("gae", estimators.Gae, estimators.GaeOptions, values=True)
    yield Offer("gigpo", estimators.Gigpo, estimators.GigpoOptions)


@hookimpl
def mappa_losses() -> Iterable[Offer[Loss]]:
    yield Offer("ppo", _build_ppo, PPOOptions)
    yield Offer("gspo", _build_gspo, GSPOOptions)
    yield Offer("cispo", _build_cispo, CISPOOptions)


@hookimpl
def mappa_engines() -> Iterable[Offer[Engine]]:
    yield Offer("local", _build_local, LocalOptions)
    yield Offer("cluster", _build_cluster, ClusterOptions)


def coach_from_transport(offer: Offer[Transport]) -> Offer[Coach]:
    """Derive the offer of a coach from the offer of its transport."""
    from mappa_core.coaching import llm_offer

    return llm_offer.llm_coach_offer(offer)


def policy_from_transport(offer: Offer[Transport]) -> Offer[ApiPolicy]:
    """Derive the offer of a policy behind an API from the offer of its transport."""
    from mappa_core.calls import api_policy

    return api_policy.api_policy_offer(offer)


def _build_gateway(options: GatewayOptions) -> Workflow:
    if installed_version("uvicorn") is None or installed_version("starlette") is None:
        raise ConfigError('workflow.use=gateway needs a server: pip install "mappa-core[gateway]"')
    from mappa_core.gateway.workflow import GatewayWorkflow

    return GatewayWorkflow(options)


def _build_mcp(options: McpOptions) -> Toolbox:
    if installed_version("mcp") is None:
        raise ConfigError('tools.*.use=mcp needs the SDK of the protocol: pip install "mappa-core[mcp]"')
    from mappa_core.tools.mcp.toolbox import McpToolbox

    return McpToolbox(options)


def _build_ensemble(options: EnsembleOptions, build: Callable[[Use], Coach]) -> Coach:
    from mappa_core.coaching.ensemble import build_ensemble

    return build_ensemble(options, build)


def _build_ppo(options: PPOOptions) -> Loss:
    from mappa_core.engine.losses import PPOLoss

    return PPOLoss(options)


def _build_gspo(options: GSPOOptions) -> Loss:
    from mappa_core.engine.losses import GSPOLoss

    return GSPOLoss(options)


def _build_cispo(options: CISPOOptions) -> Loss:
    from mappa_core.engine.losses import CISPOLoss

    return CISPOLoss(options)


def _build_cluster(options: ClusterOptions) -> Engine:
    from mappa_core.engine.cluster.requirements import check_installed

    check_installed()
    from mappa_core.engine.cluster.engine import ClusterEngine

    return ClusterEngine(options)


def _build_local(options: LocalOptions) -> Engine:
    from mappa_core.engine.local import LocalEngine

    return LocalEngine(options)
