"""The benchmarks that need Ray and vLLM run and end with their line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
TRL_PYTHON = BENCH.parent / ".venv-trl" / "bin" / "python"


@pytest.mark.parametrize(
    "words",
    [
        ("sync",),
        ("real_model", "--engine", "cluster"),
        pytest.param(
            ("train_shape",),
            marks=pytest.mark.skipif(
                not TRL_PYTHON.exists(), reason="`make test-trl` installs its peer into .venv-trl"
            ),
        ),
    ],
)
def test_a_benchmark_runs_and_ends_with_its_result(words):
    name, *options = words
    command = [sys.executable, BENCH / f"{name}.py", *options, "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["bench"] == name and 0 < result["low"] <= result["ratio"] <= result["high"]
