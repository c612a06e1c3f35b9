"""What it costs to observe a log that grows: a batch of plays when the run holds many, against when it holds few.

A log gets `--plays` plays in `--batches` batches. After each one a process observes it: it imports what is new, judges
it with the coach `evidence`, and sums up the run. In the middle a fifth of these processes is killed at moments that
differ; at the end every play has to be there once, and every action to be judged once. The ratio is that of a batch
among the last fifth and one among the first, by CPU time; the last line is the median, with its interval.

    python bench/observe.py [--plays 5000] [--batches 50] [--agents 4]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
from measure import cpu_seconds, parse_arguments, print_result

from mappa.look.observe_logs import observe_logs
from mappa.runs import RunReader
from mappa.testing import load_plugins
from mappa_core.plugins import Registry


def play(number: int, agents: int) -> str:
    """A conversation as a line of a log; every third one has a sum that is wrong."""
    messages = [{"role": "user", "content": f"What is {number} times 8, and what is it used for?"}]
    for agent in range(agents):
        result = number * 8 + (number % 3 == 0 and agent == 1)
        text = f"Step {agent}: {number} * 8 = {result}. " + f"This is what agent {agent} has to say of it. " * 12
        messages.append({"role": "assistant", "name": f"agent{agent}", "content": text})
    return json.dumps({"messages": messages}) + "\n"


def observe(registry: Registry, log: Path, root: Path) -> None:
    asyncio.run(observe_logs(registry, [log], root=root))


def check(run: Path, plays: int, agents: int) -> None:
    """Raise AssertionError unless every play is there once and every action judged once."""
    with RunReader(run) as reader:
        tasks = [row.task for row in reader.trajectories]
        judged = [verdict.verdict.step for verdict in reader.verdicts]
    assert len(tasks) == len(set(tasks)) == plays, f"{len(tasks)} plays of {len(set(tasks))} tasks"
    assert len(judged) == len(set(judged)) == plays * agents, f"{len(judged)} verdicts on {len(set(judged))} actions"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plays", type=int, default=5000)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--agents", type=int, default=4)
    asked = parse_arguments(parser, plays=20, batches=10, agents=2)
    registry = load_plugins(only=("look", "evidence"))
    size, fifth = asked.plays // asked.batches, asked.batches // 5
    fork = multiprocessing.get_context("fork")
    taken: list[float] = []
    killed, typical = 0, 0.0
    with tempfile.TemporaryDirectory() as folder:
        log, root = Path(folder) / "team.jsonl", Path(folder) / "runs"
        for batch in range(asked.batches):
            with log.open("a") as file:
                file.writelines(play(batch * size + number, asked.agents) for number in range(size))
            begun, clock = cpu_seconds(), time.perf_counter()
            process = fork.Process(target=observe, args=(registry, log, root))
            process.start()
            kill = batch - (asked.batches - fifth) // 2
            if 0 <= kill < fifth:
                time.sleep(typical * (kill + 0.5) / fifth)
                process.kill()
            process.join()
            killed += process.exitcode != 0
            taken.append(cpu_seconds() - begun)
            if batch == fifth:
                typical = time.perf_counter() - clock
        (run,) = (path for path in root.iterdir() if not path.name.startswith("."))
        check(run, size * asked.batches, asked.agents)
    plays = f"{size * asked.batches:,} plays in {asked.batches} batches"
    print(f"{plays}, {killed} of them killed: every play is judged once")
    # The first batch makes the run.
    first, last = np.asarray(taken[1 : 1 + fifth]), np.asarray(taken[-fifth:])
    medians = f"{np.median(first):.2f} s at the start, {np.median(last):.2f} s at the end"
    print(f"CPU time of a batch of {size:,} plays: {medians}")
    print_result("observe", last / first, unit="CPU time of a batch", against="the first batches")


if __name__ == "__main__":
    main()
