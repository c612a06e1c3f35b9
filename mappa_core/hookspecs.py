"""Plugin hooks: synchronous functions, called once at start. They offer what recipes choose and what does the work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pluggy

if TYPE_CHECKING:
    from mappa_core import protocols

T = TypeVar("T")
PLUGIN_API_VERSION = 1
"""Incremented only by a breaking change. New hooks, new arguments and new fields with defaults are minor changes."""

hookspec = pluggy.HookspecMarker("mappa")
hookimpl = pluggy.HookimplMarker("mappa")  # Decorator of the functions by which a plugin implements hooks.


@dataclass(frozen=True)
class NoOptions:
    """Options of an offer that takes none."""


@dataclass(frozen=True, slots=True)
class Offer(Generic[T]):
    """Component that a recipe selects with `use: name`. `options` is a dataclass: the schema, defaults and
    documentation of `options:`. `build` returns the object for an instance of it, and imports what is heavy. Its method
    `check`, if any, raises ConfigError that begins with the field, `steps: must be …`, when a config is composed; Mappa
    adds the key and the origin.
    The options of a `composite` offer may choose others of its kind (fields of type `Use`, lists of them), which the
    second argument of `build` builds. `values` marks an estimator that needs a value head (`Experience.values`),
    `siblings` one that compares samples of a task; `default` a tracker of each run, of default options unless named."""

    name: str
    build: Callable[..., T]
    options: type = NoOptions
    composite: bool = False
    values: bool = False
    default: bool = False
    siblings: bool = False


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check of `mappa doctor`."""

    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class CheckArea:
    """Checks of `mappa doctor` under one heading; `run` takes the registry and returns their results by name."""

    name: str
    run: Callable[[Any], Mapping[str, CheckResult]]


@hookspec
def mappa_tasks() -> Iterable[Offer[protocols.TaskSource]]:
    """Offer task sources."""


@hookspec
def mappa_workflows() -> Iterable[Offer[protocols.Workflow]]:
    """Offer workflows: which agent acts when, and what it sees."""


@hookspec
def mappa_tools() -> Iterable[Offer[protocols.Tool | protocols.Toolbox]]:
    """Offer tools (a code executor is the tool `python`), and toolboxes, whose tools are discovered at start."""


@hookspec
def mappa_coaches() -> Iterable[Offer[protocols.Coach]]:
    """Offer coaches."""


@hookspec
def mappa_transports() -> Iterable[Offer[protocols.Transport]]:
    """Offer LLM providers for coaches and for policies behind an API."""


@hookspec
def mappa_shapers() -> Iterable[Offer[protocols.Shaper]]:
    """Offer reward shapers, which a recipe chains in its order."""


@hookspec
def mappa_estimators() -> Iterable[Offer[protocols.Estimator]]:
    """Offer advantage estimators."""


@hookspec
def mappa_prompt_optimizers() -> Iterable[Offer[protocols.PromptOptimizer]]:
    """Offer optimisers of prompts, which improve those of agents between iterations."""


@hookspec
def mappa_losses() -> Iterable[Offer[protocols.Loss]]:
    """Offer per-token policy losses."""


@hookspec
def mappa_engines() -> Iterable[Offer[protocols.Engine]]:
    """Offer training engines."""


@hookspec
def mappa_trackers() -> Iterable[Offer[protocols.Tracker]]:
    """Offer experiment trackers."""


@hookspec
def mappa_recipes() -> Mapping[str, Traversable]:
    """Offer recipes: name -> packaged YAML file. `tiny` is a plugin's default."""


@hookspec
def mappa_checks() -> Iterable[CheckArea]:
    """Offer checks for `mappa doctor`: whether what the plugin needs is installed and usable here."""
