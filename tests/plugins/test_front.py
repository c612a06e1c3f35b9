"""`import mappa_core`: what it holds, and that it costs nothing."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import mappa_core

FAMILIES = (
    *(f"mappa_core.{name}" for name in ("coach", "data", "engine", "sandbox", "transport", "workflow")),
    *(f"mappa.{name}" for name in ("commands", "judging", "runs", "sessions", "statistics")),
)


def names_of(text: str) -> list[str]:
    """Names that a list of exports has, in its order."""
    froms = (node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom))
    return [alias.asname for node in froms for alias in node.names if alias.asname == alias.name]


@pytest.mark.parametrize("name", sorted(mappa_core.__all__))
def test_every_name_is_there(name):
    assert getattr(mappa_core, name) is not None
    assert name in dir(mappa_core)


def test_the_front_has_at_most_60_names_from_one_list():
    stub = Path(mappa_core.__file__).with_suffix(".pyi").read_text()
    assert sorted(mappa_core.__all__) == sorted(names_of(stub))
    assert len(mappa_core.__all__) <= 60


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_names_of_its_own(family):
    module = importlib.import_module(family)
    names = names_of(Path(module.__file__).read_text())
    assert names and len(set(names)) == len(names)
    assert all(getattr(module, name) is not None for name in names)


def test_the_version_is_that_of_the_distribution():
    assert mappa_core.__version__ == version("mappa-core")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Taks"):
        mappa_core.Taks  # noqa: B018


def test_importing_the_front_imports_no_room():
    program = "import sys, mappa_core; print([name for name in sys.modules if name.startswith('mappa_core.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
