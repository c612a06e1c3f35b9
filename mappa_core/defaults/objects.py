"""A plugin made of objects: of a team that is one file, or of what a notebook holds."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from importlib.resources.abc import Traversable
from io import BytesIO, StringIO
from typing import Any, cast

from mappa_core.config.layers import SettingsNode, merge, with_origin
from mappa_core.defaults.functions import adapt, options_of, place_of
from mappa_core.errors import PluginError
from mappa_core.hookspecs import Offer, hookimpl
from mappa_core.plugins import OfferKind
from mappa_core.protocols import Coach, Shaper, TaskSource, Tool, Toolbox, Workflow

_CAPITAL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
RECIPE = "plain"
"""The recipe of such a plugin: what it offers, with the defaults of the schema and its own settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPlugin:
    """Plugin `name` of functions, classes and objects (see `functions`), by the names of their offers.

    Workflow and tasks are offered under the name of the plugin. Its recipe plays the workflow on the tasks with all
    tools, asks the coach if there is one, and applies its shapers after the offer `scale`. `settings` are laid over
    that; their keys may have dots: `{"train.iterations": 30}`.
    """

    name: str
    workflow: type[Workflow] | Workflow | None = None
    tasks: object | None = None
    coaches: Mapping[str, object] = field(default_factory=dict)
    tools: Mapping[str, object] = field(default_factory=dict)
    shapers: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    mappa_source: str | None = None
    """The file or module that it was read from, if it was, and the hash of its text: what `load_plugins` reads."""
    mappa_version: str = "-"

    @classmethod
    def of(
        cls,
        name: str,
        *,
        workflow: type[Workflow] | Workflow | None = None,
        tasks: object | None = None,
        coaches: Iterable[object] = (),
        tools: Iterable[object] = (),
        shapers: Iterable[object] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> ObjectPlugin:
        """The plugin of objects that are offered under their own names. Raises PluginError for one that does not fit
        its kind, or two of a name."""
        return cls(
            name=name,
            workflow=workflow,
            tasks=tasks,
            coaches=_by_name("coaches", coaches),
            tools=_by_name("tools", tools),
            shapers=_by_name("shapers", shapers),
            settings=settings or {},
        )

    @property
    def offered(self) -> Mapping[OfferKind, Mapping[str, object]]:
        """What it offers, by kind and name."""
        return {
            "tasks": {} if self.tasks is None else {self.name: self.tasks},
            "workflows": {} if self.workflow is None else {self.name: self.workflow},
            "coaches": self.coaches,
            "tools": self.tools,
            "shapers": self.shapers,
        }

    @hookimpl
    def mappa_tasks(self) -> Iterable[Offer[TaskSource]]:
        return self._offers("tasks")

    @hookimpl
    def mappa_workflows(self) -> Iterable[Offer[Workflow]]:
        return self._offers("workflows")

    @hookimpl
    def mappa_coaches(self) -> Iterable[Offer[Coach]]:
        return self._offers("coaches")

    @hookimpl
    def mappa_tools(self) -> Iterable[Offer[Tool | Toolbox]]:
        return self._offers("tools")

    @hookimpl
    def mappa_shapers(self) -> Iterable[Offer[Shaper]]:
        return self._offers("shapers")

    @hookimpl
    def mappa_recipes(self) -> Mapping[str, Traversable]:
        return {RECIPE: TextFile(f"{RECIPE}.yaml", json.dumps(self.recipe.plain, indent=2))}

    @property
    def recipe(self) -> SettingsNode:
        """The settings of its recipe, without origins."""
        layers = [{key: value} for key, value in self.settings.items()]
        return reduce(merge, map(_nest, layers), with_origin(self._own_settings(), ""))

    def _offers(self, kind: OfferKind) -> list[Offer[Any]]:
        return [offer(kind, value, name) for name, value in self.offered[kind].items()]

    def _own_settings(self) -> dict[str, Any]:
        """What follows from what there is to offer."""
        own: dict[str, Any] = {
            "tools": {name: {"use": name} for name in self.tools},
            "shapers": [{"use": name} for name in ("scale", *self.shapers)],
        }
        if self.workflow is not None:
            own["workflow"] = {"use": self.name}
        if self.tasks is not None:
            own["tasks"] = {"use": self.name}
        if len(self.coaches) == 1:
            own["coach"] = {"use": next(iter(self.coaches))}
        return own


def _nest(layer: Mapping[str, Any]) -> SettingsNode:
    """A layer of one key, whose dots lead into sections."""
    ((key, value),) = layer.items()
    return reduce(lambda node, part: with_origin({part: node.plain}, ""), key.split(".")[::-1], with_origin(value, ""))


def offer(kind: OfferKind, value: object, name: str | None = None) -> Offer[Any]:
    """The offer of a function, a class or an object, for hooks; by default under its own name. Raises PluginError if it
    does not fit its kind."""
    name = name or name_of(value)
    where = f"{name} ({place_of(value)})"
    if not isinstance(value, type):
        # What does not fit is said at the start, and not when the first action needs it.
        adapt(kind, value, where)
    elif inspect.isabstract(value):
        lacks = ", ".join(sorted(getattr(value, "__abstractmethods__", ())))
        raise PluginError(f"{where}: the class lacks {lacks}")
    return Offer(name, lambda options: adapt(kind, value, where, options), options_of(value, where))


def _by_name(kind: OfferKind, given: Iterable[object]) -> Mapping[str, object]:
    named: dict[str, object] = {}
    for value in given:
        name = name_of(value)
        if name in named:
            raise PluginError(f"{place_of(value)}: two {kind} are called {name!r}; rename one of them")
        named[name] = value
    return named


def name_of(value: object) -> str:
    """The name under which a function, a class or an object is offered: its own, in lower case."""
    spec = getattr(value, "spec", None)
    name = cast(str, getattr(spec, "name", None) or getattr(value, "__name__", None) or type(value).__name__)
    # Names of offers are lower case, and those of classes are not.
    return _CAPITAL.sub("_", name).lower()


class TextFile(Traversable):
    """A file that is there as text alone."""

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text

    @property
    def name(self) -> str:
        return self._name

    def is_file(self) -> bool:
        return True

    def is_dir(self) -> bool:
        return False

    def iterdir(self) -> Any:
        raise NotADirectoryError(self._name)

    def joinpath(self, *descendants: Any) -> Traversable:
        raise NotADirectoryError(self._name)

    def __truediv__(self, child: Any) -> Traversable:
        return self.joinpath(child)

    def open(self, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return BytesIO(self._text.encode()) if "b" in mode else StringIO(self._text)

    def read_text(self, encoding: str | None = None) -> str:
        return self._text

    def read_bytes(self) -> bytes:
        return self._text.encode()
