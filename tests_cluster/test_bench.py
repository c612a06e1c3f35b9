"""The benchmark that needs Ray and vLLM runs and ends with its line of JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SYNC = Path(__file__).parents[1] / "bench" / "sync.py"


def test_the_benchmark_of_publishes_runs_and_ends_with_its_result():
    done = subprocess.run([sys.executable, SYNC, "--quick"], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["bench"] == "sync" and 0 < result["low"] <= result["ratio"] <= result["high"]
