"""What `mappa view` costs a run that it is looked at: commits of the store with a viewer that polls, against without.

A run is recorded by `stores.py`, far faster than any run goes. In every other block of commits another process asks a
viewer for all its pages over that run, each as often as a browser that shows it would (every 3 seconds), for several
readers at once. The first line counts what came of the requests: an error of a lock would be an answer that is no page.
The ratio is that of the 99th percentiles of a commit with polling and without, a pair of neighbouring blocks at a time;
the last line is their median, with its interval.

    python bench/view_live.py [--blocks 24] [--rollouts 40] [--readers 3]
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from urllib.parse import quote

import numpy as np
from measure import parse_arguments, print_result
from starlette.testclient import TestClient
from stores import ROLLOUTS, fill, trajectory

from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa.store.folder import RunFolder
from mappa_core.records import Verdict

POLL_S = 3.0


def poll(
    run: Path, one: str, readers: int, polls: Event, ends: Event, answered: Synchronized[int], wrong: Synchronized[int]
) -> None:
    """Ask for all pages as open browsers do, for as long as `polls` is set."""
    client = TestClient(create_app(RunFolders([run]), token="bench"), base_url="http://127.0.0.1")
    client.get("/?token=bench")
    here = f"/runs/{run.name}"
    pages = [
        "/", f"{here}/trajectories", f"{here}/newer?after=3", f"{here}/trajectory?id={quote(one, safe='')}",
        f"{here}/coach", f"{here}/policies",
    ]  # fmt: skip
    while not ends.is_set():
        if not polls.wait(0.05):
            continue
        for page in pages * readers:
            status = client.get(page).status_code
            answered.value += 1
            wrong.value += status not in (200, 204)
            time.sleep(POLL_S / len(pages) / readers)
            if not polls.is_set():
                break


def commits(folder: RunFolder, block: int, rollouts: int) -> list[float]:
    """Seconds of every commit of a step, a verdict and an end, while trajectories are recorded."""
    store, taken = folder.store, []
    for number in range(rollouts):
        one = trajectory(block, 10_000 + block, number)
        by_step: dict[str, list[Verdict]] = {}
        for verdict in one.verdicts:
            by_step.setdefault(verdict.step, []).append(verdict)
        store.begin_trajectory("train", one.id, one.task, one.sample, one.iteration)
        for step in one.steps:
            started = time.perf_counter()
            store.record_step(one.id, step)
            taken.append(time.perf_counter() - started)
            for verdict in by_step.get(step.id, ()):
                started = time.perf_counter()
                store.record_verdict(verdict)
                taken.append(time.perf_counter() - started)
            time.sleep(0.002)
        started = time.perf_counter()
        store.end_trajectory(one)
        taken.append(time.perf_counter() - started)
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--rollouts", type=int, default=40)
    parser.add_argument("--readers", type=int, default=3)
    asked = parse_arguments(parser, blocks=4, rollouts=4, readers=1)
    spawn = multiprocessing.get_context("spawn")
    polls, ends, answered, wrong = spawn.Event(), spawn.Event(), spawn.Value("q", 0), spawn.Value("q", 0)
    with tempfile.TemporaryDirectory() as root:
        run = fill(Path(root), "live", ROLLOUTS * 12)
        one = trajectory(0, 0, 0).id
        watcher = spawn.Process(target=poll, args=(run, one, asked.readers, polls, ends, answered, wrong))
        watcher.start()
        tails: dict[bool, list[float]] = {False: [], True: []}
        with RunFolder.open(run) as folder:
            commits(folder, 0, asked.rollouts)
            for block in range(1, asked.blocks + 1):
                polled = block % 4 in (0, 1)  # with, without, without, with: pairs of neighbours, neither always first
                if polled:
                    polls.set()
                else:
                    polls.clear()
                time.sleep(0.5)
                tails[polled].append(float(np.percentile(commits(folder, block, asked.rollouts), 99)))
        ends.set()
        polls.clear()
        watcher.join(60)
    assert watcher.exitcode == 0, "the viewer raised"
    print(f"{answered.value} requests, {wrong.value} of them not answered with a page")
    for polled, found in tails.items():
        how = "with" if polled else "without"
        print(f"p99 of a commit {how} polling: {1e3 * np.median(found):.2f} ms (median of blocks)")
    ratios = np.asarray(tails[True]) / np.asarray(tails[False])
    print_result("view_live", ratios, unit="p99 of a commit", against="the same without a viewer")


if __name__ == "__main__":
    main()
