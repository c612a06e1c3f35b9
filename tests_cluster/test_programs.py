"""Runs of a sweep on the machines of a Ray that runs already."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import ray

from mappa.store.summary import read_summary

PLAIN = ("train.iterations=1", "train.prompts=2", "train.samples=1", "eval.problems=2", "engine.use=local")


@pytest.fixture
def sweep(ray_actors, tmp_path):
    """Starts `mappa sweep` with these words, on the session's Ray, in a program of its own."""
    address = ray.get_runtime_context().gcs_address

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "mappa", "sweep", "--json", "--ray", address, *words]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    return start


def runs(folder: Path) -> list[str]:
    return [run["status"] for run in json.loads((folder / "sweep.json").read_text())["runs"]]


async def test_a_run_of_a_sweep_is_trained_by_another_process(sweep, tmp_path):
    folder = tmp_path / "sweep"
    first = sweep("--folder", str(folder), "--plugin", "mathchat", "--seeds", "3", *PLAIN)
    output, errors = await asyncio.to_thread(first.communicate)
    assert first.returncode == 0, errors
    assert runs(folder) == ["done"]
    assert len(json.loads(output)["compared"]["arms"]) == 1
    assert read_summary(folder / "arm1-s3").status == "done"


async def test_stopped_sweep_leaves_no_process_and_resumes(sweep, tmp_path):
    folder = tmp_path / "sweep"
    begun = ("--folder", str(folder), "--plugin", "mathchat", *PLAIN, "train.iterations=400")
    stopped = sweep(*begun)
    while not (folder / "arm1-s0" / "run.db").exists():
        assert stopped.poll() is None, stopped.stderr.read()
        await asyncio.sleep(0.2)
    stopped.terminate()
    _, errors = await asyncio.to_thread(stopped.communicate)
    assert runs(folder) == ["interrupted"], errors
    until = time.monotonic() + 60
    while left := programs(folder):
        assert time.monotonic() < until, left
        await asyncio.sleep(0.2)


def programs(folder: Path) -> list[str]:
    """Command lines of processes that name the sweep's folder."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return [line for line in found if str(folder) in line]
