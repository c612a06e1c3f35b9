"""What the engine `local` computes with: chosen by the size of its models, kept by checkpoints."""

from __future__ import annotations

import os

import pytest
import torch

from mappa_core import RunError
from mappa_core.engine import PolicySpec
from mappa_engine.local import LocalEngine, compute
from mappa_engine.node import cores_within, usable_cores
from mappa_engine.options import LocalOptions

TINY = "package:mappa_engine/models/tiny"


async def threads_of(engine: LocalEngine) -> int:
    # The number is one of each thread that calls torch.
    return await engine._worker.run(torch.get_num_threads)


@pytest.mark.parametrize(
    ("cores", "quota", "usable"),
    [(8, "200000 100000", 2), (8, "250000 100000", 3), (2, "50000 100000", 1), (2, "800000 100000", 2)],
)
def test_a_quota_bounds_cores(cores, quota, usable):
    assert cores_within(cores, quota) == usable


@pytest.mark.parametrize("quota", ["max 100000", "-1 100000", "", "100000 0"])
def test_no_quota_is_no_bound(quota):
    assert cores_within(8, quota) == 8


def test_cores_are_those_of_the_affinity(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 5, 7}, raising=False)
    monkeypatch.setattr("mappa_engine.node._read_quota", str)
    assert usable_cores() == 3


@pytest.mark.parametrize(("weights", "threads"), [(260_000, 1), (9_999_999, 1), (10_000_000, 6), (135_000_000, 6)])
def test_the_size_of_a_model_decides_how_many_threads_compute_it(monkeypatch, weights, threads):
    monkeypatch.setattr(compute, "usable_cores", lambda: 6)
    assert compute.choose_threads(weights) == threads


async def test_a_shipped_model_computes_on_one_thread_and_the_run_says_so(opened, monkeypatch):
    monkeypatch.setattr(compute, "usable_cores", lambda: 6)
    engine = await opened(TINY)
    assert await threads_of(engine) == 1
    assert [process.role for process in engine.processes] == ["sampler and learner, 1 thread"]


async def test_a_number_holds_whatever_the_size(opened):
    assert await threads_of(await opened(TINY, threads=2)) == 2


async def test_a_resumed_run_computes_as_before(opened, monkeypatch, train, tmp_path):
    monkeypatch.setattr(compute, "LARGE_MODEL", 1)
    monkeypatch.setattr(compute, "usable_cores", lambda: 2)
    await (await opened(TINY, train=train)).save(tmp_path)
    monkeypatch.setattr(compute, "usable_cores", lambda: 7)
    resumed = await opened(TINY, train=train)
    assert await threads_of(resumed) == 7
    await resumed.load(tmp_path)
    assert await threads_of(resumed) == 2
    explicit = await opened(TINY, train=train, threads=3)
    await explicit.load(tmp_path)
    assert await threads_of(explicit) == 3


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"threads": 0}', '{"threads": "2"}'])
def test_a_damaged_record_is_refused(tmp_path, text):
    (tmp_path / compute.COMPUTE_FILE).write_text(text)
    with pytest.raises(RunError, match=r"compute\.json is damaged"):
        compute.ComputeSettings.read(tmp_path)


def test_the_plan_says_what_is_chosen(monkeypatch):
    monkeypatch.setattr(compute, "usable_cores", lambda: 6)
    assert "1 thread" in compute_line()
    monkeypatch.setattr(compute, "LARGE_MODEL", 1)
    assert "6 threads" in compute_line()


def compute_line() -> str:
    plan = LocalEngine(LocalOptions(device="cpu")).plan([PolicySpec(name="a", model=TINY)], None, rows=1, machines=())
    return plan.lines[-1]
