"""`mappa new KIND NAME --into PACKAGE`: one more offer of a package, as a module with hooks of its own."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mappa.cli.new.rendering import check_offer_name, render_package, usage_of, values_of
from mappa_core.errors import ConfigError
from mappa_core.plugins import ENTRY_POINT_GROUP, Registry

PROJECT, README = "pyproject.toml", "README.md"
_TABLE = f"[project.entry-points.{ENTRY_POINT_GROUP}]"


def add_offer(kind: str, name: str, package: Path, registry: Registry) -> Path:
    """Add a KIND called `name` to the package in the folder `package`: a module with its hooks, tests, an entry point,
    what it requires, and its use in the README. Returns the folder of the module. Raises ConfigError if it cannot; then
    nothing is written."""
    check_offer_name(kind, name, registry)
    project = _read(package / PROJECT)
    inside = _import_package(package, tomllib.loads(project))
    values = values_of(kind, name)
    values["package"] = f"{inside.name}.{values['snake']}"
    changed = _add_entry(_add_requirements(project, values["requirements"], package), values, package)
    rendered = {package / _below(path, inside, package): text for path, text in render_package(kind, values, parts=())}
    for path in rendered:
        if path.exists():
            raise ConfigError(f"{path} is there already; choose another name")
    readme = package / README
    said = _read(readme) if readme.exists() else f"# {package.resolve().name}\n"
    rendered |= {
        package / PROJECT: changed,
        readme: f"{said.rstrip()}\n\n## {name}\n\n{usage_of(kind, values).strip()}\n",
    }
    for path, text in rendered.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
    return inside / str(values["snake"])


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read ({error}): --into names the folder of a package") from error


def _import_package(package: Path, project: dict[str, Any]) -> Path:
    """The folder of the package that holds the plugins of a distribution."""
    points = project.get("project", {}).get("entry-points", {}).get(ENTRY_POINT_GROUP, {})
    names = dict.fromkeys(re.split("[.:]", value)[0] for value in points.values())
    for name in names:
        for folder in (package / name, package / "src" / name):
            if (folder / "__init__.py").exists():
                return folder
    raise ConfigError(f"{package / PROJECT} names no plugin in a package of this folder: it needs a table {_TABLE}")


def _below(path: Path, inside: Path, package: Path) -> Path:
    """A rendered path where the package may lie in `src`."""
    first, *rest = path.parts
    return inside.relative_to(package).joinpath(*rest) if first == inside.name else path


def _add_entry(project: str, values: dict[str, Any], package: Path) -> str:
    line = f'{values["name"]} = "{values["package"]}"\n'
    changed = project.replace(f"{_TABLE}\n", f"{_TABLE}\n{line}", 1)
    points = tomllib.loads(changed)["project"]["entry-points"][ENTRY_POINT_GROUP]
    if points.get(values["name"]) != values["package"]:
        raise ConfigError(
            f"{package / PROJECT}: write the table {_TABLE} on lines of its own, so that it can be added to"
        )
    return changed


def _add_requirements(project: str, wanted: Sequence[str], package: Path) -> str:
    """The text of a project that also requires what is `wanted`."""
    there = tomllib.loads(project)["project"].get("dependencies", [])
    missing = [word for word in wanted if _name(word) not in map(_name, there)]
    if not missing:
        return project
    quoted = ", ".join(f'"{word}"' for word in (*there, *missing))
    changed = re.sub(
        r"^dependencies = \[.*?\]$", lambda _: f"dependencies = [{quoted}]", project, count=1, flags=re.M | re.S
    )
    if tomllib.loads(changed)["project"].get("dependencies") != [*there, *missing]:
        raise ConfigError(
            f"{package / PROJECT}: add to dependencies by hand, as they are not a list there: {', '.join(missing)}"
        )
    return changed


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement)[0].lower().replace("_", "-")
