"""A run in hostile words, for tests of what shows runs."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from mappa.cli import formats
from mappa.cli import tables as tables_module
from mappa.cli.run_result import show_run_result
from mappa.commands import Console
from mappa.runs import Evaluation
from mappa.training.run import TrainResult


def _load(name: str, path: Path) -> ModuleType:
    """A module that is no part of a package."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


_load("browser", Path(__file__).parent / "browser.py")
stores = _load("stores", Path(__file__).parents[3] / "bench" / "stores.py")


@pytest.fixture(scope="session")
def _hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stores.fill(tmp_path_factory.mktemp("hostile"), "hostile", 800)


@pytest.fixture(scope="module")
def root(_hostile: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `hostile` of 800 steps, written once for all tests."""
    root = tmp_path_factory.mktemp("runs")
    shutil.copytree(_hostile, root / "hostile")
    return root


@pytest.fixture
def tables() -> ModuleType:
    """What makes the tables that commands print."""
    return tables_module


@pytest.fixture
def printed_mean() -> Callable[[Evaluation], str]:
    """The mean of an evaluation with its interval, as commands print it."""
    return lambda evaluation: formats.format_share(evaluation.interval)


@pytest.fixture
def show_result() -> Callable[[Console, TrainResult], None]:
    """What `mappa train` prints at the end."""
    return show_run_result
