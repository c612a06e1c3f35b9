"""`mappa new`: a package with one offer, complete: code, tests, README, CI, and for a workflow prompts and a recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from mappa_core.cli.main import COMMANDS
from mappa_core.cli.options import load_registry
from mappa_core.errors import ConfigError
from mappa_core.plugins import CORE, NOUNS, Kind, Registry

TEMPLATE, SHARED = ".jinja", "shared"
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort:
    """What `mappa new` can make: the kind of offer, what the package says of itself, and what it needs."""

    offer: Kind
    description: str
    requires: str = "mappa-core"
    others: tuple[str, ...] = ()


SORTS: Mapping[str, Sort] = {
    "workflow": Sort(
        offer="workflows",
        description="A team of agents for Mappa, its tasks and its coach.",
        requires="mappa-core[train]",
    ),
    "coach": Sort(offer="coaches", description="A coach for Mappa: judges each action of a team."),
    "transport": Sort(
        offer="transports",
        description="A provider for Mappa: asked as a coach, or as a policy behind an API.",
        others=("aiohttp>=3.10",),
    ),
    "tool": Sort(offer="tools", description="A tool for Mappa that agents can call."),
    "shaper": Sort(offer="shapers", description="A shaper for Mappa: verdicts to rewards."),
    "estimator": Sort(offer="estimators", description="An advantage estimator for Mappa.", others=("numpy>=1.26",)),
}


@click.command("new")
@click.argument("kind", type=click.Choice(tuple(SORTS)))
@click.argument("name")
@click.option(
    "--in",
    "parent",
    type=click.Path(path_type=Path),
    default=Path(),
    help="The folder to write into; here, unless given.",
)
def command(kind: str, name: str, parent: Path) -> None:
    """Write a package that offers a new workflow, coach, transport, tool, shaper or estimator NAME.

    It passes its tests as it is, and is a start to write over.
    """
    folder = write_package(kind, name, parent, load_registry())
    click.echo(f"wrote {folder}\n")
    click.echo(f'  cd {folder}\n  pip install --editable ".[test]"\n  pytest')
    if kind == "workflow":
        click.echo(f"  mappa train --plugin {name}")


def write_package(kind: str, name: str, parent: Path, registry: Registry) -> Path:
    """Write the package `mappa-NAME` into `parent` and return its folder. Raises ConfigError where it cannot be."""
    _check_name(kind, name, registry)
    folder = parent / f"mappa-{name}"
    if folder.exists():
        raise ConfigError(f"{folder} is there already; choose another name, or another folder by --in")
    for path, text in _files(kind, name):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


def _check_name(kind: str, name: str, registry: Registry) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name for a package: lower-case letters, digits and single dashes, as in my-team"
        )
    if name in (*COMMANDS, CORE):
        raise ConfigError(
            f"`mappa {name}` is a command of core, so the commands of a plugin {name!r} could not be reached"
        )
    if name in registry.plugins or name in registry.broken:
        raise ConfigError(f"a plugin {name!r} is installed already; choose another name")
    offered: tuple[Kind, ...] = (SORTS[kind].offer, "coaches", "tasks", "policies")
    for taken in offered if kind in ("workflow", "transport") else offered[:1]:
        if name in registry.names(taken):
            raise ConfigError(f"there is a {NOUNS[taken]} {name!r} already; choose another name")


def _files(kind: str, name: str) -> Iterator[tuple[Path, str]]:
    """Paths in the package, and what stands there."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(__name__)
    environment = Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    values = _values(kind, name)
    for template in loader.list_templates():
        part, _, path = template.partition("/")
        if part in (SHARED, kind) and path != f"usage.md{TEMPLATE}":
            placed = path.removesuffix(TEMPLATE).replace("test_package", f"test_{values['snake']}")
            yield _placed(placed, values["package"]), environment.get_template(template).render(values)


def _placed(path: str, package: str) -> Path:
    first, *rest = path.split("/")
    return Path(package if first == "package" else first, *rest)


def _values(kind: str, name: str) -> dict[str, Any]:
    """What the templates are filled with."""
    sort, snake = SORTS[kind], name.replace("-", "_")
    major, minor = version("mappa-core").split(".")[:2]
    return {
        "kind": kind,
        "noun": NOUNS[sort.offer],
        "name": name,
        "snake": snake,
        "title": "".join(word.capitalize() for word in name.split("-")),
        "distribution": f"mappa-{name}",
        "package": f"mappa_{snake}",
        "description": sort.description,
        "requirements": [f"{sort.requires}>={major}.{minor}", *sort.others],
        "tool_name": snake,
        "variable": f"{snake.upper()}_API_KEY",
    }
