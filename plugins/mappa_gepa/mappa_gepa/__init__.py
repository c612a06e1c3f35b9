"""Better prompts for a team from its coach's verdicts: `mappa improve`, and a team without a model to try it on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING

from mappa_core import NoOptions, Offer, hookimpl
from mappa_core.workflow import find_recipes
from mappa_gepa.advise.only_agent import OnlyAgentOptions
from mappa_gepa.drawn_tasks import DrawnTasksOptions
from mappa_gepa.options import ReflectionOptions
from mappa_gepa.relay.models import EditorOptions, FollowerOptions
from mappa_gepa.relay.team import RelayOptions

if TYPE_CHECKING:
    from mappa_core import Coach, PromptOptimizer, Shaper, TaskSource, Workflow
    from mappa_core.transport import Transport


@hookimpl
def mappa_recipes() -> Mapping[str, Traversable]:
    return find_recipes("mappa_gepa")


@hookimpl
def mappa_tasks() -> Iterable[Offer[TaskSource]]:
    from mappa_gepa.relay.team import RelayTasks

    yield Offer("relay", RelayTasks, DrawnTasksOptions)


@hookimpl
def mappa_workflows() -> Iterable[Offer[Workflow]]:
    from mappa_gepa.relay.team import Relay

    yield Offer("relay", Relay, RelayOptions)


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    from mappa_gepa.relay.coach import DutyCoach

    yield Offer("relay-duties", lambda options: DutyCoach(), NoOptions)


@hookimpl
def mappa_transports() -> Iterable[Offer[Transport]]:
    from mappa_gepa.relay.models import InstructionEditor, InstructionFollower

    yield Offer("instruction-follower", InstructionFollower, FollowerOptions)
    yield Offer("instruction-editor", InstructionEditor, EditorOptions)


@hookimpl
def mappa_shapers() -> Iterable[Offer[Shaper]]:
    from mappa_gepa.advise.only_agent import OnlyAgentShaper

    yield Offer("only_agent", OnlyAgentShaper, OnlyAgentOptions)


@hookimpl
def mappa_prompt_optimizers() -> Iterable[Offer[PromptOptimizer]]:
    from mappa_gepa.reflection import ReflectiveOptimizer

    yield Offer("reflection", ReflectiveOptimizer, ReflectionOptions)
