"""Checkpoints on a disk that is slow, small or full: rollouts go on, and nothing is left half written."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
import shutil
import signal
import threading
import time
from collections import namedtuple
from pathlib import Path

import pytest

from mappa.runs import RunReader
from mappa.testing import ScriptedEngine
from mappa.training import Run
from mappa_core import GuardStop, RunError
from mappa_core.engine import EngineError

Usage = namedtuple("Usage", "total used free")
GIGABYTE = 10**9


@pytest.fixture
def start(registry, tmp_path):
    def make(*settings, name="run", staleness=0):
        return Run.from_recipe(
            "doubles/tiny",
            f"run.root={tmp_path}",
            f"run.name={name}",
            "engine.use=paced",
            f"engine.options={{max_staleness: {staleness}}}",
            "eval.problems=1",
            *settings,
            registry=registry,
        )

    return make


@pytest.fixture
def engines(registry):
    return registry.plugins["doubles"].offers["engines"]["paced"].build


def learned(folder):
    with RunReader(folder) as reader:
        _, latest = max(reader.checkpoints.items())
    return json.loads((latest / "policies/updates").read_text())


@pytest.fixture
def sync_by(sync_checkpoints_by, fsync_path):
    """Lets a function sync the engine's files of a checkpoint."""
    return lambda sync: sync_checkpoints_by(lambda path: sync(path) if path.name == "updates" else fsync_path(path))


@pytest.mark.parametrize("staleness", [0, 1])
def test_rollouts_continue_while_a_checkpoint_of_one_version_is_written(
    start, engines, sync_by, kept, tmp_path, staleness
):
    expected = start(name="undisturbed", staleness=staleness).train()
    # Two actions an evaluation, eight an iteration: the third (and with staleness the fourth), the last evaluation.
    awaited = [2 + 8 * (3 + staleness), 2 + 8 * 4 + 2]
    sampled = []

    def sync(path):
        engine, until = engines.made[-1], time.monotonic() + 20
        while len(engine.sampled_during) < awaited[len(sampled)] and time.monotonic() < until:
            time.sleep(0.001)
        sampled.append(len(engine.sampled_during))
        assert json.loads(path.read_text()) == engine.learned, "an update did not wait for the checkpoint"

    sync_by(sync)
    trained = start(staleness=staleness).train()
    assert sampled == awaited, "rollouts waited for the disk"
    assert learned(tmp_path / "run") == learned(tmp_path / "undisturbed")
    assert trained.summary.status == expected.summary.status == "done"
    assert kept(tmp_path / "run") == (2, 4)
    with RunReader(tmp_path / "run") as reader:
        assert [event.body["iteration"] for event in reader.events("checkpoint")] == [2, 4]


def test_a_guard_that_stops_a_run_waits_for_the_checkpoint_that_is_being_written(start, sync_by, tmp_path):
    """The coach is away from the third iteration on, while the checkpoint of the second is written."""
    sync_by(lambda path: time.sleep(0.2))
    with pytest.raises(GuardStop, match=r"iteration 3(.|\n)*A checkpoint was written"):
        start("coach.options.fails_from=16").train()
    with RunReader(tmp_path / "run") as reader:
        assert list(reader.checkpoints) == [2]
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["000002"]


def test_an_interrupt_leaves_the_checkpoint_that_is_being_written_complete(
    start, sync_by, monkeypatch, tmp_path, registry
):
    def sync(path):
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.2)

    sync_by(sync)
    with pytest.raises(KeyboardInterrupt):
        start().train()
    assert [path.name for path in (tmp_path / "run/checkpoints").iterdir()] == ["000002"]
    monkeypatch.undo()
    assert Run.resume(tmp_path / "run", registry=registry).train().summary.iterations == 4


def test_a_disk_that_fills_during_a_checkpoint_ends_the_run_with_advice(
    start, sync_by, monkeypatch, tmp_path, registry
):
    def sync(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sync_by(sync)
    with pytest.raises(RunError, match=r"No space left on device: free some space(.|\n)*--resume"):
        start().train()
    assert list((tmp_path / "run" / "checkpoints").iterdir()) == []
    monkeypatch.undo()
    assert Run.resume(tmp_path / "run", registry=registry).train().summary.iterations == 4


def test_failing_checkpoint_does_not_hide_the_error_that_ends_the_run(
    start, registry, sync_by, monkeypatch, tmp_path, caplog
):
    """The engine fails while it is written, and then the disk does: the first error is raised, no task is left whose
    error nobody took, and the engine stays open until the write has ended."""
    workflow = registry.plugins["doubles"].offers["workflows"]["doubles"].build
    play, writing, failed, played = workflow.run, threading.Event(), threading.Event(), []
    closed, order = threading.Event(), []

    async def close(self):
        order.append("closed")
        closed.set()

    async def run(self, stage):
        played.append(stage.task.id)
        if len(played) > 1 + 2 * 4:  # an evaluation, and two iterations: the second's checkpoint is due
            assert await asyncio.to_thread(writing.wait, 60), "no checkpoint was written"
            failed.set()
            raise EngineError("the samplers are gone")
        await play(self, stage)

    def sync(path):
        writing.set()
        assert failed.wait(60), "no rollout began while the checkpoint was written"
        closed.wait(1)  # a loop that does not wait for the write closes the engine now
        order.append("written")
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(workflow, "run", run)
    monkeypatch.setattr(ScriptedEngine, "close", close)
    sync_by(sync)
    with pytest.raises(GuardStop, match="the samplers are gone"):
        start("train.max_restarts=0").train()
    assert order == ["written", "closed"]
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []
    assert writing.is_set() and list((tmp_path / "run" / "checkpoints").iterdir()) == []


@pytest.fixture
def disk(monkeypatch, engines, kept, tmp_path):
    """A disk of 2.5 GB on which a checkpoint takes 1 GB."""

    def usage(path: Path) -> Usage:
        held = len(kept(tmp_path / "run")) * GIGABYTE
        return Usage(5 * GIGABYTE // 2, held, 5 * GIGABYTE // 2 - held)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    monkeypatch.setattr("mappa.testing.ScriptedEngine.checkpoint_bytes", lambda engine, dtype: GIGABYTE)


def test_checkpoints_that_will_not_fit_are_refused_before_anything_is_computed(start, disk, engines):
    with pytest.raises(GuardStop, match=r"3 x 1\.00 GB = 3\.00 GB, and 2\.50 GB are free\. Free 0\.50 GB, keep fewer"):
        start("checkpoint.every=1", "checkpoint.keep=3").train()
    assert engines.made[-1].sampled_during == []


@pytest.mark.parametrize("settings", [("checkpoint.every=1", "checkpoint.keep=2"), ("checkpoint.keep=9",)])
def test_the_oldest_checkpoint_goes_first_where_the_disk_is_full(start, disk, settings, kept, tmp_path):
    """A third checkpoint fits only once the first is gone; of nine that may be kept two are ever written."""
    assert start(*settings).train().summary.status == "done"
    assert kept(tmp_path / "run") == ((3, 4) if len(settings) == 2 else (2, 4))


def test_disk_filled_by_others_stops_the_run_before_a_checkpoint_that_does_not_fit(
    start, disk, kept, monkeypatch, tmp_path
):
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: Usage(9, 0, GIGABYTE // 4 if kept(tmp_path / "run") else 9 * GIGABYTE)
    )
    with pytest.raises(GuardStop, match=r"1 x 1\.00 GB = 1\.00 GB, and 0\.25 GB are free\. Free 0\.75 GB"):
        start().train()
    assert kept(tmp_path / "run") == (2,)
