"""A model of full width: the memory that each process takes in an iteration is what the plan says."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from models import QWEN3_0_6B, write_wide_model

from mappa.testing.fakes import fake_step
from mappa_core.config.schema import TrainSection
from mappa_core.credit.build_experience import build_experience
from mappa_core.experience import Advantages
from mappa_core.protocols import Machine, PolicySpec
from mappa_core.records import Message, Sampling, Task, Trajectory
from mappa_engine.cluster.engine import ClusterEngine
from mappa_engine.cluster.placement import Resources, find_placement, read_shape
from mappa_engine.cluster.placement.memory import PHASES
from mappa_engine.losses import PPOLoss
from mappa_engine.options import ClusterOptions, PPOOptions

pytestmark = pytest.mark.timeout(3600)

POLICY = "writer"
TRAIN = TrainSection(iterations=1, learning_rate=1e-6, micro_tokens=256)
OPTIONS = ClusterOptions(
    zero=2, learner_ranks=1, packed_tokens=256, max_model_len=256, kv_cache_mb=128, samplers=1,
    gradient_checkpointing=False,
)  # fmt: skip
SHARE = 0.15
"""By how much of the plan a process may differ from it."""


def planned(model: str, options: ClusterOptions) -> dict[str, int]:
    """Bytes of learner and sampler in the phase in which they take most, their libraries included."""
    machine = Machine(host="here", cpus=2)
    specs = [PolicySpec(name=POLICY, model=model)]
    placement = find_placement(specs, {model: read_shape(model)}, Resources(nodes=(machine,)), options, train=TRAIN)
    return {load.role: max(load.bytes_at(phase) for phase in PHASES) + load.host_bytes for load in placement.loads}


async def measured(model: str, options: ClusterOptions, folder: Path) -> Mapping[str, int]:
    """The most memory in bytes that learner and sampler took for themselves during two updates and a checkpoint in
    `folder`: files that they read and what all processes share are not theirs."""
    engine, peaks = ClusterEngine(options), Counter[str]()

    async def watch() -> None:
        while True:
            for process in engine.processes:
                peaks[process.role] = max(peaks[process.role], _anonymous(process.pid))
            await asyncio.sleep(0.1)

    watching = None
    try:
        await engine.open([PolicySpec(name=POLICY, model=model)], TRAIN, seed=0)
        watching = asyncio.create_task(watch())
        sampler = engine.sampler(POLICY)
        prompt = sampler.render([Message(role="user", content="Count to a hundred.")])
        sampling = [Sampling(max_tokens=80, seed=seed) for seed in range(4)]
        completions = await asyncio.gather(*(sampler.sample(prompt, request) for request in sampling))
        trajectories = []
        for at, completion in enumerate(completions):
            task = Task(id=f"t{at}", prompt="Count to a hundred.")
            step = fake_step(f"{task.id}/0", POLICY, completion, policy=POLICY)
            trajectories.append(Trajectory(id=task.id, task=task, sample=0, iteration=0, steps=(step,)))
        rewards = [(float(at),) for at in range(len(trajectories))]
        experience = await engine.score(build_experience(trajectories, rewards, {POLICY: POLICY}, {POLICY}, "correct"))
        drawn = np.random.default_rng(0).normal(size=len(experience.tokens)).astype(np.float32)
        for _ in range(2):  # the optimiser's moments come with the first step, and stay
            metrics = await engine.update(experience, Advantages(advantages=drawn), PPOLoss(PPOOptions()), 0.0)
            assert metrics[POLICY]["steps"] == 1
            await engine.publish()
        await engine.save(folder)
        return peaks
    finally:
        if watching is not None:
            watching.cancel()
        await engine.close()


def _anonymous(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields: Mapping[str, str] = dict(line.split(":", 1) for line in lines)
    return int(fields["RssAnon"].split()[0]) * 1024


# All layers of it take more than 24 GB in float32.
@pytest.mark.parametrize(
    ("layers", "dtype"), [(4, "float32"), pytest.param(28, "bfloat16", marks=pytest.mark.soak)], ids=["cut", "whole"]
)
async def test_processes_take_what_the_plan_says(tmp_path, layers, dtype):
    model = write_wide_model(tmp_path / "wide", QWEN3_0_6B, layers=layers)
    options = replace(OPTIONS, dtype=dtype)
    plan, found = planned(model, options), await measured(model, options, tmp_path / "saved")
    assert found.keys() == plan.keys() == {"learner", "sampler"}
    apart = {role: found[role] / plan[role] - 1.0 for role in plan}
    for role in plan:
        sizes = f"plan {plan[role] / 1e9:.2f} GB, found {found[role] / 1e9:.2f} GB"
        print(f"{role}, {layers} layers: {sizes}, {apart[role]:+.0%}")
    assert all(abs(difference) < SHARE for difference in apart.values())
