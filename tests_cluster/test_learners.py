"""Learners on DeepSpeed against the embedded engine's: one algorithm, whatever the sharding and the ranks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM

from mappa_core.config.schema import SupervisedSection, TrainSection
from mappa_core.errors import RunError
from mappa_core.experience import Advantages, Demonstrations, Experience
from mappa_core.protocols import Lora, PolicySpec
from mappa_engine.cluster.actors import RayActors
from mappa_engine.cluster.errors import ActorLost
from mappa_engine.cluster.learners import LearnerConfig, LearnerGroup
from mappa_engine.cluster.learners.presence import Presence
from mappa_engine.cluster.learners.rank import LearnerRank
from mappa_engine.cluster.sync.buckets import bucket_tensors
from mappa_engine.learning.scoring import merge_scores
from mappa_engine.local import LocalEngine
from mappa_engine.losses import PPOLoss
from mappa_engine.model_info import read_model_info, read_weight_names
from mappa_engine.options import LocalOptions, PlacedOptions, PPOOptions

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
        policy = np.repeat([0, 1, 0, 1], [*self.live, *self.dead]).astype(np.int32)
        weight = np.repeat([1.0, 0.0], [sum(self.live), sum(self.dead)]).astype(np.float32)
        count = len(policy)
        prompts = [random.integers(3, 259, random.integers(3, 30)) for _ in range(count)]
        actions = [random.integers(3, 259, random.integers(2, 20)) for _ in range(count)]
        zeros, numbers = np.zeros(count, np.int32), np.arange(count, dtype=np.int32)
        tokens = np.concatenate(actions).astype(np.int32)
        return Experience(
            agents=POLICIES,
            policies=POLICIES,
            trajectories=tuple(f"t{one}" for one in range(count)),
            tasks=("task",),
            strata=("all",),
            steps=tuple(f"s{one}" for one in range(count)),
            agent=policy,
            policy=policy,
            trajectory=numbers,
            task=zeros,
            group=zeros,
            stratum=zeros,
            position=zeros,
            turn=zeros,
            truncated=np.zeros(count, np.bool_),
            temperature=np.where(numbers % 3 == 0, np.float32(0.7), np.float32(1.0)),
            outcome=np.ones(count, np.float32),
            reward=np.where(weight > 0, np.float32(1.0), np.float32(np.nan)),
            weight=weight,
            tokens=tokens,
            offsets=np.cumsum([0, *map(len, actions)]),
            version=np.zeros(len(tokens), np.int32),
            logprobs=random.normal(-5.0, 0.5, len(tokens)).astype(np.float32),
            prompt_tokens=np.concatenate(prompts).astype(np.int32),
            prompt_offsets=np.cumsum([0, *map(len, prompts)]),
            demonstrations=Demonstrations(
                row=np.array([0, sum(self.live) - 1, sum(self.live) - 1, count - 1], np.int32),
                tokens=random.integers(3, 259, 30).astype(np.int32),
                offsets=np.array([0, 12, 14, 25, 30]),
            ),
        )


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
    chosen = PlacedOptions(packed_tokens=48, call_s=120.0, start_s=240.0, sync_s=60.0, **options)
    return LearnerConfig(specs=specs(model), train=train, options=chosen, dtype=dtype, gpu=False, seed=3)


class Alone:
    """One rank in this process, asked as a group is."""

    def __init__(self, given: LearnerConfig) -> None:
        self._rank = LearnerRank(given, rank=0, ranks=1)
        self._rank.open(self._rank.new_rendezvous())

    async def score(self, experience):
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


def two_ranks(zero: int):
    """A fixture: a group of two ranks under that stage of ZeRO, for all tests of the file."""

    @pytest.fixture(scope="module", name=f"zero{zero}")
    def fixture(ray_actors: RayActors, qwen3: str) -> Iterator[LearnerGroup]:
        opening = LearnerGroup.open(f"zero{zero}", ray_actors, task(qwen3, zero=zero), slots=[None] * 2)
        group = asyncio.run(opening)
        yield group
        asyncio.run(group.close())

    return fixture


zero0, zero2, zero3 = two_ranks(0), two_ranks(2), two_ranks(3)


@pytest.fixture
def group(request, zero: int) -> LearnerGroup:
    """The group under the stage of the test."""
    return request.getfixturevalue(f"zero{zero}")


@pytest.fixture
async def start(qwen3: str, tmp_path: Path) -> Path:
    """A checkpoint of policies that have learned nothing yet."""
    engine = await local(qwen3)
    await engine.save(tmp_path / "start")
    await engine.close()
    return tmp_path / "start"


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
        f"{name}/{key}": one
        for name in POLICIES
        for key, one in load_file(folder / name / f"{file}.safetensors").items()
    }


def apart(one, other) -> float:
    """Norm of a difference."""
    assert one.keys() == other.keys()
    return float(np.sqrt(sum(np.square(one[name].astype(np.float64) - other[name]).sum() for name in one)))


def gradient(folder: Path) -> dict[str, np.ndarray]:
    """Of the only step so far, from AdamW's first moments."""
    return {name: one / (1 - TRAIN.betas[0]) for name, one in held(folder, "optimiser").items() if "/exp_avg." in name}


async def learn(learners, folder: Path):
    """Three iterations, and a checkpoint after the first and the last; metrics and scores of each."""
    found = [await iterate(learners, ITERATIONS[0], 0)]
    await learners.save(folder / "first")
    found += [await iterate(learners, one, number) for number, one in enumerate(ITERATIONS[1:], start=1)]
    await learners.save(folder / "last")
    return found


@pytest.fixture(scope="module")
def reference(qwen3: str, tmp_path_factory):
    """What the embedded engine makes of the three iterations, and where its checkpoints are."""
    folder = tmp_path_factory.mktemp("reference")

    async def made():
        engine = await local(qwen3)
        await engine.save(folder / "start")
        found = await learn(engine, folder)
        await engine.close()
        return found

    return asyncio.run(made()), folder


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("zero", [0, 2, 3])
async def test_learners_do_what_the_embedded_engine_does(qwen3, group, start, reference, tmp_path, zero, ranks):
    learners = group if ranks == 2 else Alone(task(qwen3, zero=zero))
    await learners.load(start)
    expected, folder = reference
    found = await learn(learners, tmp_path / "found")
    wanted = gradient(folder / "first")
    assert apart(gradient(tmp_path / "found" / "first"), wanted) < 1e-5 * apart(
        wanted, {k: 0 * v for k, v in wanted.items()}
    )
    ours, theirs = held(tmp_path / "found" / "last"), held(folder / "last")
    assert apart(ours, theirs) < 1e-3 * apart(theirs, held(folder / "start"))
    for (metrics, known), (other_metrics, other_known) in zip(found, expected, strict=True):
        for column in ("old_logprobs", "ref_logprobs", "values"):
            np.testing.assert_allclose(getattr(known, column), getattr(other_known, column), atol=2e-3, equal_nan=True)
        for name in POLICIES:
            assert metrics[name] == pytest.approx(other_metrics[name], rel=1e-2, abs=1e-3), name
    assert [metrics["solver"]["steps"] for metrics, _ in found] == [2, 6, 4]
    assert "value_loss" in found[0][0]["solver"]


@pytest.mark.parametrize("zero", [0, 2, 3])
@pytest.mark.parametrize("fault", [np.nan, 1e38])
async def test_a_step_that_is_not_finite_moves_nothing_on_any_rank(group, start, tmp_path, fault):
    await group.load(start)
    await iterate(group, ITERATIONS[1], 1)
    await group.save(tmp_path / "before")
    probe = [np.arange(3, 30, dtype=np.int32)]
    before = [await group._call_all("logprobs", name, probe, what="answer") for name in POLICIES]
    given = advantages(ITERATIONS[0])
    for policy in (0, 1):
        live = np.flatnonzero(
            (ITERATIONS[0].policy[ITERATIONS[0].row_of_token] == policy) & (ITERATIONS[0].token_weight > 0)
        )
        given.advantages[live[-1]] = fault
    metrics, _ = await iterate(group, ITERATIONS[0], 2, given)
    for name in POLICIES:
        assert (metrics[name]["skipped"], metrics[name]["steps"]) == (2, 0)
    await group.save(tmp_path / "after")
    for file in ("weights", "optimiser"):
        assert apart(held(tmp_path / "before", file), held(tmp_path / "after", file)) == 0.0
    after = [await group._call_all("logprobs", name, probe, what="answer") for name in POLICIES]
    np.testing.assert_array_equal(np.array(before), np.array(after))
    # What was forgotten is not in the next step either.
    await iterate(group, ITERATIONS[2], 3)
    await group.save(tmp_path / "went on")
    await group.load(tmp_path / "before")
    await iterate(group, ITERATIONS[2], 3)
    await group.save(tmp_path / "without")
    assert apart(held(tmp_path / "went on"), held(tmp_path / "without")) == 0.0


async def test_a_checkpoint_goes_on_on_other_ranks_under_other_sharding_and_in_the_other_engine(
    qwen3, zero2, zero3, start, tmp_path
):
    await zero2.load(start)
    await iterate(zero2, ITERATIONS[1], 1)
    zero2.advance_versions()
    await zero2.save(tmp_path / "kept")
    embedded = await local(qwen3)
    others = {"alone": Alone(task(qwen3, zero=3)), "zero3": zero3, "embedded": embedded}
    for one in others.values():
        await one.load(tmp_path / "kept")
    assert others["alone"].versions == zero3.versions == {"solver": 1, "coder": 1}
    folders = []
    for name, one in {"zero2": zero2, **others}.items():
        await iterate(one, ITERATIONS[2], 2)
        await one.save(tmp_path / name)
        folders.append(tmp_path / name)
    moved = apart(held(folders[0]), held(tmp_path / "kept"))
    for folder in folders[1:]:
        assert apart(held(folders[0]), held(folder)) < 1e-4 * moved, folder
        assert (folder / "solver" / "state.json").read_text().endswith('"steps": 10}')
    await embedded.load(tmp_path / "zero3")
    await embedded.close()


@pytest.fixture
def learners(request, qwen3: str, zero: int, dtype: str):
    """Learners of that dtype under the stage of the test: two ranks, or one in this process."""
    return request.getfixturevalue("group") if dtype == "float32" else Alone(task(qwen3, zero=zero, dtype=dtype))


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_what_is_read_of_a_learner_is_the_same_wherever_it_is(learners, start, tmp_path):
    """Samplers have the GPUs while a checkpoint is written: learners are on the host then, by DeepSpeed's own means."""
    await learners.load(start)
    await iterate(learners, ITERATIONS[1], 1)
    probe = [np.arange(3, 30, dtype=np.int32)]
    await learners.save(tmp_path / "here")
    answers = [await learners.logprobs(name, probe) for name in POLICIES]
    for name, keep in (("weights", True), ("nothing", False)):
        await learners.offload(keep_weights=keep)
        await learners.save(tmp_path / name)
        assert_same_checkpoint(tmp_path / "here", tmp_path / name)
        np.testing.assert_array_equal([await learners.logprobs(name, probe) for name in POLICIES], answers)
    # Steps that are taken while it is away, and after its checkpoint was loaded, are those of one that never left.
    await iterate(learners, ITERATIONS[2], 2)
    await learners.save(tmp_path / "stepped away")
    await learners.load(tmp_path / "nothing")
    await learners.reload()
    await iterate(learners, ITERATIONS[2], 2)
    await learners.save(tmp_path / "stepped here")
    assert_same_checkpoint(tmp_path / "stepped away", tmp_path / "stepped here")
    assert apart(held(tmp_path / "here"), held(tmp_path / "stepped here")) > 0.0


def assert_same_checkpoint(one: Path, other: Path) -> None:
    for file in ("weights", "optimiser"):
        expected, found = held(one, file), held(other, file)
        assert expected.keys() == found.keys() and any("exp_avg_sq" in key for key in held(one, "optimiser"))
        for name, tensor in expected.items():
            np.testing.assert_array_equal(found[name], tensor, err_msg=name)


async def test_a_checkpoint_of_other_policies_is_refused(zero2, llama, start, tmp_path):
    engine = await local(llama)
    await engine.save(tmp_path / "other")
    await engine.close()
    with pytest.raises(RunError, match="the weights are not those of"):
        await zero2.load(tmp_path / "other")
    with pytest.raises(RunError, match="the checkpoint has no policy 'solver'"):
        await zero2.load(tmp_path)
    await zero2.load(start)


@pytest.mark.parametrize("zero", [0, 2, 3])
async def test_weights_are_handed_on_whole_and_a_probe_is_answered(group, qwen3, start, tmp_path):
    import ray

    await group.load(start)
    await iterate(group, ITERATIONS[1], 1)
    await group.save(tmp_path / "kept")
    sent = {}
    for name, version in group.advance_versions().items():
        found = {}
        async for reference in group.weights(name, version):
            found |= {key: one.clone().numpy() for key, one in bucket_tensors(ray.get(reference))}
        told = await group.sent_record(name)
        assert (told.version, told.names) == (version, tuple(found))
        sent |= {f"{name}/{key}": one for key, one in found.items()}
    kept = {name: one for name, one in held(tmp_path / "kept").items() if "value_head" not in name}
    assert apart(sent, kept) == 0.0
    assert {name.removeprefix("solver/") for name in sent if name.startswith("solver/")} == read_weight_names(
        read_model_info(qwen3)
    ).names
    model = AutoModelForCausalLM.from_pretrained(qwen3, dtype=torch.float32).eval()
    model.load_state_dict(
        {k.removeprefix("solver/"): torch.from_numpy(v) for k, v in sent.items() if k[:6] == "solver"}, strict=False
    )
    sequences = [np.arange(3, 40, dtype=np.int32), np.arange(100, 120, dtype=np.int32)]
    for sequence, answer in zip(sequences, await group.logprobs("solver", sequences), strict=True):
        ids = torch.from_numpy(sequence.astype(np.int64))[None]
        with torch.inference_mode():
            expected = torch.log_softmax(model(input_ids=ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
        np.testing.assert_allclose(answer, expected.numpy(), atol=1e-4)


async def test_recomputed_activations_give_the_same_gradient(qwen3, start, tmp_path):
    for name, again in (("kept", False), ("again", True)):
        learners = Alone(task(qwen3, zero=2, gradient_checkpointing=again))
        await iterate(learners, ITERATIONS[0], 0)
        await learners.save(tmp_path / name)
    kept = gradient(tmp_path / "kept")
    assert apart(gradient(tmp_path / "again"), kept) < 1e-6 * apart(kept, {k: 0 * v for k, v in kept.items()})


@pytest.mark.parametrize("zero", [1, 2, 3])
async def test_steps_too_small_for_bfloat16_are_not_lost(qwen3, tmp_path, zero):
    train = replace(TRAIN, learning_rate=1e-6)
    learners = Alone(task(qwen3, train=train, dtype="bfloat16", zero=zero))
    await learners.save(tmp_path / "before")
    metrics, known = await iterate(learners, ITERATIONS[0], 0)
    await learners.save(tmp_path / "after")
    before, after = held(tmp_path / "before"), held(tmp_path / "after")
    name = "solver/model.layers.0.mlp.up_proj.weight"
    assert before[name].dtype == np.float32
    assert 0 < np.abs(after[name] - before[name]).max() < 3e-6
    exact = await local(qwen3, train)
    other, other_known = await iterate(exact, ITERATIONS[0], 0)
    await exact.close()
    assert np.abs(known.old_logprobs - other_known.old_logprobs).mean() < 0.1
    assert metrics["solver"]["grad_norm"] == pytest.approx(other["solver"]["grad_norm"], rel=0.1)


async def test_optimiser_states_on_the_host_change_nothing(qwen3, start, tmp_path):
    for name, away in (("here", False), ("away", True)):
        learners = Alone(task(qwen3, zero=2, offload_optimizer=away))
        await learners.load(start)
        await iterate(learners, ITERATIONS[1], 1)
        await learners.save(tmp_path / name)
    assert apart(held(tmp_path / "here"), held(tmp_path / "away")) < 1e-6


async def test_an_optimiser_on_the_host_steps_with_all_cores_of_its_rank(qwen3, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    seen: list[int] = []
    real = torch.optim.AdamW.step

    def step(optimiser, *args, **kwargs):
        seen.append(torch.get_num_threads())
        return real(optimiser, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    before = torch.get_num_threads()
    for away, threads in ((False, before), (True, 3)):
        await iterate(Alone(task(qwen3, zero=2, offload_optimizer=away)), ITERATIONS[0], 0)
        assert max(seen) == threads and torch.get_num_threads() == before
        seen.clear()


async def test_ranks_are_processes_of_their_own_and_one_that_is_killed_is_named(zero2):
    # The last test: its group is of no use any more.
    processes = zero2.processes()
    assert len({os.getpid(), *(one.pid for one in processes)}) == 3
    assert {one.role for one in processes} == {"learner"}
    assert all({"torch", "deepspeed", "ray"} <= one.versions.keys() for one in processes)
    os.kill(processes[1].pid, signal.SIGKILL)
    with pytest.raises(ActorLost, match="zero2/1"):
        await iterate(zero2, ITERATIONS[1], 1)
