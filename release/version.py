"""The version of all distributions, which is one: prints it, or with `python release/version.py 0.2.0` sets it.

The one place is `version` in the pyproject.toml of core. It is repeated wherever tools read a version without running
anything, and a test holds all of them equal.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[1]
VERSION = r"\d+\.\d+\.\d+(?:(?:a|b|rc)\d+)?"
PLACES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "pyproject.toml": (r'^version = "(.+)"$',),
        "mappa/pyproject.toml": (r'^version = "(.+)"$', r'"mappa(?:-[a-z]+)*(?:\[[a-z,]+\])?~=([^"]+)"'),
        "plugins/*/pyproject.toml": (r'^version = "(.+)"$', r'"mappa(?:-[a-z]+)*(?:\[[a-z,]+\])?~=([^"]+)"'),
        "CITATION.cff": (r"^version: (.+)$",),
        "docs/kubernetes.md": (r"/mappa:(\S+)",),
        "deploy/kubernetes/*.yaml": (r"/mappa:(\S+)",),
    }
)
"""Patterns of files, and in each the expressions whose group is the version."""


def found(root: Path = ROOT) -> Iterator[tuple[Path, str, int, int]]:
    """Every place: the file, the version that stands there, and where it begins and ends in the file's text.

    Raises:
        LookupError: a file, or an expression in all files of its pattern, leads nowhere.
    """
    for pattern, expressions in PLACES.items():
        files = sorted(root.glob(pattern))
        for expression in expressions:
            each = re.compile(expression, re.MULTILINE)
            places = [(file, match) for file in files for match in each.finditer(file.read_text())]
            if not places:
                raise LookupError(f"{pattern} has no version as in {expression}: mend release/version.py")
            yield from ((file, match[1], *match.span(1)) for file, match in places)


def current(root: Path = ROOT) -> str:
    """The version of core."""
    return next(version for file, version, _, _ in found(root) if file == root / "pyproject.toml")


def write(version: str, root: Path = ROOT) -> int:
    """Set `version` everywhere, and return the number of places.

    Raises:
        ValueError: it is no version.
    """
    if not re.fullmatch(VERSION, version):
        raise ValueError(f"{version!r} is no version: three numbers, as in 0.2.0, or 0.2.0rc1 before it")
    places = sorted(found(root), key=lambda place: place[2], reverse=True)
    for file, _, begin, end in places:
        text = file.read_text()
        file.write_text(f"{text[:begin]}{version}{text[end:]}")
    return len(places)


def main(arguments: list[str]) -> int:
    if not arguments:
        print(current())
        return 0
    try:
        print(f"{arguments[0]} in {write(arguments[0])} places; CHANGELOG.md wants its heading and date")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
