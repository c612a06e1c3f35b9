"""Learners on DeepSpeed against the embedded engine's: one algorithm, whatever the sharding and the ranks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from mappa_core.errors import RunError
from mappa_core.experience import Advantages
from mappa_engine import model_shape
from mappa_engine.cluster.actors import RayActors
from mappa_engine.cluster.errors import ActorLost
from mappa_engine.cluster.learners import LearnerGroup
from mappa_engine.cluster.sync.buckets import bucket_tensors
from mappa_engine.learning.scoring import merge_scores
from mappa_engine.losses import PPOLoss
from mappa_engine.model_info import read_model_info, read_weight_names
from mappa_engine.options import PPOOptions

from .learner_cases import (
    ITERATIONS,
    POLICIES,
    TRAIN,
    Alone,
    advantages,
    apart,
    assert_same_checkpoint,
    gradient,
    held,
    iterate,
    learn,
    local,
    task,
)


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
async def test_learners_equal_the_local_engine(qwen3, group, start, reference, tmp_path, zero, ranks):
    learners = group if ranks == 2 else Alone(task(qwen3, zero=zero))
    await assert_equal(learners, start, reference, tmp_path)


async def test_learners_with_a_row_for_each_sequence_equal_the_local_engine(qwen3, start, reference, tmp_path):
    await assert_equal(Alone(task(qwen3, zero=2, packed_tokens=None)), start, reference, tmp_path)


async def assert_equal(learners, start, reference, tmp_path):
    """`learners` go from `start` where the local engine went in `reference`."""
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
async def test_rows_without_a_gradient_are_left_out_of_a_large_model(qwen3, tmp_path, monkeypatch, zero):
    given = task(qwen3, zero=zero, train=replace(TRAIN, entropy_coef=0.0))
    # Values would be learned from every row.
    learners = Alone(replace(given, specs=tuple(replace(spec, value_head=False) for spec in given.specs)))
    await learners.save(tmp_path / "start")
    experience = ITERATIONS[1]
    is_idle = (np.arange(len(experience.weight)) % 2 == 0) & (experience.weight > 0)
    drawn = np.where(is_idle[experience.row_of_token], 0.0, advantages(experience).advantages).astype(np.float32)
    metrics = {}
    for name, limit in (("large", 1), ("small", 10**9)):
        monkeypatch.setattr(model_shape, "LARGE_MODEL", limit)
        await learners.load(tmp_path / "start")
        known = merge_scores(experience, await learners.score(experience))
        metrics[name] = await learners.update(known, Advantages(advantages=drawn), PPOLoss(PPOOptions()), 0.1)
        await learners.save(tmp_path / name)
    for number, policy in enumerate(POLICIES):
        assert metrics["large"][policy]["idle_rows"] == np.sum(is_idle & (experience.policy == number))
        assert "idle_rows" not in metrics["small"][policy]
        assert metrics["large"][policy]["steps"] == metrics["small"][policy]["steps"]
    small = held(tmp_path / "small")
    assert apart(held(tmp_path / "large"), small) < 1e-3 * apart(small, held(tmp_path / "start"))


@pytest.mark.parametrize(
    ("fault", "zero"),
    # The last one's gradient is finite, and its squares are beyond float32; ZeRO-3 sums them in float64.
    [(np.nan, 0), (np.nan, 2), (np.nan, 3), (1e38, 0), (1e38, 2), (1e38, 3), (1e25, 3)],
)
async def test_non_finite_step_changes_no_rank(group, start, tmp_path, fault):
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


async def test_checkpoint_resumes_with_other_ranks_sharding_and_engine(qwen3, zero2, zero3, start, tmp_path):
    await zero2.load(start)
    await iterate(zero2, ITERATIONS[1], 1)
    zero2.advance_versions()
    await zero2.save(tmp_path / "kept")
    embedded = await local(qwen3)
    others = {"alone": Alone(task(qwen3, zero=3)), "zero3": zero3, "embedded": embedded}
    for other in others.values():
        await other.load(tmp_path / "kept")
    assert others["alone"].versions == zero3.versions == {"solver": 1, "coder": 1}
    folders = []
    for name, learners in {"zero2": zero2, **others}.items():
        await iterate(learners, ITERATIONS[2], 2)
        await learners.save(tmp_path / name)
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
async def test_offloaded_learner_gives_equal_results(learners, start, tmp_path):
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
async def test_learners_send_weights_and_answer_probes(group, qwen3, start, tmp_path):
    import ray

    await group.load(start)
    await iterate(group, ITERATIONS[1], 1)
    await group.save(tmp_path / "kept")
    sent = {}
    for name, version in group.advance_versions().items():
        found = {}
        async for reference in group.weights(name, version):
            found |= {key: tensor.clone().numpy() for key, tensor in bucket_tensors(ray.get(reference))}
        told = await group.sent_record(name)
        assert (told.version, told.names) == (version, tuple(found))
        sent |= {f"{name}/{key}": tensor for key, tensor in found.items()}
    kept = {name: tensor for name, tensor in held(tmp_path / "kept").items() if "value_head" not in name}
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
async def test_master_weights_keep_steps_too_small_for_bfloat16(qwen3, tmp_path, zero):
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


async def test_offloaded_optimiser_changes_nothing(qwen3, start, tmp_path):
    for name, away in (("here", False), ("away", True)):
        learners = Alone(task(qwen3, zero=2, offload_optimizer=away))
        await learners.load(start)
        await iterate(learners, ITERATIONS[1], 1)
        await learners.save(tmp_path / name)
    assert apart(held(tmp_path / "here"), held(tmp_path / "away")) < 1e-6


async def test_offloaded_optimiser_uses_all_cores_of_its_rank(qwen3, monkeypatch):
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


async def test_killed_rank_is_named(zero2):
    # The last test: its group is of no use any more.
    processes = zero2.processes()
    assert len({os.getpid(), *(process.pid for process in processes)}) == 3
    assert {process.role for process in processes} == {"learner"}
    assert all({"torch", "deepspeed", "ray"} <= process.versions.keys() for process in processes)
    os.kill(processes[1].pid, signal.SIGKILL)
    with pytest.raises(ActorLost, match="zero2/1"):
        await iterate(zero2, ITERATIONS[1], 1)
