"""Settings in which objects stand where a recipe has names: the objects become a plugin of this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict

from mappa.config.compose import SECTION_KINDS
from mappa_core import Coach, ConfigError, Registry, Scene, Shaper, Task, TaskSource, Tool, Toolbox, Workflow
from mappa_core.defaults.objects import ObjectPlugin, name_of
from mappa_core.plugins import KIND_NAMES, OfferKind, load_plugins

Section = Mapping[str, Any]
"""A section of a recipe, in which an object may stand in place of the name at `use`."""
WorkflowLike = type[Workflow] | Workflow | str | Section
TasksLike = (
    Iterable[Task] | Iterable[Mapping[str, Any]] | Callable[..., Iterable[Any]] | TaskSource | str | Path | Section
)
CoachLike = type[Coach] | Coach | Callable[[Scene], Any] | str | Section
ToolLike = Tool | Toolbox | Callable[..., Any] | str
ShaperLike = Shaper | str | Section


class Sections(TypedDict, total=False):
    """The sections of a recipe that no parameter of `train` stands for, each a mapping as in YAML."""

    seed: int
    run: Section
    agents: Section
    policies: Section
    sampling: Section
    credit: Section
    estimator: Section
    prompts: Section | None
    loss: Section
    train: Section
    engine: Section
    eval: Section
    checkpoint: Section
    store: Section
    trackers: Sequence[Section]


UNNAMED = "cell"
"""The plugin of objects without a workflow, after which it would be named."""
OBJECT_KINDS: tuple[OfferKind, ...] = ("workflows", "tasks", "coaches", "tools", "shapers")


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSettings:
    """What a call set: `sections` as a recipe has them, all by names, and the `plugin` of its objects."""

    sections: Mapping[str, Any]
    plugin: ObjectPlugin

    @property
    def words(self) -> tuple[str, ...]:
        """The sections as `key=value`. JSON is YAML."""
        return tuple(f"{key}={json.dumps(value)}" for key, value in self.sections.items())

    def over(self, earlier: ObjectPlugin) -> CellSettings:
        """The same with the objects of an earlier call where this one gave none."""
        own = self.plugin
        merged = replace(
            own,
            workflow=own.workflow or earlier.workflow,
            tasks=earlier.tasks if own.tasks is None else own.tasks,
            coaches={**earlier.coaches, **own.coaches},
            tools={**earlier.tools, **own.tools},
            shapers={**earlier.shapers, **own.shapers},
        )
        return replace(self, plugin=merged)

    def load_plugins(self, *, own_recipe: bool = False) -> Registry:
        """Load what is installed, and the plugin of the objects beside it, if there are any or its recipe is used."""
        needed = own_recipe or has_objects(self.plugin)
        return load_plugins(modules={self.plugin.name: self.plugin} if needed else None)


def has_objects(plugin: ObjectPlugin) -> bool:
    """Whether a plugin of a call holds more than what is always there."""
    coaches = plugin.coaches.keys() - {no_verdict.__name__}
    return bool(plugin.workflow or plugin.tasks is not None or coaches or plugin.tools or plugin.shapers)


def no_verdict(scene: Scene) -> None:
    """Abstain: the coach of a training on outcomes alone, which asks nobody."""


@dataclass(slots=True)
class _Collector:
    """Takes objects out of sections, and leaves the names under which they are offered."""

    name: str
    found: dict[OfferKind, dict[str, object]] = field(default_factory=dict)

    def named(self, value: Any, kind: OfferKind, place: str) -> str:
        """The name of an offer, of an object that of what is offered from now on."""
        if isinstance(value, str):
            return value
        if kind not in OBJECT_KINDS:
            raise ConfigError(
                f"{place}: {value!r} is no name. Objects can stand for a workflow, tasks, coaches, tools and shapers; "
                f"a package offers an {KIND_NAMES[kind]}: mappa new"
            )
        name = self.name if kind in ("workflows", "tasks") else _offer_name(value, kind)
        known = self.found.setdefault(kind, {})
        if known.setdefault(name, value) is not value:
            raise ConfigError(f"{place}: two {kind} of this call are called {name!r}; rename one of them")
        return name

    def replaced(self, value: Any, kind: OfferKind | None, place: str) -> Any:
        """The value with names at every `use`, and all else as JSON has it."""
        if isinstance(value, Mapping):
            return {
                str(key): self.named(inner, kind, f"{place}.use")
                if key == "use" and kind is not None
                else self.replaced(inner, kind, f"{place}.{key}")
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.replaced(inner, kind, f"{place}.{number}") for number, inner in enumerate(value)]
        return _plain(value, place)

    def plugin(self) -> ObjectPlugin:
        """The plugin of all objects so far."""
        named = {kind: self.found.get(kind, {}) for kind in OBJECT_KINDS}
        return ObjectPlugin(
            name=self.name,
            workflow=named["workflows"].get(self.name),  # type: ignore[arg-type]  # core checks what it is
            tasks=named["tasks"].get(self.name),
            coaches={no_verdict.__name__: no_verdict, **named["coaches"]},
            tools=named["tools"],
            shapers=named["shapers"],
        )


def read_settings(
    *,
    workflow: WorkflowLike | None = None,
    tasks: TasksLike | None = None,
    coach: CoachLike | None = None,
    tools: Sequence[ToolLike] | Section | None = None,
    shapers: Sequence[ShaperLike] | None = None,
    model: str | Path | None = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
    name: str | None = None,
) -> CellSettings:
    """Read what a call was given; `name` is that of its plugin, by default after the workflow. Raises ConfigError for a
    value that is none of a setting."""
    objects = _Collector(name or _plugin_name(workflow))
    given: dict[str, Any] = {
        "workflow": _as_section(workflow),
        "tasks": None if tasks is None else _tasks_section(tasks),
        "coach": _as_section(coach),
        "tools": tools if tools is None or isinstance(tools, Mapping) else _tools_section(tools),
        "shapers": None if shapers is None else [_as_section(shaper) for shaper in shapers],
    }
    sections = {key: value for key, value in given.items() if value is not None} | dict(settings)
    if model is not None:
        policies = settings.get("policies", {})
        if "model" in policies.get("default", {}):
            raise ConfigError("model and policies.default.model say the same thing twice: leave one out")
        default = {**policies.get("default", {}), "model": str(model)}
        sections["policies"] = {**policies, "default": default}
    read = {key: objects.replaced(value, SECTION_KINDS.get(key), key) for key, value in sections.items()}
    return CellSettings(sections=read, plugin=objects.plugin())


def _as_section(value: Any) -> Any:
    """A section that chooses `value`, unless it is one."""
    return value if value is None or isinstance(value, Mapping) else {"use": value}


def _tools_section(tools: Sequence[ToolLike]) -> Section:
    return {tool if isinstance(tool, str) else _offer_name(tool, "tools"): {"use": tool} for tool in tools}


def _tasks_section(tasks: Any) -> Section:
    """A name, a file, or tasks: also those of a data frame or of a data set, which hold rows."""
    if isinstance(tasks, Path):
        return {"use": "file", "options": {"path": str(tasks)}}
    if isinstance(tasks, str):
        # A file of tasks has a suffix, and the name of an offer has none.
        return {"use": "file", "options": {"path": tasks}} if Path(tasks).suffix else {"use": tasks}
    if isinstance(tasks, Mapping):
        return tasks if "use" in tasks else {"use": {split: _rows(part) for split, part in tasks.items()}}
    return {"use": _rows(tasks)}


def _rows(tasks: Any) -> Any:
    if hasattr(tasks, "to_dict") and hasattr(tasks, "columns"):
        return tasks.to_dict("records")
    if callable(tasks) or hasattr(tasks, "load"):
        return tasks
    if not isinstance(tasks, Iterable):
        raise ConfigError(
            f"tasks: {type(tasks).__name__} holds no tasks; they are a list of Task or of rows with `prompt` and "
            "`answer`, a data frame or data set of such rows, the path of a file, or the name of an offer"
        )
    return list(tasks)


def _offer_name(value: object, kind: OfferKind) -> str:
    name = name_of(value)
    # A lambda has a name that no recipe could write.
    return name if name.isidentifier() else KIND_NAMES[kind]


def _plugin_name(workflow: WorkflowLike | None) -> str:
    chosen = workflow.get("use") if isinstance(workflow, Mapping) else workflow
    return UNNAMED if chosen is None or isinstance(chosen, str) else name_of(chosen)


def _plain(value: Any, place: str) -> Any:
    """A value as JSON has it; numbers of numpy and paths become numbers and text."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is not None and not isinstance(value, str | int | float | bool):
        raise ConfigError(f"{place}: {value!r} is no setting; settings are texts, numbers, lists and mappings")
    return value
