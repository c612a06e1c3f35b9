"""Plain functions, classes and lists as offers: what a signature leaves out is made here.

    @coach   def judge(scene: Scene) -> Verdict | float | tuple[float, str] | None
    @tool    def add(a: int, b: int) -> str
    @shaper  def halve(trajectory: Trajectory, rewards: Rewards) -> Rewards

Each may be `async` where its protocol is. A function that is not runs in a thread, so that one that waits holds up
nobody else. Classes are called without arguments, or with the defaults of the dataclass that their parameter names.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec

from mappa_core.defaults.row_files import Rows
from mappa_core.defaults.task_sources import TaskColumns, build_tasks
from mappa_core.errors import PluginError, TaskError
from mappa_core.hookspecs import NoOptions
from mappa_core.plugins import OfferKind
from mappa_core.protocols import Coach, Rewards, Shaper, Split, TaskSource, Tool, Toolbox, Workflow, Workspace
from mappa_core.records import Scene, Task, ToolLimits, ToolResult, ToolSpec, Trajectory, Verdict

T = TypeVar("T", bound=Callable[..., Any])
_MARK = "__mappa_offer__"
_OWN = (Workspace, ToolLimits)
"""Types of parameters of a tool that Mappa gives, and no model."""


@dataclass
class FunctionOptions:
    function: str = "???"
    """`module:name` of a function, a class or an object; modules are looked for in the working directory, too."""


def coach(function: T) -> T:
    """Mark a coach: a function of a Scene, or a subclass of Coach.

    The function returns a Verdict; or points from 0 to 10, alone or with a reason; or None, to abstain.
    """
    return _mark(function, "coaches")


def tool(function: T) -> T:
    """Mark a tool: a function whose parameters have types, or a class with the methods of a Tool.

    Its docstring is what a model reads of it, `Annotated[int, "…"]` says more of a parameter. A parameter of type
    Workspace or ToolLimits is not shown to the model. The function returns text, a ToolResult, or what JSON can hold; a
    ValueError tells the agent what it did wrong, and any other exception is a fault of the tool.
    """
    return _mark(function, "tools")


def shaper(function: T) -> T:
    """Mark a shaper: a function of a Trajectory and its rewards, one per step, that returns other ones; or a class."""
    return _mark(function, "shapers")


def _mark(function: T, kind: OfferKind) -> T:
    setattr(function, _MARK, kind)
    return function


def kind_of(value: object) -> OfferKind | None:
    """The kind of offer that a value is marked as."""
    # Of itself alone: a subclass of a marked class is another one.
    return getattr(value, "__dict__", {}).get(_MARK)


def function_builder(kind: OfferKind) -> Callable[[FunctionOptions], Any]:
    """What builds the offer `function` of a kind from its options."""

    def build(options: FunctionOptions) -> Any:
        return adapt(kind, _resolve(options.function), options.function)

    return build


def adapt(kind: OfferKind, value: object, where: str, options: object | None = None) -> Any:
    """Make an offer of `kind` of a function, a class or an object. `where` names it in errors; `options` are those of a
    class, by default as its dataclass has them. Raises PluginError if it cannot be one."""
    if isinstance(value, type):
        value = _construct(value, where, options)
    adapter = _ADAPTERS.get(kind)
    if adapter is None:
        # An estimator or a loss is what is called; an engine or a tracker is built by a function of nothing.
        return value() if inspect.isroutine(value) and not inspect.signature(value).parameters else value
    return adapter(value, where)


def options_of(value: object, where: str) -> type:
    """The dataclass of the options of a class; NoOptions of anything else. Raises PluginError if the class cannot be
    built with options alone."""
    if not isinstance(value, type):
        return NoOptions
    required = [parameter for parameter in _parameters(value) if parameter.default is parameter.empty]
    if not required:
        return NoOptions
    hint = _hints(inspect.getattr_static(value, "__init__"), where).get(required[0].name)
    if len(required) == 1 and isinstance(hint, type) and is_dataclass(hint):
        return hint
    raise PluginError(
        f"{where}: it is built with nothing, or with one parameter whose type is a dataclass of its options, and "
        f"__init__ needs {', '.join(parameter.name for parameter in required)}"
    )


def _construct(value: type, where: str, options: object | None) -> Any:
    schema = options_of(value, where)
    return value() if schema is NoOptions and not _takes_options(value) else value(options or schema())


def _takes_options(value: type) -> bool:
    return any(parameter.default is parameter.empty for parameter in _parameters(value))


def _parameters(value: type) -> Sequence[inspect.Parameter]:
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter for parameter in inspect.signature(value).parameters.values() if parameter.kind in named]


def _resolve(name: str) -> object:
    """Import `module:name`. Raises PluginError if there is no such thing; an error of the module's own code is its."""
    module, colon, inner = name.partition(":")
    if not colon or not module or not inner:
        raise PluginError(f"{name!r} is not of the form module:name")
    search_folder(Path.cwd())
    try:
        return resolve_name(name)
    except ModuleNotFoundError as error:
        # One that the module itself lacks is its own affair.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise PluginError(f"{name!r}: there is no module {error.name!r} here; is it in the folder?") from error
    except AttributeError as error:
        raise PluginError(f"{name!r}: the module has no {inner!r}") from error


def search_folder(folder: Path) -> None:
    """Let modules be found in a folder, as beside a script that is run; what is installed goes before them."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def place_of(value: object) -> str:
    """Where a function or class is defined: `team.py:12`."""
    with suppress(TypeError, OSError):
        file, line = inspect.getsourcefile(value), inspect.getsourcelines(value)[1]  # type: ignore[arg-type]
        return f"{file}:{line}"
    return getattr(value, "__module__", type(value).__module__)


class FunctionCoach(Coach):
    """Coach whose `score` is a function of a Scene."""

    def __init__(self, function: Callable[[Scene], Any], where: str) -> None:
        _check_parameters(function, 1, where, "a coach is a function of a scene")
        self._function, self._where = function, where

    async def score(self, scene: Scene) -> Verdict:
        return _to_verdict(await _call(self._function, scene), self._where)


def _to_verdict(given: object, where: str) -> Verdict:
    match given:
        case Verdict():
            return given
        case None:
            return Verdict.abstained("It gave no points.")
        case bool():  # True would be one point of ten
            pass
        case int() | float():
            return Verdict.scored(given, "")
        case (int() | float() as points, str() as reason) if not isinstance(points, bool):
            return Verdict.scored(points, reason)
    raise TypeError(
        f"{where}: a coach returns a Verdict, points from 0 to 10, (points, reason), or None to abstain; not {given!r}"
    )


class FunctionTool:
    """Tool that calls a function with what a model wrote, by the types of its parameters."""

    def __init__(self, function: Callable[..., Any], where: str) -> None:
        hints = _hints(function, where, extras=True)
        self._function, self._own, fields = function, dict[str, type](), list[Any]()
        for parameter in inspect.signature(function).parameters.values():
            hint = hints.get(parameter.name)
            if hint is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise PluginError(
                    f"{where}: the parameter {parameter.name!r} of a tool needs a type: {parameter.name}: str"
                )
            if hint in _OWN:
                self._own[parameter.name] = hint
            elif parameter.default is parameter.empty:
                fields.append((parameter.name, _described(hint)))
            else:
                fields.append((parameter.name, _described(hint), parameter.default))
        name, said = function.__name__, inspect.getdoc(function)
        if not said:
            raise PluginError(f"{where}: the tool {name!r} has no docstring, which is what a model is told of it")
        self._arguments = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        self.spec = ToolSpec(name=name, description=said, schema=_schema(self._arguments, where))

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        own = {name: workspace if hint is Workspace else limits for name, hint in self._own.items()}
        try:
            read = msgspec.convert(dict(arguments), self._arguments)
            given = {name: getattr(read, name) for name in self._arguments.__struct_fields__}
            returned = await _call(self._function, **given, **own)
        except ValueError as error:
            return ToolResult(tool=self.spec.name, status="error", stderr=str(error) or type(error).__name__)
        if isinstance(returned, ToolResult):
            return replace(returned, tool=self.spec.name)
        text = returned if isinstance(returned, str) else "" if returned is None else _to_json(returned)
        # Of a function that was given no workspace, nothing changed there.
        files = workspace.changes() if Workspace in self._own.values() else ()
        return ToolResult(tool=self.spec.name, status="ok", stdout=text, files=files)

    async def close(self) -> None:
        """There is nothing to release."""


def _described(hint: Any) -> Any:
    """The type of a parameter with `Annotated[int, "…"]` as the description in its schema."""
    said = next((extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, str)), None)
    if said is None:
        return hint
    return Annotated[hint.__origin__, msgspec.Meta(description=said)]


def _schema(arguments: type, where: str) -> Mapping[str, Any]:
    try:
        (schema,), named = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    except TypeError as error:
        raise PluginError(
            f"{where}: a type of its parameters has no JSON schema: {str(error).splitlines()[-1]}"
        ) from error
    own = {key: value for key, value in named.pop(schema["$ref"].rpartition("/")[2]).items() if key != "title"}
    return {**own, "$defs": named} if named else own


def _to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


class FunctionShaper:
    """Shaper that is a function of a trajectory and its rewards."""

    def __init__(self, function: Callable[[Trajectory, Rewards], Rewards], where: str) -> None:
        _check_parameters(function, 2, where, "a shaper is a function of a trajectory and its rewards")
        if inspect.iscoroutinefunction(function):
            raise PluginError(f"{where}: a shaper is a plain function, not an `async` one")
        self._function = function

    def __call__(self, trajectory: Trajectory, rewards: Rewards) -> Rewards:
        return tuple(self._function(trajectory, rewards))


class FunctionTasks:
    """Task source that asks a function for the tasks of a split, or gives those that are there."""

    def __init__(self, given: object, where: str) -> None:
        if callable(given):
            _check_parameters(given, 1, where, "tasks are a list, or a function of a split, `train` or `eval`")
        self._given, self._where = given, where

    def load(self, split: Split) -> Sequence[Task]:
        """Raises TaskError for a row that cannot be used."""
        given: Any = self._given(split) if callable(self._given) else self._given
        if isinstance(given, Mapping):
            if split not in given:
                raise TaskError(f"{self._where}: there are no {split!r} tasks; as a mapping it has `train` and `eval`")
            given = given[split]
        tasks = tuple(given)
        if all(isinstance(task, Task) for task in tasks):
            return tasks
        if not all(isinstance(task, Mapping) for task in tasks):
            raise TaskError(f"{self._where}: tasks are a list of Task, or of rows with `prompt` and `answer`")
        columns = TaskColumns() if any("answer" in task for task in tasks) else TaskColumns(reference=None)
        return build_tasks(Rows(tasks, lambda index: f"{self._where}, row {index + 1}"), columns, "task")


def _to_workflow(value: Any, where: str) -> Workflow:
    if not isinstance(value, Workflow):
        raise PluginError(f"{where}: no workflow; it is a subclass of mappa_core.Workflow, or an object of one")
    return value


def _to_coach(value: Any, where: str) -> Coach:
    return value if isinstance(value, Coach) else FunctionCoach(_callable(value, where, "coach"), where)


def _to_tool(value: Any, where: str) -> Tool | Toolbox:
    if isinstance(value, Tool | Toolbox):
        return value
    return FunctionTool(_callable(value, where, "tool"), where)


def _to_shaper(value: Any, where: str) -> Shaper:
    return FunctionShaper(_callable(value, where, "shaper"), where)


def _to_tasks(value: Any, where: str) -> TaskSource:
    if hasattr(value, "load"):
        return value  # type: ignore[no-any-return]
    if not callable(value) and (isinstance(value, str) or not isinstance(value, Sequence | Mapping)):
        raise PluginError(f"{where}: tasks are a list of tasks, `train` and `eval` lists, or a function of a split")
    return FunctionTasks(value, where)


_ADAPTERS: Mapping[OfferKind, Callable[[Any, str], Any]] = MappingProxyType({
    "workflows": _to_workflow, "coaches": _to_coach, "tools": _to_tool, "shapers": _to_shaper, "tasks": _to_tasks,
})  # fmt: skip


def _callable(value: Any, where: str, noun: str) -> Callable[..., Any]:
    if not callable(value):
        raise PluginError(f"{where}: {value!r} is no {noun}, and no function")
    return value  # type: ignore[no-any-return]


def _check_parameters(function: Callable[..., Any], count: int, where: str, sentence: str) -> None:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError as error:
        raise PluginError(f"{where}: {sentence}, and {inspect.signature(function)} is not ({error})") from error


def _hints(function: Any, where: str, *, extras: bool = False) -> Mapping[str, Any]:
    try:
        return get_type_hints(function, include_extras=extras)
    except NameError as error:
        raise PluginError(f"{where}: a type in its signature is not there: {error}") from error


async def _call(function: Callable[..., Any], *positional: Any, **named: Any) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*positional, **named)
    returned = await asyncio.to_thread(function, *positional, **named)
    # Of an object whose `__call__` is async.
    return await returned if inspect.isawaitable(returned) else returned
