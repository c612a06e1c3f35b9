"""The doors. Hooks offer, recipes choose, objects work: every hook is plain, called once at start, and hands over
offers. Nothing per action goes through a hook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Generic, TypeVar

import pluggy

if TYPE_CHECKING:
    import click

    from mappa_core.protocols import (
        Coach,
        Engine,
        Estimator,
        Loss,
        Shaper,
        TaskSource,
        Tool,
        Toolbox,
        Tracker,
        Transport,
        Workflow,
    )

T = TypeVar("T")
API = 1
"""Raised only by a breaking change. New hooks, new arguments, new defaulted fields are minor."""

hookspec = pluggy.HookspecMarker("mappa")
hookimpl = pluggy.HookimplMarker("mappa")


@dataclass(frozen=True)
class NoOptions:
    """The options of an offer that has none."""


@dataclass(frozen=True, slots=True)
class Offer(Generic[T]):
    """Something a recipe can choose by `use: name`. `options` is a dataclass: schema, defaults and documentation of
    `options:`; `build` gets an instance of it and returns the object. Heavy imports belong inside `build`.

    Options of an offer that is `composite` may hold choices of other offers of its kind (fields of type `Use`, or
    lists of them); its `build` gets a second argument that builds one of them.

    `values` marks an estimator that reads `Experience.values`: the policies it serves must have a value head.
    """

    name: str
    build: Callable[..., T]
    options: type = NoOptions
    composite: bool = False
    values: bool = False


@hookspec
def mappa_tasks() -> Iterable[Offer[TaskSource]]:
    """Offer sources of tasks."""


@hookspec
def mappa_workflows() -> Iterable[Offer[Workflow]]:
    """Offer workflows: who acts, in which order, seeing what."""


@hookspec
def mappa_tools() -> Iterable[Offer[Tool | Toolbox]]:
    """Offer tools that agents can call, and boxes of tools that are found where they are; a code executor is the tool
    `python`."""


@hookspec
def mappa_coaches() -> Iterable[Offer[Coach]]:
    """Offer coaches."""


@hookspec
def mappa_transports() -> Iterable[Offer[Transport]]:
    """Offer providers of a coach's or a policy's completions."""


@hookspec
def mappa_shapers() -> Iterable[Offer[Shaper]]:
    """Offer shapers: verdicts to rewards, chained in the recipe's order."""


@hookspec
def mappa_estimators() -> Iterable[Offer[Estimator]]:
    """Offer advantage estimators."""


@hookspec
def mappa_losses() -> Iterable[Offer[Loss]]:
    """Offer per-token policy losses."""


@hookspec
def mappa_engines() -> Iterable[Offer[Engine]]:
    """Offer engines."""


@hookspec
def mappa_trackers() -> Iterable[Offer[Tracker]]:
    """Offer trackers of metrics."""


@hookspec
def mappa_recipes() -> Mapping[str, Traversable]:
    """Offer recipes: name -> packaged YAML file. `tiny` is a plugin's default."""


@hookspec
def mappa_commands() -> Iterable[click.Command]:
    """Offer commands; a plugin's commands appear as `mappa PLUGIN COMMAND`."""
