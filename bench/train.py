"""The whole tiny run, `mappa train --plugin mathchat`, against a rival that learns the same.

That is a bare script, bare_train.py, or with `--against uncaged` the same run with programs that are not caged.

Both are processes of their own, from start to end, and take turns. Both have the recipe's tasks, prompts, models, tool,
coach and numbers, and one thread for torch; the script has no stage, store, collector or checkpoints, and draws other
random numbers. Measured are wall time, and user and system time with all children. The ratios are ours by theirs:
median over the rounds, and a bootstrap interval of it, which is the range of three. Accuracy before and after shows
that both learn.

    python bench/train.py [--rounds 3] [--iterations 60] [--prompts N] [--problems N] [--against bare|uncaged]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np
from measure import median_interval, parse_arguments, print_result
from numpy.typing import NDArray

from mappa.config.compose import compose
from mappa_core.plugins import load_plugins

BARE = Path(__file__).resolve().parent / "bare_train.py"
KNOWN = {
    "tasks.use": "words",
    "workflow.use": "mathchat",
    "workflow.options.feedback": False,
    "coach.use": "mathchat-rules",
    "coach.reward": {"live": 1.0},
    "shapers.0.use": "scale",
    "estimator.use": "reinforce_plus_plus",
    "estimator.options.normalize": "policy",
    "loss.use": "ppo",
    "loss.options.kl": "none",
    "loss.options.dual_clip": None,
    "train.epochs": 1,
    "train.minibatch_rows": None,
    "train.schedule": "constant",
    "train.mean": "token",
    "train.entropy_coef": 0.0,
    "train.dynamic_sampling": 0,
    "train.correction.kind": "none",
    "eval.samples": 1,
}
"""What the bare script takes for granted instead of reading it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one process took, in seconds, and its held-out accuracy before and after."""

    wall: float
    cpu: float
    before: float
    after: float


def recipe(words: Sequence[str]) -> str:
    """The recipe that both follow, as the bare script reads it."""
    composed = compose(load_plugins(), plugin="mathchat", overrides=words)
    for key, known in KNOWN.items():
        chosen = composed.settings.at(key)
        if chosen is None or chosen.plain != known:
            raise SystemExit(f"{BARE.name} knows no other {key} than {known!r}")
    return json.dumps({"config": composed.document})


def ours(folder: Path, words: Sequence[str]) -> Taken:
    settings = (f"run.root={folder}", "run.name=run", *words)
    command = (sys.executable, "-m", "mappa", "train", "--plugin", "mathchat", *settings)
    wall, cpu = seconds(command, folder)
    evaluated = json.loads((folder / "run" / "summary.json").read_text("utf-8"))["eval"]
    return Taken(wall=wall, cpu=cpu, before=evaluated["before"]["mean"], after=evaluated["after"]["mean"])


def uncaged(folder: Path, words: Sequence[str]) -> Taken:
    return ours(folder, ("tools.python.options.sandbox=none", "tools.python.options.allow_unsafe=true", *words))


def bare(folder: Path, words: Sequence[str]) -> Taken:
    wall, cpu = seconds((sys.executable, str(BARE)), folder, recipe(words))
    return Taken(wall=wall, cpu=cpu, **json.loads((folder / "stdout").read_text("utf-8")))


def seconds(command: Sequence[str], folder: Path, read: str = "") -> tuple[float, float]:
    """Wall and CPU time of a process and all its children. It gets `read` on stdin; what it prints lies in `folder`."""
    stdin, stdout, stderr = (folder / name for name in ("stdin", "stdout", "stderr"))
    stdin.write_text(read, "utf-8")
    begun = time.perf_counter()
    with stdin.open() as source, stdout.open("w") as out, stderr.open("w") as err:
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdin=source, stdout=out, stderr=err, cwd=folder, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{stderr.read_text('utf-8')}\nexit code {process.returncode} of: {' '.join(command)}")
    return wall, usage.ru_utime + usage.ru_stime


RIVALS = {
    "bare": (bare, "a bare script with the same tool, transformers and torch"),
    "uncaged": (uncaged, "the same run with programs that are not caged"),
}


def measure(rounds: int, words: Sequence[str], rival: str) -> list[tuple[Taken, Taken]]:
    """What ours and the rival took in every round."""
    taken = []
    for number in range(rounds):
        pair = {}
        sides = (("ours", ours), (rival, RIVALS[rival][0]))
        for name, side in sides if number % 2 else reversed(sides):
            with tempfile.TemporaryDirectory(prefix="mappa-bench-") as folder:
                one = side(Path(folder), words)
            accuracy = f"held-out {one.before:.1%} -> {one.after:.1%}"
            print(f"round {number + 1}, {name}: {one.wall:.1f} s wall, {one.cpu:.1f} s CPU, {accuracy}", flush=True)
            pair[name] = one
        taken.append((pair["ours"], pair[rival]))
    return taken


def ratios(taken: Sequence[tuple[Taken, Taken]], quantity: str) -> NDArray[np.float64]:
    """Ours by theirs in every round."""
    read = attrgetter(quantity)
    return np.array([read(one) / read(other) for one, other in taken])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, help="shorter runs than the recipe's, for a first look")
    parser.add_argument("--prompts", type=int, help="tasks an iteration, other than the recipe's")
    parser.add_argument("--problems", type=int, help="held-out problems, other than the recipe's")
    parser.add_argument("--against", choices=RIVALS, default="bare")
    asked = parse_arguments(parser, rounds=1, iterations=1, prompts=4, problems=8)
    changes = {"train.iterations": asked.iterations, "train.prompts": asked.prompts, "eval.problems": asked.problems}
    words = [f"{key}={value}" for key, value in changes.items() if value is not None]
    taken = measure(asked.rounds, words, asked.against)
    wall, cpu = ratios(taken, "wall"), ratios(taken, "cpu")
    print(f"ours {np.median([one.wall for one, _ in taken]):.0f} s wall")
    middle, low, high = median_interval(cpu)
    print(f"CPU time, ours by theirs: {middle:.3f} [{low:.3f}, {high:.3f}]")
    unit = "wall time of the whole run, ours by theirs"
    print_result("train", wall, unit=unit, against=RIVALS[asked.against][1])


if __name__ == "__main__":
    main()
