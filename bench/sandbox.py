"""What the cage costs, and what starting warm saves.

(a) Programs that import pandas and scikit-learn, fit a model and write a file, two at a time: from a fork server that
    has imported both (its start included), against the same programs in the same cage that import for themselves.
(b) `print(1)` in the cage, without any preload, against a plain `python -c "print(1)"`, one at a time and in turns.

The ratio is (a): programs a second, warm by cold, median over rounds that take turns, and a bootstrap interval, which
is the range of three.

    python bench/sandbox.py [--rounds 3] [--warm 300] [--cold 12] [--prints 100] [--cage auto]
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
from measure import median_interval, parse_arguments, print_result

from mappa_core.records import ToolLimits
from mappa_core.tools.workspace import FolderWorkspace
from mappa_sandbox.options import Backend, PythonOptions
from mappa_sandbox.tool import PythonTool

AT_ONCE = 2
PRELOAD = ["pandas", "sklearn.ensemble"]
FIT = """
import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestRegressor

rows = np.random.default_rng(0).normal(size=(60, 4))
frame = pd.DataFrame(rows, columns=list("abcd"))
model = RandomForestRegressor(n_estimators=3, random_state=0).fit(frame[["a", "b", "c"]], frame["d"])
pd.DataFrame({"prediction": model.predict(frame[["a", "b", "c"]])}).to_csv("submission.csv", index=False)
print(len(frame))
"""
LIMITS = ToolLimits(wall_s=120.0, cpu_s=60.0, memory_bytes=2 << 30)


async def rate(programs: int, cage: Backend, preload: Sequence[str]) -> float:
    """Programs a second, the start of the tool included."""
    started = time.perf_counter()
    tool = PythonTool(PythonOptions(workers=AT_ONCE, sandbox=cage, preload=list(preload)))
    with tempfile.TemporaryDirectory() as folder:
        await tool.open()

        async def fit(number: int) -> None:
            result = await tool.call({"code": FIT}, FolderWorkspace(Path(folder, str(number))), LIMITS)
            assert (result.stdout, [change.path for change in result.files]) == ("60\n", ["submission.csv"]), result

        await asyncio.gather(*(fit(number) for number in range(programs)))
        await tool.close()
    return programs / (time.perf_counter() - started)


async def prints(count: int, cage: Backend) -> tuple[list[float], list[float]]:
    """Seconds of each `print(1)`, in the cage and plain."""
    tool = PythonTool(PythonOptions(sandbox=cage))
    caged, plain = [], []
    with tempfile.TemporaryDirectory() as folder:
        await tool.open()
        workspace = FolderWorkspace(Path(folder, "workspace"))
        for _ in range(count):
            caged.append(await _seconds(lambda: _print_caged(tool, workspace)))
            plain.append(await _seconds(lambda: asyncio.to_thread(_print_plain)))
        await tool.close()
    return caged, plain


async def _seconds(action: Callable[[], Awaitable[str]]) -> float:
    started = time.perf_counter()
    printed = await action()
    elapsed = time.perf_counter() - started
    assert printed == "1\n"
    return elapsed


async def _print_caged(tool: PythonTool, workspace: FolderWorkspace) -> str:
    return (await tool.call({"code": "print(1)"}, workspace, LIMITS)).stdout


def _print_plain() -> str:
    return subprocess.run([sys.executable, "-c", "print(1)"], capture_output=True, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm", type=int, default=300, help="programs a round from the preloaded fork server")
    parser.add_argument("--cold", type=int, default=12, help="programs a round that import for themselves")
    parser.add_argument("--prints", type=int, default=100)
    parser.add_argument("--cage", default="auto", choices=get_args(Backend))
    asked = parse_arguments(parser, rounds=1, warm=6, cold=2, prints=3)
    ratios, costs = [], []
    for place in range(asked.rounds):
        warm = asyncio.run(rate(asked.warm, asked.cage, PRELOAD))
        cold = asyncio.run(rate(asked.cold, asked.cage, ()))
        caged, plain = asyncio.run(prints(asked.prints, asked.cage))
        ratios.append(warm / cold)
        costs += list(np.array(caged) / np.array(plain))
        print(
            f"round {place + 1}: warm {warm:.2f} programs/s, cold {cold:.2f} programs/s; print(1) caged "
            f"{1000 * np.median(caged):.1f} ms, plain {1000 * np.median(plain):.1f} ms (medians)"
        )
    middle, low, high = median_interval(np.array(costs))
    print(f"print(1): {middle:.2f} [{low:.2f}, {high:.2f}] x the wall time of a plain subprocess")
    print_result("sandbox", np.array(ratios), unit="x throughput", against="cold caged programs")


if __name__ == "__main__":
    main()
