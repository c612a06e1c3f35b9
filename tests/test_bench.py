"""Every benchmark runs and ends with its line of JSON; `--quick` measures nothing that means anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[1] / "bench"
HELPERS = {"bare_train", "measure", "scenes", "speed", "stores", "tiny_model"}
"""Modules that benchmarks import or start, or that start them."""
RIVALS = {"coach", "rollout"}
"""Benchmarks whose rivals `make bench` installs into .venv-bench."""
CLUSTER = {"sync", "train_shape"}
"""Benchmarks that need Ray and vLLM; tests_cluster runs them."""
NAMES = sorted({path.stem for path in BENCH.glob("*.py")} - HELPERS - CLUSTER)
PEER_PYTHON = BENCH.parent / ".venv-bench" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                name in RIVALS and not PEER_PYTHON.exists(), reason="`make bench` installs its rivals into .venv-bench"
            ),
        )
        for name in NAMES
    ],
)
def test_a_benchmark_runs_and_ends_with_its_result(name):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, BENCH / f"{name}.py", "--quick"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result.keys() == {"bench", "ratio", "low", "high", "unit", "against"}
    assert result["bench"] == name and 0 < result["low"] <= result["ratio"] <= result["high"]
