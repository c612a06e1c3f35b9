"""What tests of learners are made of: rows to learn from, one rank in this process, and what checkpoints hold."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from safetensors.numpy import load_file

from mappa_core.config.schema import SupervisedSection, TrainSection
from mappa_core.experience import Advantages, Demonstrations, Experience
from mappa_core.protocols import Lora, PolicySpec
from mappa_engine.cluster.learners import LearnerConfig, rank
from mappa_engine.cluster.learners.presence import Presence
from mappa_engine.cluster.learners.rank import LearnerRank
from mappa_engine.learning.scoring import merge_scores
from mappa_engine.local import LocalEngine
from mappa_engine.losses import PPOLoss
from mappa_engine.options import LocalOptions, PlacedOptions, PPOOptions
from mappa_engine.testing import ExperienceRow, build_experience

POLICIES = ("solver", "coder")
LOSS = PPOLoss(PPOOptions(kl="k3", kl_coef=0.1))
TRAIN = TrainSection(
    iterations=10,
    learning_rate=1e-3,
    grad_clip=1e9,
    minibatch_rows=4,
    epochs=2,
    micro_tokens=64,
    schedule="linear",
    supervised=SupervisedSection(weight=0.3),
    entropy_coef=0.05,
    value_clip=0.1,
)
ONE_STEP = (3, 1)
"""Live rows of each policy: fewer than a minibatch, and for the second fewer than ranks."""


@dataclass(frozen=True)
class Rows:
    """An iteration of tests: live rows of each policy, and as many dead ones, with rewards that are missing. The first
    row is corrected, the last live one twice, and the last dead one, which must not matter."""

    live: tuple[int, int]
    dead: tuple[int, int] = (1, 1)
    seed: int = 0

    def experience(self) -> Experience:
        random = np.random.default_rng(self.seed)
        policy = np.repeat([0, 1, 0, 1], [*self.live, *self.dead])
        weight = np.repeat([1.0, 0.0], [sum(self.live), sum(self.dead)])
        prompts = [random.integers(3, 259, random.integers(3, 30)) for _ in policy]
        actions = [random.integers(3, 259, random.integers(2, 20)) for _ in policy]
        rows = [
            ExperienceRow(
                prompt=prompts[number].tolist(),
                tokens=actions[number].tolist(),
                logprobs=random.normal(-5.0, 0.5, len(actions[number])).tolist(),
                policy=POLICIES[policy[number]],
                trajectory=number,
                temperature=0.7 if number % 3 == 0 else 1.0,
                weight=weight[number],
            )
            for number in range(len(policy))
        ]
        corrected = Demonstrations(
            row=np.array([0, sum(self.live) - 1, sum(self.live) - 1, len(rows) - 1], np.int32),
            tokens=random.integers(3, 259, 30).astype(np.int32),
            offsets=np.array([0, 12, 14, 25, 30]),
        )
        return replace(build_experience(rows, POLICIES), demonstrations=corrected)


ITERATIONS = [Rows(ONE_STEP).experience(), Rows((9, 6), seed=1).experience(), Rows((7, 5), (0, 2), 2).experience()]


def advantages(experience: Experience) -> Advantages:
    """Drawn for live tokens; NaN where the reward is missing, which must not matter."""
    drawn = np.random.default_rng(7).normal(size=(2, len(experience.tokens))).astype(np.float32)
    drawn[:, experience.token_weight == 0] = np.nan
    return Advantages(advantages=drawn[0], value_targets=drawn[1])


def specs(model: str) -> tuple[PolicySpec, ...]:
    """A policy with its own weights and a value head, and one that is an adapter of the same model."""
    lora = Lora(rank=4, alpha=8.0)
    return (
        PolicySpec(name="solver", model=model, value_head=True),
        PolicySpec(name="coder", model=model, kind="lora", lora=lora),
    )


def task(model: str, *, train: TrainSection = TRAIN, dtype: str = "float32", **options) -> LearnerConfig:
    limits = {"call_s": 120.0, "start_s": 240.0, "sync_s": 60.0}
    chosen = PlacedOptions(**{"packed_tokens": 48, **limits, **options})
    return LearnerConfig(specs=specs(model), train=train, options=chosen, dtype=dtype, gpu=False, seed=3)


class Alone:
    """One rank in this process, asked as a group is."""

    def __init__(self, given: LearnerConfig) -> None:
        self._rank = LearnerRank(given, rank=0, ranks=1)
        # All that one process ever opens are in its one process group.
        joined = torch.distributed.is_initialized()
        with patch(f"{rank.__name__}.init_process_group") if joined else nullcontext():
            self._rank.open(self._rank.open_store())

    async def score(self, experience, *, reference=True):
        return self._rank.score(experience)

    async def update(self, *args):
        return self._rank.update(*args)

    async def save(self, folder, dtype="float32"):
        self._rank.save(folder, dict.fromkeys(POLICIES, 0), dtype)

    async def load(self, folder):
        self.versions = self._rank.load(folder)

    async def logprobs(self, *args):
        return self._rank.logprobs(*args)

    async def offload(self, *, keep_weights=False):
        self._rank.move(Presence.WEIGHTS if keep_weights else Presence.NOTHING)

    async def reload(self):
        self._rank.move(Presence.ALL)


async def local(model: str, train: TrainSection = TRAIN) -> LocalEngine:
    engine = LocalEngine(LocalOptions(device="cpu"))
    await engine.open(specs(model), train, seed=3)
    return engine


async def iterate(learners, experience: Experience, number: int, given: Advantages | None = None):
    """One iteration, on an embedded engine or on learners; the metrics and what was scored."""
    known = await learners.score(experience)
    if not isinstance(known, Experience):
        known = merge_scores(experience, known)
    return await learners.update(known, given or advantages(known), LOSS, number / 10), known


def held(folder: Path, file: str = "weights") -> dict[str, np.ndarray]:
    return {
        f"{name}/{key}": tensor
        for name in POLICIES
        for key, tensor in load_file(folder / name / f"{file}.safetensors").items()
    }


def apart(one, other) -> float:
    """Norm of a difference."""
    assert one.keys() == other.keys()
    return float(np.sqrt(sum(np.square(one[name].astype(np.float64) - other[name]).sum() for name in one)))


def gradient(folder: Path) -> dict[str, np.ndarray]:
    """Of the only step so far, from AdamW's first moments."""
    return {
        name: moment / (1 - TRAIN.betas[0]) for name, moment in held(folder, "optimiser").items() if "/exp_avg." in name
    }


async def learn(learners, folder: Path):
    """Three iterations, and a checkpoint after the first and the last; metrics and scores of each."""
    found = [await iterate(learners, ITERATIONS[0], 0)]
    await learners.save(folder / "first")
    found += [await iterate(learners, iteration, number) for number, iteration in enumerate(ITERATIONS[1:], start=1)]
    await learners.save(folder / "last")
    return found


def assert_same_checkpoint(one: Path, other: Path) -> None:
    for file in ("weights", "optimiser"):
        expected, found = held(one, file), held(other, file)
        assert expected.keys() == found.keys() and any("exp_avg_sq" in key for key in held(one, "optimiser"))
        for name, tensor in expected.items():
            np.testing.assert_array_equal(found[name], tensor, err_msg=name)
