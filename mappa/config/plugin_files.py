"""Plugins without a package: a file of Python, `./team.py`, or a module, `module` or `module:object`.

Such a plugin has hooks, or it is made of what its module holds: the one Workflow, Coaches, functions that are marked as
`coach`, `tool` or `shaper`, a list `tasks`, and `settings` of its recipe. What stands before `:` is run as a script is:
its folder is where it finds the modules beside it.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from mappa_core.defaults.functions import kind_of, place_of, search_folder
from mappa_core.defaults.objects import ObjectPlugin
from mappa_core.errors import PluginError, RunError
from mappa_core.files import read_named_file
from mappa_core.plugins import HOOK_NAMES, OfferKind, Registry, find_entry_points, load_plugins
from mappa_core.protocols import Coach, Workflow

MAX_FILE_BYTES = 4 << 20
MAX_DIFF_LINES = 20
_NAME = re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII)
_TASKS, _SETTINGS = "tasks", "settings"
_TEXTS: dict[str, str] = {}
"""Texts that this process ran, by hash: the file may be another one by the time that a run keeps it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginFile:
    """Where a plugin was read from (the absolute path of a file, or `module:object`), and the hash of its text."""

    place: str
    sha256: str

    @property
    def text(self) -> str | None:
        """The text, if this process ran it."""
        return _TEXTS.get(self.sha256)


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """Plugin of a file or module: what `load_plugins` takes as one of `modules`."""

    name: str
    hooks: object
    module: ModuleType
    text: str


def file_of(registry: Registry, plugin: str) -> PluginFile | None:
    """The file of a plugin that was read from one."""
    loaded = registry.plugins.get(plugin)
    if loaded is None or loaded.source is None:
        return None
    return PluginFile(place=loaded.source, sha256=loaded.version)


def names_file(given: str) -> bool:
    """Whether the name of a plugin is that of a file or module: no installed plugin is called like it, and it looks
    like a path or a dotted name, or there is such a module."""
    if given in (point.name for point in find_entry_points()):
        return False
    if re.search(r"[/.:\\]", given):
        return True
    search_folder(Path.cwd())
    # `find_spec` fails for a module that was not imported: that of a file that was run, or `__main__`.
    return given.isidentifier() and (given in sys.modules or find_spec(given) is not None)


def load_plugin_file(given: str) -> LoadedPlugin:
    """Load the plugin of a file or module, which runs its code; an error of that code is its own.

    Raises PluginError if there is no such file or module, if its text is no Python, or if it holds no plugin.
    """
    before, colon, inner = given.rpartition(":") if ":" in given else (given, "", "")
    if before.endswith(".py") or "/" in before:
        file = Path(before).expanduser().absolute()
        text = _read_source(file)
        module, name, place = _run_file(file, text), file.stem, str(file)
    else:
        module = _import_module(before)
        text, name, place = _text_of(module), before.rpartition(".")[2], before
    value = _inner(module, inner, place) if colon else module
    name = inner.rpartition(".")[2] if colon else name
    if not _NAME.fullmatch(name):
        raise PluginError(f"{given}: a plugin is called after its file: letters, digits, - and _, not {name!r}")
    digest = sha256(text.encode()).hexdigest()
    _TEXTS[digest] = text
    return LoadedPlugin(name, _to_hooks(name, value, module, f"{place}{colon}{inner}", digest), module, text)


def add_plugin(registry: Registry, loaded: LoadedPlugin) -> Registry:
    """The registry with one more plugin. Raises PluginError if one of its name, or an offer of it, is there already."""
    if loaded.name in registry.plugins:
        raise PluginError(
            f"there is a plugin called {loaded.name!r} already ({registry.plugins[loaded.name].package}): rename the "
            f"file, or leave the other out, mappa --block {loaded.name} …"
        )
    plugin = load_plugins(only=(), modules={loaded.name: loaded.hooks}).plugins[loaded.name]
    for kind, offers in plugin.offers.items():
        for name in offers.keys() & set(registry.names(kind)):
            raise PluginError(f"{plugin.package} offers {name!r} of {kind}, and there is one already; rename it")
    return replace(registry, plugins={**registry.plugins, plugin.name: plugin})


def load_recorded(recorded: PluginFile, kept: str | None, copy: Path) -> LoadedPlugin:
    """Load the plugin that a run was made with. `kept` is the text that the run keeps as the file `copy`; None if it
    does not. Raises PluginError as `load_plugin_file`, and if the file is another one by
    now, of which nothing was run then."""
    place = recorded.place
    path = Path(place.rpartition(":")[0] if ".py:" in place else place)
    if not path.is_absolute():
        path = _find_module(place.partition(":")[0])
    if not path.is_file():
        raise PluginError(
            f"{path}, which the run was made with, is not there. Put it there again (its text is {copy}), or name the "
            f"place it has now: --plugin FOLDER/{path.name}"
        )
    now = _read_source(path)
    if sha256(now.encode()).hexdigest() != recorded.sha256:
        diff = "" if kept is None else "".join(f"\n  {line}" for line in _diff(kept, now))
        raise PluginError(
            f"{path} is not what it was when the run was made:{diff}\n"
            f"To go on with what it is now, say so: --plugin {path}. What it was is {copy}."
        )
    return load_plugin_file(place)


def _diff(before: str, now: str) -> Iterator[str]:
    lines = list(difflib.unified_diff(before.splitlines(), now.splitlines(), "recorded", "now", lineterm="", n=1))
    yield from islice(lines, MAX_DIFF_LINES)
    if len(lines) > MAX_DIFF_LINES:
        yield f"and {len(lines) - MAX_DIFF_LINES} more lines"


def _read_source(file: Path) -> str:
    if not file.exists():
        raise PluginError(f"{file}: there is no such file")
    try:
        return read_named_file(file, max_bytes=MAX_FILE_BYTES).decode()
    except UnicodeDecodeError as error:
        raise PluginError(f"{file}: byte {error.start} is not UTF-8") from error
    except RunError as error:
        raise PluginError(str(error)) from error


def _run_file(file: Path, text: str) -> ModuleType:
    """Run a file as a module of its name, which can then be imported: by `function: team:judge`, or to unpickle."""
    try:
        code = compile(text, str(file), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise PluginError(f"{file}:{error.lineno}: not valid Python: {error.msg}") from error
    search_folder(file.parent)
    name = file.stem.replace("-", "_")
    there: Any = sys.modules.get(name) or find_spec(name)
    if there is not None and str(file) not in (getattr(there, "__file__", None), getattr(there, "origin", None)):
        name = f"mappa_plugin_{name}"  # `random.py` must not become everybody's random
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module
    try:
        exec(code, module.__dict__)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _import_module(name: str) -> ModuleType:
    _find_module(name)
    return importlib.import_module(name)


def _find_module(name: str) -> Path:
    """The file of a module. Its packages are imported, and it is not."""
    search_folder(Path.cwd())
    try:
        spec = find_spec(name)
    except (ModuleNotFoundError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError) and not name.startswith(str(error.name)):
            raise  # one that its package lacks
        spec = None
    if spec is None or spec.origin is None:
        raise PluginError(f"{name}: there is no such module here; a file is named by its path, ./{name}.py")
    return Path(spec.origin)


def _text_of(module: ModuleType) -> str:
    file = Path(module.__file__ or "")
    if file.suffix != ".py":
        raise PluginError(f"{module.__name__} has no file of Python ({file})")
    return _read_source(file)


def _inner(module: ModuleType, name: str, place: str) -> object:
    try:
        value: object = module
        for part in name.split("."):
            value = getattr(value, part)
    except AttributeError as error:
        raise PluginError(f"{place} has no {name!r}") from error
    return value


def _to_hooks(name: str, value: object, module: ModuleType, place: str, digest: str) -> object:
    hooks = [hook for hook in HOOK_NAMES if hasattr(value, hook)] if not isinstance(value, ObjectPlugin) else []
    found = _marked(module)
    if hooks and any(found.values()):
        marked = ", ".join(place_of(value) for offers in found.values() for value in offers)
        raise PluginError(
            f"{place} has hooks ({', '.join(hooks)}) and what is marked beside them ({marked}): offer all by hooks"
        )
    if hooks:
        value.mappa_source, value.mappa_version = place, digest  # type: ignore[attr-defined]
        return value
    made = value if isinstance(value, ObjectPlugin) else _make_plugin(name, value, module, found, place)
    return replace(made, mappa_source=place, mappa_version=digest)


def _make_plugin(
    name: str, value: object, module: ModuleType, marked: Mapping[OfferKind, list[object]], place: str
) -> ObjectPlugin:
    workflow: Any = _find_workflow(module, place, any(marked.values())) if value is module else value
    is_workflow = isinstance(workflow, Workflow) or (inspect.isclass(workflow) and issubclass(workflow, Workflow))
    if workflow is not None and not is_workflow:
        raise PluginError(f"{place} is {workflow!r}: neither a Workflow nor an object with hooks")
    settings = getattr(module, _SETTINGS, {})
    if not isinstance(settings, Mapping):
        raise PluginError(f"{place}: `settings` is a mapping, such as {{'train.iterations': 30}}, not {settings!r}")
    return ObjectPlugin.of(
        name,
        workflow=workflow,
        tasks=getattr(module, _TASKS, None),
        coaches=marked["coaches"],
        tools=marked["tools"],
        shapers=marked["shapers"],
        settings=settings,
    )


def _find_workflow(module: ModuleType, place: str, has_others: bool) -> type[Workflow] | None:
    """The one subclass of Workflow that a module defines; None where it offers other things alone."""
    found = [value for value in _own_classes(module) if issubclass(value, Workflow) and not inspect.isabstract(value)]
    last = [value for value in found if not any(value in other.__mro__[1:] for other in found)]
    if len(last) > 1:
        named = " and ".join(f"{value.__name__} ({place_of(value)})" for value in last)
        raise PluginError(f"{place} has {len(last)} workflows, {named}: name one, --plugin {place}:{last[0].__name__}")
    if not last and not has_others:
        raise PluginError(f"{place} has no workflow: a subclass of mappa_core.Workflow with `agents` and `run`")
    return last[0] if last else None


def _own_classes(module: ModuleType) -> list[type]:
    values = dict.fromkeys(value for value in vars(module).values() if isinstance(value, type))
    return [value for value in values if value.__module__ == module.__name__]


def _marked(module: ModuleType) -> dict[OfferKind, list[object]]:
    """What a module offers: what is marked, also in a module that it imports from, and its own coaches."""
    found: dict[OfferKind, list[object]] = {"coaches": [], "tools": [], "shapers": []}
    seen: set[int] = set()
    coaches = [value for value in _own_classes(module) if issubclass(value, Coach) and not inspect.isabstract(value)]
    for value in (*vars(module).values(), *coaches):
        kind = kind_of(value) or ("coaches" if any(value is coach for coach in coaches) else None)
        if kind is not None and id(value) not in seen:
            seen.add(id(value))
            found[kind].append(value)
    return found
