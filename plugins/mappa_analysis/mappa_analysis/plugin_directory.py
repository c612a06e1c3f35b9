"""The shipped directory of packages with plugins: what each offers, and for which version of the plugin API."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPackage:
    """A package of the directory: what it offers by kind, the plugin API that it needs, and where it is described."""

    summary: str
    api: int
    offers: dict[str, list[str]] = field(default_factory=dict)
    url: str | None = None


def read_directory() -> dict[str, ListedPackage]:
    """The listed packages by distribution. Raises msgspec.ValidationError where an entry is not of the form."""
    text = files("mappa_analysis").joinpath("plugin_directory.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=dict[str, ListedPackage])


def search_directory(words: str) -> dict[str, ListedPackage]:
    """Packages whose name, summary, or kinds and names of offers hold all words."""
    wanted = words.casefold().split()

    def text(name: str, one: ListedPackage) -> str:
        offers = (word for kind, names in one.offers.items() for word in (kind, *names))
        return " ".join((name, one.summary, *offers)).casefold()

    return {name: one for name, one in read_directory().items() if all(word in text(name, one) for word in wanted)}


def installed_version(distribution: str) -> str | None:
    """The version that is installed here; None if there is none."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
