"""A run in hostile words and an imported one, for tests of what shows runs."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mappa.cli import formats, main
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


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An imported run, judged: of four trips the first fails by a sum of the budgeter, the second by its tool, and the
    third by both."""
    folder = tmp_path_factory.mktemp("imported")
    plays = ("0", "260"), ("503 Service Unavailable", "240"), ("503 Service Unavailable", "260"), ("0", "240")
    lines = [json.dumps(_trip(number, *play)) for number, play in enumerate(plays)]
    (folder / "trips.jsonl").write_text("\n".join(lines))
    read = ["import", str(folder / "trips.jsonl"), "--task-id", "id", "--outcome", "solved"]
    assert main([*read, "--root", str(folder), "--name", "trips"]) == 0
    assert main(["judge", str(folder / "trips"), "--coach", "evidence"]) == 0
    return folder / "trips"


def _trip(number: int, answer: str, total: str) -> dict[str, Any]:
    """A play of three agents whose tool answers `answer`, and which adds 120 and 120 to `total`."""
    name = "researcher_of_flights_and_hotels"
    call = {"id": "c", "type": "function", "function": {"name": "search_flights", "arguments": '{"to": "Oslo"}'}}
    failed = answer.startswith("503")
    return {
        "id": f"trip-{number}",
        "solved": float(not failed and total == "240"),
        "messages": [
            {"role": "user", "content": "Plan a weekend in Oslo for two people who like museums, below 600 euros"},
            {"role": "assistant", "name": "planner", "content": "First the flight, then the sum."},
            {"role": "assistant", "name": name, "content": "I search.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": f"Error: HTTP {answer}" if failed else "120 euros"},
            {"role": "assistant", "name": name, "content": "The flight costs 120 euros."},
            {"role": "assistant", "name": "budgeter", "content": f"120 + 120 = {total} euros."},
        ],
    }


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
