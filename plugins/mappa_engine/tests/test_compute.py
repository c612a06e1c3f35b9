"""What the engine `local` computes with: chosen by the size of its models, kept by checkpoints."""

from __future__ import annotations

import math
import os

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from mappa_core import Message, RunError
from mappa_core.engine import Lora, PolicySpec, Sampling
from mappa_engine import model_shape
from mappa_engine.local import LocalEngine, bfloat16_trial, compute
from mappa_engine.local.models import load_model
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
    assert [process.role for process in engine.processes] == ["sampler and learner, 1 thread, float32"]


async def test_a_number_holds_whatever_the_size(opened):
    assert await threads_of(await opened(TINY, threads=2)) == 2


async def test_a_resumed_run_computes_as_before(opened, monkeypatch, train, tmp_path):
    monkeypatch.setattr(model_shape, "LARGE_MODEL", 1)
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


@pytest.fixture
def trial(monkeypatch):
    """Take a small model for a large one on a processor with bfloat16, and say how its trial ends."""
    monkeypatch.setattr(model_shape, "LARGE_MODEL", 1)
    monkeypatch.setattr(compute, "usable_cores", lambda: 1)
    monkeypatch.setattr(compute, "bfloat16_instructions", lambda: ("avx512_bf16",))

    def end(*, time: float, gap: float) -> None:
        result = bfloat16_trial.Bfloat16Trial(time=time, gap=gap)
        monkeypatch.setattr(bfloat16_trial, "try_bfloat16", lambda *_: result)

    return end


def dtypes(engine: LocalEngine) -> set[torch.dtype]:
    return {weight.dtype for weight in engine._policies["solver"].base.adapters.base().values()}


def test_a_trial_compares_the_model_with_itself():
    loaded = load_model(TINY, device=torch.device("cpu"), dtype=torch.float32)
    before = {name: weight.clone() for name, weight in loaded.model.named_parameters()}
    trial = bfloat16_trial.try_bfloat16(loaded.model, loaded.chat, loaded.window)
    assert 0.0 < trial.gap < 1.0 and trial.time > 0.0
    for name, weight in loaded.model.named_parameters():
        assert torch.equal(weight, before[name]) and weight.grad is None


@pytest.mark.parametrize(
    ("time", "gap", "dtype"),
    [
        (0.6, 0.03, torch.bfloat16),
        (0.95, 0.03, torch.float32),
        (0.6, 0.3, torch.float32),
        (0.6, math.nan, torch.float32),
    ],
)
async def test_bfloat16_has_to_be_faster_and_nearly_the_same(opened, trial, time, gap, dtype):
    trial(time=time, gap=gap)
    assert dtypes(await opened(TINY)) == {dtype}


async def test_a_small_model_and_a_given_dtype_are_not_tried(opened, trial, monkeypatch):
    trial(time=0.1, gap=0.0)
    assert dtypes(await opened(TINY, dtype="float32")) == {torch.float32}
    monkeypatch.setattr(model_shape, "LARGE_MODEL", 10_000_000)
    assert dtypes(await opened(TINY)) == {torch.float32}


async def test_a_resumed_run_takes_the_dtype_again_and_goes_on_bit_for_bit(opened, trial, train, tmp_path):
    lora = Lora(rank=4, alpha=8.0)
    policies = [
        PolicySpec(name="solver", model=TINY, kind="lora", lora=lora),
        PolicySpec(name="writer", model=TINY),
    ]
    trial(time=0.6, gap=0.0)
    engine = await opened(TINY, train=train, policies=policies, deterministic=True)
    await engine.save(tmp_path)
    trial(time=1.5, gap=0.0)
    resumed = await opened(TINY, train=train, policies=policies, deterministic=True)
    samplers = [resumed.sampler("solver"), resumed.sampler("writer")]
    assert dtypes(resumed) == {torch.float32}
    await resumed.load(tmp_path)
    assert dtypes(resumed) == {torch.bfloat16}
    request = Sampling(max_tokens=12, temperature=1.0, seed=5)
    for own, name in zip(samplers, ("solver", "writer"), strict=True):
        prompt = own.render([Message(role="user", content="What is 2 + 3?")])
        expected = await engine.sampler(name).sample(prompt, request)
        found = await own.sample(prompt, request)
        assert np.array_equal(found.tokens, expected.tokens)
        assert np.array_equal(found.logprobs, expected.logprobs)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"threads": 2}',
        '{"threads": 0, "dtype": "float32"}',
        '{"threads": "2", "dtype": "float32"}',
        '{"threads": 2, "dtype": "float16"}',
    ],
)
def test_a_damaged_record_is_refused(tmp_path, text):
    (tmp_path / compute.COMPUTE_FILE).write_text(text)
    with pytest.raises(RunError, match=r"compute\.json is damaged"):
        compute.ComputeSettings.read(tmp_path)


def test_the_plan_says_what_is_chosen(monkeypatch):
    monkeypatch.setattr(compute, "usable_cores", lambda: 6)
    assert compute_line() == "computes with 1 thread, float32"
    monkeypatch.setattr(model_shape, "LARGE_MODEL", 1)
    monkeypatch.setattr(compute, "bfloat16_instructions", tuple)
    assert compute_line() == "computes with 6 threads, float32"
    monkeypatch.setattr(compute, "bfloat16_instructions", lambda: ("amx_bf16",))
    assert "6 threads, float32, or bfloat16 if a trial" in compute_line()


@pytest.mark.parametrize(
    ("instructions", "large", "told"),
    [((), 1, True), ((), 10_000_000, False), (("amx_bf16",), 1, False), (None, 1, False)],
    ids=["none", "none that a small model needs", "own", "not known"],
)
async def test_bfloat16_without_instructions_is_told(
    opened, trial, train, tmp_path, monkeypatch, instructions, large, told
):
    trial(time=0.6, gap=0.0)
    await (await opened(TINY, train=train)).save(tmp_path)
    monkeypatch.setattr(compute, "bfloat16_instructions", lambda: instructions)
    monkeypatch.setattr(model_shape, "LARGE_MODEL", large)
    assert ("no instructions" in compute_line(dtype="bfloat16")) is told
    with capture_logs() as logs:
        await opened(TINY, dtype="bfloat16")
    assert any("no instructions" in entry["event"] for entry in logs) is told
    trial(time=1.5, gap=0.0)
    monkeypatch.setattr(compute, "bfloat16_instructions", lambda: instructions)
    monkeypatch.setattr(model_shape, "LARGE_MODEL", large)
    with capture_logs() as logs:
        await (await opened(TINY, train=train)).load(tmp_path)
    assert any("no instructions" in entry["event"] for entry in logs) is told, "a run from another machine"


def compute_line(**options) -> str:
    engine = LocalEngine(LocalOptions(device="cpu", **options))
    return engine.plan([PolicySpec(name="a", model=TINY)], None, rows=1, machines=()).lines[-1]
