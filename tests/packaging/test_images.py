"""The Dockerfiles, as far as they can be held to something without a registry of images: what they copy and install is
there, every package that it needs is pinned to a version that it takes, and programs do not run as root."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
IMAGES = sorted(ROOT.glob("deploy/**/Dockerfile"))
INSTRUCTIONS = {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}


def instructions(path: Path) -> list[tuple[str, str]]:
    """The instructions with their words, without comments, continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, words) for name, _, words in (line.partition(" ") for line in joined.splitlines())]


def installs(path: Path) -> Iterator[list[str]]:
    """The arguments of every `pip install`."""
    for name, words in instructions(path):
        for command in words.split("&&"):
            if name == "RUN" and shlex.split(command)[:2] == ["pip", "install"]:
                yield shlex.split(command)[2:]


def pins(file: Path) -> dict[str, Version]:
    found = re.findall(r"^([\w.-]+)==(\S+)", file.read_text(), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in found}


def requirements(folder: Path, extras: set[str]) -> list[Requirement]:
    """What a distribution of the project needs for Python 3.11 on Linux, with these extras."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    optional = project.get("optional-dependencies", {})
    assert extras <= {*optional}, f"{folder.name} has no extra {extras - {*optional}}"
    named = [
        Requirement(one) for one in (*project["dependencies"], *(one for extra in extras for one in optional[extra]))
    ]
    return [one for one in named if one.marker is None or one.marker.evaluate({"extra": ""})]


def distributions(words: list[str]) -> dict[str, tuple[Path, set[str]]]:
    """The folders of the project that are installed, with their extras, by the name of their distribution."""
    found = {}
    for word in words:
        if match := re.fullmatch(r"(/src(?:/mappa)?|\./\w+)(?:\[([\w,]+)\])?", word):
            folder = (
                ROOT / match[1].removeprefix("/src").lstrip("/")
                if match[1].startswith("/src")
                else ROOT / "plugins" / match[1]
            )
            project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
            found[project["name"]] = folder, {*(match[2] or "").split(",")} - {""}
    return found


def test_there_is_one_for_cpus_and_one_for_gpus():
    assert [path.parent.name for path in IMAGES] == ["cpu", "kubernetes"]


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.parent.name)
def test_an_image_is_fixed_and_does_not_run_as_root(path):
    found = instructions(path)
    assert found[0][0] == "FROM" and {name for name, _ in found} <= INSTRUCTIONS
    assert re.fullmatch(r"[\w./-]+:[\w.-]*\d[\w.-]*", found[0][1]), "a tag with a version"
    assert [words for name, words in found if name == "USER"] == ["mappa"]
    assert [words for name, words in found if name == "COPY"] == [". /src"]


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.parent.name)
def test_an_image_is_built_from_the_pins(path):
    (project,) = [words for words in installs(path) if "/src" in words]
    constraints = ROOT / Path(project[project.index("--constraint") + 1]).relative_to("/src")
    pinned, own = pins(constraints), distributions(project)
    assert len(own) == len(project) - 3, "options and folders of the project, and nothing else"
    for folder, extras in own.values():
        for needed in requirements(folder, extras):
            if needed.name == "mappa" or needed.name.startswith("mappa-"):
                assert needed.name in own, f"{folder.name} needs {needed}, which is not copied in"
            else:
                version = pinned.get(canonicalize_name(needed.name))
                assert version is not None, f"{folder.name} needs {needed}, which {constraints.name} does not pin"
                assert needed.specifier.contains(version), f"{needed} and {constraints.name}: {version}"
    for words in installs(path):
        for name, version in re.findall(r"(\w+)==(\S+)", " ".join(words)):
            assert pinned[name] == Version(version)


def test_the_image_of_kubernetes_takes_jobs():
    """KubeRay sends a RayJob to Ray's dashboard and asks it for signs of life: `ray` alone starts it without either."""
    (path,) = (path for path in IMAGES if path.parent.name == "kubernetes")
    assert any("ray[default]" in words for words in installs(path))
