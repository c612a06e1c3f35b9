"""A third-party plugin: one offer of every kind, and four recipes, through `mappa_core` alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from acme_team import team
from mappa_core import Offer, hookimpl

mappa_api = 1


@dataclass
class TaskOptions:
    path: str = "???"
    """File of tasks."""
    limit: int | None = None


@dataclass
class Member:
    use: str = "???"
    weight: float = 1.0


@dataclass
class CoachOptions:
    model: str = "acme-1"
    api_key_env: str = "ACME_API_KEY"
    members: list[Member] = field(default_factory=list)
    tags: dict[str, str] = field(default_factory=dict)


@dataclass
class OtherCoachOptions:
    points: float = 5.0


@dataclass
class ScaleOptions:
    low: float = 0.0
    high: float = 10.0


def build_loss(options: Any) -> Any:
    """Import the heavy module only when a run needs the loss."""
    from acme_team import heavy

    return heavy.loss


def build_engine(options: Any) -> Any:
    from mappa.testing import ScriptedEngine

    return ScriptedEngine({})


@hookimpl
def mappa_tasks() -> Iterable[Offer[Any]]:
    yield Offer("acme_tasks", team.Tasks, TaskOptions)


@hookimpl
def mappa_workflows() -> Iterable[Offer[Any]]:
    yield Offer("acme_team", team.Team)


@hookimpl
def mappa_tools() -> Iterable[Offer[Any]]:
    yield Offer("acme_tool", team.Echo)


@hookimpl
def mappa_coaches() -> Iterable[Offer[Any]]:
    yield Offer("acme_coach", team.Judge, CoachOptions)
    yield Offer("acme_other", team.Judge, OtherCoachOptions)


@hookimpl
def mappa_transports() -> Iterable[Offer[Any]]:
    yield Offer("acme_wire", team.Wire)


@hookimpl
def mappa_shapers() -> Iterable[Offer[Any]]:
    yield Offer("acme_scale", team.Scale, ScaleOptions)


@hookimpl
def mappa_estimators() -> Iterable[Offer[Any]]:
    yield Offer("acme_estimator", team.Estimate)


@hookimpl
def mappa_prompt_optimizers() -> Iterable[Offer[Any]]:
    yield Offer("acme_prompts", team.Reword)


@hookimpl
def mappa_losses() -> Iterable[Offer[Any]]:
    yield Offer("acme_loss", build_loss)


@hookimpl
def mappa_engines() -> Iterable[Offer[Any]]:
    yield Offer("acme_engine", build_engine)


@hookimpl
def mappa_trackers() -> Iterable[Offer[Any]]:
    yield Offer("acme_tracker", team.Track)


@hookimpl
def mappa_recipes() -> Mapping[str, Traversable]:
    folder = files("acme_team") / "recipes"
    return {name: folder / f"{name}.yaml" for name in ("tiny", "paper", "paper-outcome", "loop")}
