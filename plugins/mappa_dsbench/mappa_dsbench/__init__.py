"""DSBench for Mappa: Data Engineer, Modeler and Analyst turn tables into a graded submission."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mappa_core import Offer, hookimpl

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from mappa_core import Coach, NoOptions, TaskSource, Workflow
    from mappa_dsbench.options import EmbeddedOptions, PublishedOptions, TeamOptions


@hookimpl
def mappa_workflows() -> Iterable[Offer[Workflow]]:
    from mappa_dsbench.options import TeamOptions

    yield Offer("dsbench", _build_workflow, TeamOptions)


@hookimpl
def mappa_tasks() -> Iterable[Offer[TaskSource]]:
    from mappa_dsbench.options import EmbeddedOptions, PublishedOptions

    yield Offer("dsbench-embedded", _build_embedded_tasks, EmbeddedOptions)
    yield Offer("dsbench", _build_published_tasks, PublishedOptions)


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("dsbench-rules", _build_rule_coach)


@hookimpl
def mappa_recipes() -> Mapping[str, Traversable]:
    from mappa_core.workflow import find_recipes

    return find_recipes(__name__)


def _build_workflow(options: TeamOptions) -> Workflow:
    from mappa_dsbench.workflow import DSBench

    return DSBench(options)


def _build_embedded_tasks(options: EmbeddedOptions) -> TaskSource:
    from mappa_dsbench.embedded.tasks import EmbeddedTasks

    return EmbeddedTasks(options)


def _build_published_tasks(options: PublishedOptions) -> TaskSource:
    from mappa_dsbench.published.tasks import PublishedTasks

    return PublishedTasks(options)


def _build_rule_coach(options: NoOptions) -> Coach:
    from mappa_dsbench.coach.rule_coach import RuleCoach

    return RuleCoach(options)
