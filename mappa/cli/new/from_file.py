"""`mappa new package ./team.py`: a plugin that was one file, as a package with hooks, a recipe and tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mappa.cli.new.rendering import check_package_name, class_name, render_package, values_of, write_files
from mappa.config.plugin_files import LoadedPlugin, load_plugin_file
from mappa.config.yaml_io import format_yaml
from mappa_core.defaults.objects import RECIPE, ObjectPlugin
from mappa_core.errors import ConfigError
from mappa_core.plugins import OfferKind, Registry

_TYPES: Mapping[OfferKind, str] = {
    "tasks": "TaskSource", "workflows": "Workflow", "coaches": "Coach", "tools": "Tool", "shapers": "Shaper",
}  # fmt: skip


def write_file_package(file: Path, parent: Path, registry: Registry) -> Path:
    """Write the package of the plugin that is `file` into the folder `parent`, and return its folder. Raises
    ConfigError if it cannot, and PluginError as `load_plugin_file`, which runs the file."""
    if file.suffix != ".py":
        raise ConfigError(f"{file}: a package is made of a file of Python, ./team.py")
    name = file.stem.replace("_", "-")
    check_package_name(name, registry)
    loaded = load_plugin_file(f"./{file}" if not file.is_absolute() else str(file))
    if not isinstance(loaded.hooks, ObjectPlugin):
        raise ConfigError(
            f"{file} has hooks already: copy it into a package as it is (mappa new workflow {name} writes one)"
        )
    if loaded.hooks.workflow is None:
        raise ConfigError(
            f"{file} has no workflow; mappa new coach NAME, and the like, write packages of single offers"
        )
    return write_files(parent / f"mappa-{name}", _render(name, loaded, loaded.hooks))


def _render(name: str, loaded: LoadedPlugin, plugin: ObjectPlugin) -> Iterator[tuple[Path, str]]:
    module = loaded.module.__name__.removeprefix("mappa_plugin_")
    values = values_of("workflow", name) | {
        "kind": "file",
        "module": module,
        "hooks": [_hook(kind, offered, name, loaded) for kind, offered in plugin.offered.items() if offered],
        "tasks": plugin.tasks is not None,
        "tools": sorted(plugin.tools),
        "coaches": [{"name": own, "title": f"Test{class_name(own.replace('_', '-'))}"} for own in plugin.coaches],
    }
    values["variables"] = sorted(
        {item["variable"] for hook in values["hooks"] for item in hook["offers"]}, key=_import_order
    )
    values["protocols"] = sorted({"Offer", *(hook["type"] for hook in values["hooks"])})
    yield from render_package("file", values)
    yield Path(values["package"], f"{module}.py"), _without_settings(loaded.text)
    yield Path(values["package"], "recipes", f"{RECIPE}.yaml"), format_yaml(replace(plugin, name=name).recipe)


def _hook(kind: OfferKind, offered: Mapping[str, object], name: str, loaded: LoadedPlugin) -> Mapping[str, Any]:
    variables = {id(value): variable for variable, value in vars(loaded.module).items()}
    offers = [
        {"variable": variables[id(value)], "name": name if kind in ("tasks", "workflows") else own}
        for own, value in offered.items()
    ]
    return {"kind": kind, "type": _TYPES[kind], "offers": offers}


def _import_order(name: str) -> tuple[int, str]:
    """Constants, classes, then others, as formatters sort them."""
    return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)


def _without_settings(text: str) -> str:
    """The text of a file without its `settings`, which are the recipe of the package."""
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["settings"]:
            del lines[node.lineno - 1 : node.end_lineno]
    return "".join(lines)
