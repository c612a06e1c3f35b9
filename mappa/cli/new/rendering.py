"""Packages as text: what the templates give for a kind of offer and a name."""

from __future__ import annotations

import builtins
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mappa.cli.command_group import command_names
from mappa_core.errors import ConfigError
from mappa_core.plugins import CORE, KIND_NAMES, OfferKind, Registry

if TYPE_CHECKING:
    from jinja2 import Environment

_PACKAGE = "mappa.cli.new"
TEMPLATE, SHARED = ".jinja", "shared"
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
    for name, kind in tomllib.loads(files(_PACKAGE).joinpath("kinds.toml").read_text("utf-8")).items()
}


def write_package(kind: str, name: str, parent: Path, registry: Registry) -> Path:
    """Write the package `mappa-NAME` into `parent` and return its folder. Raises ConfigError if it cannot."""
    check_offer_name(kind, name, registry)
    return write_files(parent / f"mappa-{name}", render_package(kind, values_of(kind, name)))


def write_files(folder: Path, rendered: Iterable[tuple[Path, str]]) -> Path:
    """Write the files of a new folder, and return it. Raises ConfigError if it is there, or cannot be written."""
    if folder.exists():
        raise ConfigError(f"{folder} is there already; choose another name, or another folder by --in")
    for path, text in rendered:
        target = folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{target}: {error.strerror}; choose another folder by --in") from error
    return folder


def check_package_name(name: str, registry: Registry) -> None:
    """Raise ConfigError if no plugin can be called so."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name for a package: lower-case letters, digits and single dashes (my-team)")
    if name != CORE and (name in registry.plugins or name in registry.broken):
        raise ConfigError(f"a plugin {name!r} is installed already; choose another name")
    if name in (*command_names(), CORE):
        raise ConfigError(f"`mappa {name}` is a command already: those of a plugin {name!r} could not be reached")


def check_offer_name(kind: str, name: str, registry: Registry) -> None:
    """Raise ConfigError if no plugin, or no offer of the kind, can be called so."""
    check_package_name(name, registry)
    rendered = render_package(kind, values_of(kind, "a-new-name"))
    modules = [compile(text, path, "exec") for path, text in rendered if path.suffix == ".py"]
    if hasattr(builtins, title := class_name(name)) or any(title in module.co_names for module in modules):
        raise ConfigError(f"the class of {name!r} would be {title}, a name that is taken; choose another name")
    offered: tuple[OfferKind, ...] = (PACKAGE_KINDS[kind].offer, "coaches", "tasks", "policies")
    for taken in offered if kind in ("workflow", "transport") else offered[:1]:
        if name in registry.names(taken):
            raise ConfigError(f"there is a {KIND_NAMES[taken]} {name!r} already; choose another name")


def render_package(
    kind: str, values: Mapping[str, Any], parts: Sequence[str] = (SHARED,)
) -> Iterator[tuple[Path, str]]:
    """The files of a package of a kind, with those of other `parts` of the templates, by their path in its folder."""
    environment = _environment()
    for template in environment.list_templates():
        part, _, path = template.partition("/")
        if part in (*parts, kind) and path != f"usage.md{TEMPLATE}":
            target = path.removesuffix(TEMPLATE).replace("test_package", f"test_{values['snake']}")
            first, *rest = target.split("/")
            folder = values["package"].replace(".", "/") if first == "package" else first
            yield Path(folder, *rest), environment.get_template(template).render(values)


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader(_PACKAGE)
    return Environment(loader=loader, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)


def class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


def values_of(kind: str, name: str) -> dict[str, Any]:
    """What the templates of a kind of offer say in their places."""
    package_kind, snake = PACKAGE_KINDS[kind], name.replace("-", "_")
    parts, (major, minor) = ("mappa-core", *package_kind.parts), version("mappa-core").split(".")[:2]
    return {
        "kind": kind,
        "noun": KIND_NAMES[package_kind.offer],
        "name": name,
        "snake": snake,
        "title": class_name(name),
        "distribution": f"mappa-{name}",
        "package": f"mappa_{snake}",
        "description": package_kind.description,
        "requirements": [*(f"{one}>={major}.{minor}" for one in parts), *package_kind.others],
        "tool_name": snake,
        "variable": f"{snake.upper()}_API_KEY",
    }


def usage_of(kind: str, values: Mapping[str, Any]) -> str:
    """What the README of a package says of the use of an offer."""
    return _environment().get_template(f"{kind}/usage.md{TEMPLATE}").render(values)
