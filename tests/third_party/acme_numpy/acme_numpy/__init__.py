"""An engine in numpy with a loss of its own, and a team that it trains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable

from acme_numpy.engine import ReinforceLoss, TableEngine
from acme_numpy.team import Parity, ParityTasks, RightLetter
from mappa_core import Coach, Offer, TaskSource, Workflow, hookimpl
from mappa_core.engine import Engine, Loss


@hookimpl
def mappa_engines() -> Iterable[Offer[Engine]]:
    yield Offer("tables", lambda options: TableEngine())


@hookimpl
def mappa_losses() -> Iterable[Offer[Loss]]:
    yield Offer("reinforce", lambda options: ReinforceLoss())


@hookimpl
def mappa_tasks() -> Iterable[Offer[TaskSource]]:
    yield Offer("parity", lambda options: ParityTasks())


@hookimpl
def mappa_workflows() -> Iterable[Offer[Workflow]]:
    yield Offer("parity", lambda options: Parity())


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("right-letter", lambda options: RightLetter())


@hookimpl
def mappa_recipes() -> Mapping[str, Traversable]:
    return {"tiny": files(__name__) / "recipes" / "tiny.yaml"}
