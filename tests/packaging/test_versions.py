"""One version for all distributions, wherever it is repeated, and one command that changes it."""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECTS = [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]


@pytest.fixture
def version(monkeypatch) -> Iterator[ModuleType]:
    """`release/version.py`, as the scripts beside it import it."""
    monkeypatch.syspath_prepend(ROOT / "release")
    import version

    yield version
    del sys.modules["version"]


def project(file: Path) -> dict:
    return tomllib.loads(file.read_text())["project"]


def requirements(file: Path) -> list[Requirement]:
    """What a distribution needs, extras included."""
    table = project(file)
    extras = table.get("optional-dependencies", {}).values()
    return [Requirement(one) for one in (*table["dependencies"], *(one for extra in extras for one in extra))]


def test_every_place_has_the_version_of_core(version):
    assert {found for _, found, _, _ in version.found()} == {project(ROOT / "pyproject.toml")["version"]}
    assert {file for file, *_ in version.found()} >= set(PROJECTS)


@pytest.mark.parametrize("file", PROJECTS[1:], ids=lambda file: file.parent.name)
def test_a_plugin_takes_only_cores_that_it_was_released_with(file):
    own = project(ROOT / "pyproject.toml")["version"]
    ours = [one for one in requirements(file) if one.name.startswith("mappa-")]
    assert "mappa-core" in {one.name for one in ours}
    assert {str(one.specifier) for one in ours} == {f"~={own}"}


@pytest.mark.parametrize("new", ["9.8.7", "9.8.7rc1"])
def test_one_command_changes_all_of_them_and_nothing_else(version, tmp_path, new):
    files = {file for file, *_ in version.found()}
    for file in files:
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    old = version.current()
    count = version.write(new, tmp_path)
    assert {found for _, found, _, _ in version.found(tmp_path)} == {new} and version.current(tmp_path) == new
    assert count == len(list(version.found()))
    for file in files:
        copy = tmp_path / file.relative_to(ROOT)
        places = sum(one == file for one, *_ in version.found())
        assert copy.read_text().count(new) == places
        assert len(copy.read_text()) - len(file.read_text()) == places * (len(new) - len(old))
    for file in PROJECTS[1:]:
        changed = requirements(tmp_path / file.relative_to(ROOT))
        assert all(one.specifier.contains(new, prereleases=True) for one in changed if one.name.startswith("mappa-"))


@pytest.mark.parametrize("new", ["1.0", "v1.0.0", "1.0.0-beta", "", "0.2.0\n"])
def test_what_is_no_version_is_refused(version, tmp_path, new):
    with pytest.raises(ValueError, match="is no version"):
        version.write(new, tmp_path)


def test_a_place_that_is_gone_is_named(version, tmp_path):
    with pytest.raises(LookupError, match=r"pyproject\.toml has no version"):
        list(version.found(tmp_path))
