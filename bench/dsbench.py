"""Training throughput of `mappa train --plugin dsbench` with warm interpreters, against itself with cold ones: every
program, the team's and the machine's, then imports pandas and scikit-learn by itself.

Both are whole runs in processes of their own, on the same tasks with the same seed, and take turns. Counted are the
iterations alone, with collecting, coaching and learning; a start, which warm interpreters make longer, and evaluations
are not. The ratio is warm by cold, in rollouts a second.

    python bench/dsbench.py [--rounds 3] [--iterations 1] [--prompts 4] [--samples 2]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from measure import parse_arguments, print_result
from train import seconds

from mappa.runs import RunReader

SIDES = {"warm": (), "cold": ("tools.python.options.preload=[]", "tools.python.options.warm_up=null")}


def throughput(folder: Path, words: tuple[str, ...]) -> float:
    """Rollouts a second of a run's iterations."""
    settings = (f"run.root={folder}", "run.name=run", "eval.problems=1", "eval.samples=1", *words)
    seconds((sys.executable, "-m", "mappa", "train", "--plugin", "dsbench", *settings), folder)
    with RunReader(folder / "run") as reader:
        iterations = list(reader.iterations)
    rollouts = sum(report.rollouts for report in iterations)
    return rollouts / sum(report.total_seconds for report in iterations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=4, help="tasks per iteration")
    parser.add_argument("--samples", type=int, default=2, help="rollouts per task")
    asked = parse_arguments(parser, rounds=1, prompts=1, samples=1)
    ratios = []
    for number in range(asked.rounds):
        speed = {}
        for side, changes in SIDES.items() if number % 2 else reversed(SIDES.items()):
            words = (
                f"seed={number}",
                f"train.iterations={asked.iterations}",
                f"train.prompts={asked.prompts}",
                f"train.samples={asked.samples}",
                *changes,
            )
            with tempfile.TemporaryDirectory(prefix="mappa-bench-") as folder:
                speed[side] = throughput(Path(folder), words)
            print(f"round {number + 1}, {side}: {speed[side]:.2f} rollouts a second", flush=True)
        ratios.append(speed["warm"] / speed["cold"])
    unit = "rollouts a second of training, warm by cold"
    print_result("dsbench", np.array(ratios), unit=unit, against="cold interpreters")


if __name__ == "__main__":
    main()
