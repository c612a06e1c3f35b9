"""Whole runs: who samples and who learns, that weights agree after every publish, and that nothing is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from mappa.runs import RunReader
from mappa.sessions import compose
from mappa.store import checkpoint
from mappa.testing import load_plugins
from mappa.training.examples import Example
from mappa.training.run import Run
from mappa.training.warm_start import WarmStart
from mappa_core import Message
from mappa_core.files import fsync_path
from mappa_engine.checkpoint import WEIGHTS_FILE, StoredTensors
from mappa_engine.cluster.samplers.remote_engine import HANG_S, POLL_S

# Every test starts all processes anew, some three times: minutes where a machine has other work, too.
pytestmark = pytest.mark.timeout(900)

SMALL = (
    "train.prompts=8",
    "eval.problems=8",
    "checkpoint.every=1",
    "train.micro_tokens=2048",
    "train.correction.kind=truncate",
)
ROLLOUTS = 16
"""Of one iteration: two of every prompt."""
CLUSTER = (
    "engine={use: cluster, options: {deterministic: true, kv_cache_mb: 64, packed_tokens: 1024, learner_ranks: 2}}"
)
ONE_POLICY = "agents={problem_solver: {policy: team}, code_executor: {policy: team}, verifier: {policy: team}}"
CANARY = "sk-canary-that-no-worker-may-see"


def run(root: Path, name: str, *words: str) -> Run:
    return Run.from_recipe("mathchat/tiny", *SMALL, CLUSTER, f"run.root={root}", f"run.name={name}", *words)


class SlowDisk:
    """A file system that syncs the first policy of a run's first checkpoint only when all rollouts of the second
    iteration are recorded, and no sooner than `delay_s`."""

    def __init__(self, folder: Path, *, delay_s: float = 0.0) -> None:
        self.recorded: int | None = None
        """Rollouts of the second iteration that were recorded when the disk was done; None before."""
        self._folder, self._delay_s = folder, delay_s

    def sync(self, path: Path) -> None:
        if path.name == WEIGHTS_FILE and self.recorded is None:
            begun = time.monotonic()
            while self._count() < ROLLOUTS and time.monotonic() < begun + 240.0:
                time.sleep(0.1)
            time.sleep(max(0.0, begun + self._delay_s - time.monotonic()))
            self.recorded = self._count()
        fsync_path(path)

    def _count(self) -> int:
        with RunReader(self._folder) as reader:
            return len(list(reader.trajectories.where(split="train", iteration=1)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three policies with weights of their own, two iterations, two ranks of learners, a slow disk; and what the
    environments of all processes held meanwhile."""
    os.environ["OPENAI_API_KEY"] = CANARY
    seen: dict[int, str] = {}
    watching = threading.Event()

    def watch() -> None:
        while not watching.wait(0.2):
            for process in [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]:
                try:
                    parents = (process / "cmdline").read_bytes()
                    if b"ray" in parents:
                        seen[int(process.name)] = (process / "environ").read_bytes().decode(errors="replace")
                except OSError:
                    continue

    root = tmp_path_factory.mktemp("runs")
    disk, thread = SlowDisk(root / "three"), threading.Thread(target=watch)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoint, "fsync_path", disk.sync)
            outcome = run(root, "three", "train.iterations=2").train()
    finally:
        watching.set()
        thread.join()
        del os.environ["OPENAI_API_KEY"]
    return outcome, seen, disk


def test_samplers_and_learners_are_separate_processes(trained):
    outcome, _, _ = trained
    with RunReader(outcome.folder) as reader:
        (event,) = reader.events("processes")
    processes = event.body["processes"]
    assert Counter(process["role"] for process in processes) == {"learner": 2, "sampler": 3}
    pids = [process["pid"] for process in processes]
    assert len(set(pids)) == 5 and os.getpid() not in pids
    libraries = {process["role"]: set(process["versions"]) for process in processes}
    assert {"ray", "deepspeed", "torch"} <= libraries["learner"] and {"ray", "vllm", "torch"} <= libraries["sampler"]


def test_samplers_and_learners_agree_after_every_publish(trained):
    outcome, _, _ = trained
    with RunReader(outcome.folder) as reader:
        iterations = list(reader.iterations)
        receipts = reader.events("published")
    assert len(iterations) == 2 and len(receipts) == 2
    for report in iterations:
        gaps = [policy["mismatch_max"] for policy in report.policies.values()]
        assert len(gaps) == 3 and max(gaps) < 1e-4
    for version, event in enumerate(receipts, start=1):
        policies = event.body["receipts"]
        assert {record["version"] for record in policies.values()} == {version} and len(policies) == 3
        assert max(record["probe"] for record in policies.values()) < 1e-4


def test_no_key_of_a_provider_reaches_a_process_of_ray(trained):
    _, seen, _ = trained
    assert len(seen) >= 5
    assert [pid for pid, environment in seen.items() if CANARY in environment] == []


def assert_samplers_worked_on(folder: Path, disk: SlowDisk) -> None:
    """The driver heard every sampler while it wrote: a loop that stands still finds them hung and starts them again."""
    assert disk.recorded == ROLLOUTS
    with RunReader(folder) as reader:
        assert len(reader.events("processes")) == 1 and reader.events("engine_lost") == []
    every_prompt_once(folder, 2)


def test_slow_disk_delays_no_rollout(trained):
    outcome, _, disk = trained
    assert_samplers_worked_on(outcome.folder, disk)


@pytest.mark.soak
def test_two_minute_checkpoint_delays_no_rollout(tmp_path, monkeypatch):
    """Longer than an engine may be silent."""
    delay_s = 120.0
    assert delay_s > POLL_S + HANG_S
    disk = SlowDisk(tmp_path / "slow", delay_s=delay_s)
    monkeypatch.setattr(checkpoint, "fsync_path", disk.sync)
    outcome = run(tmp_path, "slow", "train.iterations=2", ONE_POLICY).train()
    assert_samplers_worked_on(outcome.folder, disk)
    print(f"{disk.recorded} of {ROLLOUTS} rollouts were recorded while the disk took {delay_s:.0f} s")


def weights_of(folder: Path, iteration: int) -> dict[str, dict[str, np.ndarray]]:
    policies = folder / "checkpoints" / f"{iteration:06d}" / "policies"
    found = {}
    for policy in sorted(policies.iterdir()):
        with StoredTensors(policy / WEIGHTS_FILE) as stored:
            found[policy.name] = {name: tensor.numpy() for name, tensor in stored.items()}
    return found


def assert_equal_to_the_bit(one: Path, other: Path, iteration: int) -> None:
    for policy, weights in weights_of(one, iteration).items():
        for name, tensor in weights_of(other, iteration)[policy].items():
            np.testing.assert_array_equal(tensor, weights[name], err_msg=f"{policy} {name}")


def every_prompt_once(folder: Path, iterations: int) -> None:
    with RunReader(folder) as reader:
        rows = list(reader.trajectories.where(split="train"))
    finished = Counter((row.iteration, row.task, row.sample) for row in rows)
    assert set(finished.values()) == {1} and len(finished) == iterations * ROLLOUTS
    tasks = Counter(task for _, task, sample in finished if sample == 0)
    assert set(tasks.values()) == {1}


KILLED = "train.iterations=4"
"""Of runs that lose few processes; those of the soak tests lose thirty or forty."""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs"), "undisturbed", KILLED, ONE_POLICY).train().folder


class Killer(threading.Thread):
    """Kills processes of a role one after the other, each at a random moment `within` seconds of the run's record."""

    def __init__(self, folder: Path, role: str, times: int, *, within: float = 1.0) -> None:
        super().__init__(daemon=True)
        self.killed: list[int] = []
        self._folder, self._role, self._times, self._within = folder, role, times, within
        self._random = np.random.default_rng(0)

    def run(self) -> None:
        while len(self.killed) < self._times:
            time.sleep(0.1)
            new = [pid for pid in self._pids() if pid not in self.killed]
            if new:
                time.sleep(float(self._random.uniform(0.0, self._within)))
                victim = int(self._random.choice(new))
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.killed.append(victim)

    def _pids(self) -> list[int]:
        if not (self._folder / "run.db").exists():
            return []
        with RunReader(self._folder) as reader:
            events = reader.events("processes")
        return (
            [process["pid"] for process in events[-1].body["processes"] if process["role"] == self._role]
            if events
            else []
        )


def test_killed_driver_resumes(undisturbed, tmp_path):
    folder = train_and_kill(tmp_path, KILLED, kills=1)
    every_prompt_once(folder, 4)
    assert_equal_to_the_bit(undisturbed, folder, 4)


def train_and_kill(tmp_path: Path, *settings: str, kills: int) -> Path:
    """The folder of a run whose driver was killed `kills` times, at random moments, and resumed to the end."""
    folder, random = tmp_path / "killed", np.random.default_rng(1)
    words = [*SMALL, CLUSTER, ONE_POLICY, f"run.root={tmp_path}", "run.name=killed", *settings]
    command = [sys.executable, "-m", "mappa", "train", "--plugin", "mathchat", *words]
    for _ in range(kills):
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = steps_in(folder)
        while driver.poll() is None and steps_in(folder) == before:
            time.sleep(0.1)
        time.sleep(float(random.uniform(0.0, 3.0)))
        driver.kill()
        driver.wait()
        command = [sys.executable, "-m", "mappa", "train", "--resume", str(folder)]
    assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0
    return folder


def steps_in(folder: Path) -> int:
    if not (folder / "run.db").exists():
        return 0
    with RunReader(folder) as reader:
        return sum(row.steps for row in reader.trajectories)


def test_adapters_share_a_sampler_and_a_base(tmp_path):
    lora = "policies.default={kind: lora, lora: {rank: 4, alpha: 8.0}}"
    outcome = run(tmp_path, "lora", "train.iterations=2", lora).train()
    with RunReader(outcome.folder) as reader:
        (event,) = reader.events("processes")
        first, second = reader.iterations
    assert Counter(process["role"] for process in event.body["processes"]) == {"learner": 2, "sampler": 1}
    for report in (first, second):
        gaps = [policy["mismatch_max"] for policy in report.policies.values()]
        assert len(gaps) == 3 and max(gaps) < 1e-4
    names = {policy: set(weights) for policy, weights in weights_of(outcome.folder, 2).items()}
    assert len(names) == 3 and all(".lora_" in name for tensors in names.values() for name in tensors)


def test_rollouts_continue_during_updates(tmp_path):
    ahead = "engine.options={deterministic: false, max_staleness: 1, straggler_share: 0.1}"
    outcome = run(tmp_path, "ahead", "train.iterations=4", ONE_POLICY, ahead).train()
    with RunReader(outcome.folder) as reader:
        reports = list(reader.iterations)
    staleness = [report.staleness.max for report in reports]
    assert staleness[0] == 0.0 and 0.0 < max(staleness) <= 1.0
    gaps = [policy["mismatch_max"] for report in reports for policy in report.policies.values()]
    # What older weights sampled differs from what the learner computes with newer ones, and that is what shows.
    assert max(gaps) > 1e-4


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_cluster_learns_as_the_local_engine(tmp_path):
    """20 iterations of the recipe on either engine, from equal starts: gains whose intervals overlap, both above 0."""
    words = ("train.iterations=20", f"run.root={tmp_path}")
    local = Run.from_recipe("mathchat/tiny", *words, "run.name=local").train()
    cluster = Run.from_recipe(
        "mathchat/tiny",
        *words,
        "run.name=cluster",
        CLUSTER,
        "train.micro_tokens=2048",
        "engine.options.kv_cache_mb=128",
    ).train()
    one, other = (outcome.summary.eval.gain for outcome in (local, cluster))
    print(f"gain: local {one.mean:+.3f} [{one.low:+.3f}, {one.high:+.3f}], "
          f"cluster {other.mean:+.3f} [{other.low:+.3f}, {other.high:+.3f}]")  # fmt: skip
    assert one.low > 0.0 and other.low > 0.0
    assert one.low < other.high and other.low < one.high


THIRTY_KILLS = ("train.iterations=40", "train.max_restarts=30")


@pytest.fixture(scope="module")
def long_undisturbed(tmp_path_factory):
    return run(tmp_path_factory.mktemp("runs"), "undisturbed", *THIRTY_KILLS, ONE_POLICY).train().folder


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("role", ["learner", "sampler"])
def test_thirty_killed_actors_lose_nothing(long_undisturbed, role, tmp_path):
    killer = Killer(tmp_path / "killed", role, 30, within=5.0)
    killer.start()
    outcome = run(tmp_path, "killed", *THIRTY_KILLS, ONE_POLICY).train()
    assert len(killer.killed) == 30
    every_prompt_once(outcome.folder, 40)
    assert_equal_to_the_bit(long_undisturbed, outcome.folder, 40)


FAULTS = """
import os, signal, sys, threading, time
from pathlib import Path

ORDERS = Path({orders!r})


def strike(role):
    import torch

    acts = {{
        "raise": lambda: (_ for _ in ()).throw(IndexError("a bug of its own")),
        "memory": lambda: (_ for _ in ()).throw(torch.OutOfMemoryError("no room")),
        "hang": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    }}
    for kind, act in acts.items():
        order = ORDERS / f"{{role}}.{{kind}}"
        try:
            order.rename(order.with_suffix(".taken"))
        except FileNotFoundError:
            continue
        act()


def wrap(owner, name, role):
    inner = getattr(owner, name)

    def method(*args, **kwargs):
        strike(role)
        return inner(*args, **kwargs)

    setattr(owner, name, method)


def patch():
    places = {{
        "mappa_engine.cluster.samplers.step_loop": ("StepLoop", "_step", "sampler"),
        "mappa_engine.cluster.learners.rank": ("LearnerRank", "update", "learner"),
    }}
    while places:
        for module in [module for module in places if module in sys.modules]:
            owner, name, role = places[module]
            if hasattr(sys.modules[module], owner):
                wrap(getattr(sys.modules[module], owner), name, role)
                del places[module]
        time.sleep(0.01)


threading.Thread(target=patch, daemon=True).start()
"""
"""Becomes the `sitecustomize` of actors: one that finds an order for its role obeys it, in a step or an update."""


class Chaos(threading.Thread):
    """Orders one fault after the other of processes of a role, each a random moment after the one before was taken. Of
    learners every second one waits until the team has acted since, so that not all hit a start; of samplers each one
    does, as three in a row without an action are the end of an engine."""

    def __init__(self, folder: Path, role: str, faults: Sequence[str], patch: pytest.MonkeyPatch) -> None:
        super().__init__(daemon=True)
        self.taken: list[str] = []
        self._role, self._faults, self._random = role, faults, np.random.default_rng(0)
        self._folder, self._orders, code = folder / "struck", folder / "orders", folder / "code"
        self._orders.mkdir()
        code.mkdir()
        (code / "sitecustomize.py").write_text(FAULTS.format(orders=str(self._orders)))
        patch.setenv("PYTHONPATH", str(code))

    def run(self) -> None:
        for fault in self._faults:
            before = steps_in(self._folder)
            waits = bool(self.taken) if self._role == "sampler" else len(self.taken) % 2 == 1
            while waits and steps_in(self._folder) == before:
                time.sleep(0.1)
            time.sleep(float(self._random.uniform(0.0, 3.0)))
            order = self._orders / f"{self._role}.{fault}"
            order.touch()
            while not (taken := order.with_suffix(".taken")).exists():
                time.sleep(0.1)
            taken.unlink()
            self.taken.append(fault)


def train_in_chaos(tmp_path: Path, monkeypatch, role: str, faults: Sequence[str], *settings: str) -> Path:
    """The folder of a run in which every fault was taken, and each was a loss."""
    chaos = Chaos(tmp_path, role, faults, monkeypatch)
    chaos.start()
    outcome = run(tmp_path, "struck", *settings, "train.max_restarts=60", ONE_POLICY).train()
    assert chaos.taken == list(faults)
    with RunReader(outcome.folder) as reader:
        losses = len(reader.events("engine_lost")), len(reader.events("process_lost"))
    assert losses == ((0, len(faults)) if role == "sampler" else (len(faults), 0))
    assert outcome.summary.engine_losses == len(faults)
    return outcome.folder


@pytest.mark.parametrize("role", ["learner", "sampler"])
def test_three_deaths_lose_nothing(undisturbed, role, tmp_path, monkeypatch):
    folder = train_in_chaos(tmp_path, monkeypatch, role, ["raise", "memory", "kill"], KILLED)
    every_prompt_once(folder, 4)
    assert_equal_to_the_bit(undisturbed, folder, 4)


@pytest.mark.soak
@pytest.mark.timeout(10_800)
@pytest.mark.parametrize("role", ["learner", "sampler"])
def test_forty_deaths_of_four_kinds_lose_nothing(long_undisturbed, role, tmp_path, monkeypatch):
    faults = ["raise", "memory", "hang", "kill"] * 10
    folder = train_in_chaos(tmp_path, monkeypatch, role, faults, "train.iterations=40")
    every_prompt_once(folder, 40)
    assert_equal_to_the_bit(long_undisturbed, folder, 40)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thirty_killed_drivers_lose_nothing(long_undisturbed, tmp_path):
    folder = train_and_kill(tmp_path, *THIRTY_KILLS, kills=30)
    every_prompt_once(folder, 40)
    assert_equal_to_the_bit(long_undisturbed, folder, 40)


def test_a_warm_start_teaches_one_agent(tmp_path):
    settings = (
        *SMALL, CLUSTER, "train.iterations=2", "train.correction.kind=none", "train.learning_rate=1e-3",
        "eval.problems=2", f"run.root={tmp_path}", "run.name=taught",
    )  # fmt: skip
    examples = [
        Example(
            agent="verifier",
            prompt=(Message(role="user", content=f"what is {number} + 1"),),
            reply=f"the answer is {number + 1}",
        )
        for number in range(24)
    ]
    registry = load_plugins()
    taught = WarmStart(compose(registry, recipe="mathchat/tiny", overrides=settings), registry, examples=examples)
    folder = taught.train().folder
    with RunReader(folder) as reader:
        first, second = (report.policies for report in reader.iterations)
    assert second["verifier"]["held_out_loss"] < first["verifier"]["held_out_loss"]
    before, after = (folder / "checkpoints" / f"{number:06d}" / "policies" for number in (1, 2))
    same = {
        policy: (before / policy / WEIGHTS_FILE).read_bytes() == (after / policy / WEIGHTS_FILE).read_bytes()
        for policy in ("problem_solver", "code_executor", "verifier")
    }
    assert same == {"problem_solver": True, "code_executor": True, "verifier": False}
