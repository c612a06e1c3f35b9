"""A Ray of three nodes, on three addresses of this machine: whole nodes are killed, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from mappa.runs import RunReader, TrajectoryRow

from .test_training import ONE_POLICY, SMALL, assert_equal_to_the_bit, every_prompt_once

# Every loss starts all processes anew, on a machine that has little to give.
pytestmark = pytest.mark.timeout(1800)

WORKERS = ("127.0.0.2", "127.0.0.3")
START_S = 240
"""Seconds that a node may take to start."""
OPTIONS = (
    "deterministic: true, kv_cache_mb: 64, packed_tokens: 1024, placement: separate, learner_ranks: 2, samplers: 1"
)


class RayNodes:
    """Nodes of one Ray, each a family of processes with an address of its own."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.folder = Path(tempfile.mkdtemp(prefix="nodes-", dir="/tmp"))  # paths of sockets are short
        self.environment = {
            **os.environ,
            "RAY_AUTH_MODE": "disabled",  # only this machine reaches these addresses
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": str(START_S),
        }
        self._nodes: dict[str, psutil.Popen] = {}

    def open(self) -> None:
        """Start all nodes, and wait until they are there."""
        port = self.address.partition(":")[2]
        self._start("head", "--head", f"--port={port}", f"--temp-dir={self.folder}", "--include-dashboard=false")
        self._wait_for("head")
        for worker in WORKERS:  # two that start at once may take each other's ports
            self.add(worker)
            self._wait_for(worker)

    def add(self, worker: str) -> None:
        """Start a node; it joins when it is ready."""
        self._start(worker, f"--address={self.address}", f"--node-ip-address={worker}")

    def kill(self, worker: str) -> None:
        """Kill all processes of a node at once."""
        family = self.family(worker)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(family, timeout=60)
        del self._nodes[worker]

    def family(self, node: str) -> list[psutil.Process]:
        """All processes of a node."""
        head = self._nodes[node]
        return [*head.children(recursive=True), head]

    def host_of(self, pid: int) -> str | None:
        """The node of a process; None where it ended."""
        families = {node: {process.pid for process in self.family(node)} for node in self._nodes}
        return next((node for node, pids in families.items() if pid in pids), None)

    def close(self) -> None:
        for node in list(self._nodes):
            self.kill(node)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, *words: str) -> None:
        ray = Path(sys.executable).with_name("ray")
        amounts = ("--num-cpus=1", "--num-gpus=0", "--object-store-memory=100000000")
        command = [str(ray), "start", "--block", "--disable-usage-stats", *amounts, *words]
        with self._log(name).open("wb") as output:
            self._nodes[name] = psutil.Popen(command, env=self.environment, stdout=output, stderr=output)

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _wait_for(self, name: str) -> None:
        log = self._log(name)
        until = time.monotonic() + START_S
        while b"Ray runtime started" not in log.read_bytes():
            assert self._nodes[name].poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.2)


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    one = RayNodes()
    try:
        one.open()
        yield one
    finally:
        one.close()


def train(nodes: RayNodes, root: Path, name: str, *settings: str) -> Path:
    """Train on the nodes, by a program of its own, to the end; returns the folder of the run."""
    engine = f"engine={{use: cluster, options: {{address: '{nodes.address}', {OPTIONS}}}}}"
    words = [*SMALL, engine, ONE_POLICY, f"run.root={root}", f"run.name={name}", *settings]
    command = [sys.executable, "-m", "mappa", "train", "--plugin", "mathchat", *words]
    done = subprocess.run(command, env=nodes.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return root / name


def training_rows(folder: Path) -> list[TrajectoryRow]:
    with RunReader(folder) as reader:
        return [row for row in reader.trajectories if row.split == "train"]


class NodeKiller(threading.Thread):
    """Kills a node with an actor on it `times` times, each soon after the run has recorded a random number of steps, of
    `steps` at most; the node comes back once the run has noticed. Counted in steps, so that no kill comes after the end
    of a run on a fast machine."""

    def __init__(self, nodes: RayNodes, folder: Path, times: int, *, steps: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.moments: list[str] = []
        self._nodes, self._folder, self._times = nodes, folder, times
        self._random = np.random.default_rng(seed)
        self._thresholds = sorted(self._random.integers(0, steps, size=times).tolist())
        self._over = threading.Event()

    def run(self) -> None:
        seen = 0
        while len(self.moments) < self._times and not self._over.wait(0.2):
            opened = self._events("processes")
            if len(opened) == seen or self._steps() < self._thresholds[len(self.moments)]:
                continue
            self._over.wait(float(self._random.uniform(0.0, 2.0)))
            hosts = {self._nodes.host_of(process["pid"]): process["role"] for process in opened[-1].body["processes"]}
            victims = sorted(set(hosts) & set(WORKERS))
            if not victims:
                continue
            seen = len(opened)
            victim = str(self._random.choice(victims))
            lost = len(self._events("engine_lost"))
            self._nodes.kill(victim)
            self.moments.append(f"{victim} with a {hosts[victim]} after {self._steps()} steps")
            while len(self._events("engine_lost")) == lost and not self._over.wait(0.2):
                pass
            if not self._over.is_set():
                self._nodes.add(victim)

    def end(self) -> None:
        self._over.set()
        self.join()

    def _events(self, kind: str) -> list:
        if not (self._folder / "run.db").exists():
            return []
        with RunReader(self._folder) as reader:
            return reader.events(kind)

    def _steps(self) -> int:
        return sum(row.steps for row in training_rows(self._folder))


def steps_before_last(folder: Path) -> int:
    """Steps that a run recorded before its last iteration."""
    rows = training_rows(folder)
    last = max(row.iteration for row in rows)
    return sum(row.steps for row in rows if row.iteration < last)


def check_killed(nodes: RayNodes, undisturbed: Path, root: Path, *, iterations: int, kills: int, seed: int) -> None:
    killer = NodeKiller(nodes, root / "killed", kills, steps=steps_before_last(undisturbed), seed=seed)
    killer.start()
    settings = (f"train.iterations={iterations}", f"train.max_restarts={2 * kills}")
    try:
        folder = train(nodes, root, "killed", *settings)
    finally:
        killer.end()
    print("\n".join(killer.moments))
    assert len(killer.moments) == kills
    with RunReader(folder) as reader:
        assert len(reader.events("engine_lost")) >= kills
    every_prompt_once(folder, iterations)
    assert_equal_to_the_bit(undisturbed, folder, iterations)


def test_killed_node_loses_nothing(nodes, tmp_path):
    undisturbed = train(nodes, tmp_path, "undisturbed", "train.iterations=2")
    with RunReader(undisturbed) as reader:
        (event,) = reader.events("processes")
    assert sorted(process["role"] for process in event.body["processes"]) == ["learner", "learner", "sampler"]
    check_killed(nodes, undisturbed, tmp_path, iterations=2, kills=1, seed=0)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_ten_killed_nodes_lose_nothing(nodes, tmp_path):
    undisturbed = train(nodes, tmp_path, "undisturbed", "train.iterations=8")
    check_killed(nodes, undisturbed, tmp_path, iterations=8, kills=10, seed=1)
