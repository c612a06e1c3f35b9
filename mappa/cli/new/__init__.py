"""`mappa new`: a package with one offer, complete: code, tests, README, CI, and for a workflow prompts and a recipe."""

from __future__ import annotations

import builtins
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from mappa.cli.command_group import command_names
from mappa.cli.options import load_registry
from mappa_core.errors import ConfigError
from mappa_core.plugins import CORE, KIND_NAMES, OfferKind, Registry

TEMPLATE, SHARED = ".jinja", "shared"
_FOLDER = click.Path(path_type=Path)
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageKind:
    """A kind of package: its kind of offer, description and requirements (`parts` of Mappa and `others`)."""

    offer: OfferKind
    description: str
    parts: Sequence[str] = ()
    others: Sequence[str] = ()


PACKAGE_KINDS: Mapping[str, PackageKind] = {
    name: PackageKind(**kind)
    for name, kind in tomllib.loads(files(__name__).joinpath("kinds.toml").read_text("utf-8")).items()
}


@click.command("new")
@click.argument("kind", type=click.Choice(tuple(PACKAGE_KINDS)))
@click.argument("name")
@click.option("--in", "parent", type=_FOLDER, default=Path(), help="The folder to write into; this one by default.")
def command(kind: str, name: str, parent: Path) -> None:
    """Write a package with a new workflow, coach, tool or other offer.

    The package mappa-NAME offers a KIND called NAME. It passes its tests as it is, and is a start to write over.
    """
    folder = write_package(kind, name, parent, load_registry())
    click.echo(f"wrote {folder}\n")
    click.echo(f'  cd {folder}\n  pip install --editable ".[test]"\n  pytest')
    if kind == "workflow":
        click.echo(f"  mappa train --plugin {name}")


def write_package(kind: str, name: str, parent: Path, registry: Registry) -> Path:
    """Write the package `mappa-NAME` into `parent` and return its folder. Raises ConfigError if it cannot."""
    _check_name(kind, name, registry)
    folder = parent / f"mappa-{name}"
    if folder.exists():
        raise ConfigError(f"{folder} is there already; choose another name, or another folder by --in")
    for path, text in _files(kind, name):
        target = folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{target}: {error.strerror}; choose another folder by --in") from error
    return folder


def _check_name(kind: str, name: str, registry: Registry) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for a package: lower-case letters, digits and single dashes (my-team)")
    if name != CORE and (name in registry.plugins or name in registry.broken):
        raise ConfigError(f"a plugin {name!r} is installed already; choose another name")
    if name in (*command_names(), CORE):
        raise ConfigError(f"`mappa {name}` is a command already: those of a plugin {name!r} could not be reached")
    modules = [compile(text, path, "exec") for path, text in _files(kind, "a-new-name") if path.suffix == ".py"]
    if hasattr(builtins, title := _class_name(name)) or any(title in module.co_names for module in modules):
        raise ConfigError(f"the class of {name!r} would be {title}, a name that is taken; choose another name")
    offered: tuple[OfferKind, ...] = (PACKAGE_KINDS[kind].offer, "coaches", "tasks", "policies")
    for taken in offered if kind in ("workflow", "transport") else offered[:1]:
        if name in registry.names(taken):
            raise ConfigError(f"there is a {KIND_NAMES[taken]} {name!r} already; choose another name")


def _files(kind: str, name: str) -> Iterator[tuple[Path, str]]:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(__name__)
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    values = _values(kind, name)
    for template in loader.list_templates():
        part, _, path = template.partition("/")
        if part in (SHARED, kind) and path != f"usage.md{TEMPLATE}":
            target = path.removesuffix(TEMPLATE).replace("test_package", f"test_{values['snake']}")
            first, *rest = target.split("/")
            folder = values["package"] if first == "package" else first
            yield Path(folder, *rest), environment.get_template(template).render(values)


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


def _values(kind: str, name: str) -> dict[str, Any]:
    package_kind, snake = PACKAGE_KINDS[kind], name.replace("-", "_")
    parts, (major, minor) = ("mappa-core", *package_kind.parts), version("mappa-core").split(".")[:2]
    return {
        "kind": kind,
        "noun": KIND_NAMES[package_kind.offer],
        "name": name,
        "snake": snake,
        "title": _class_name(name),
        "distribution": f"mappa-{name}",
        "package": f"mappa_{snake}",
        "description": package_kind.description,
        "requirements": [*(f"{one}>={major}.{minor}" for one in parts), *package_kind.others],
        "tool_name": snake,
        "variable": f"{snake.upper()}_API_KEY",
    }
