"""What a large model computes once: the beginning that prompts share, and log-probabilities that its sampler knows."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from mappa_core import Advantages
from mappa_core.engine import CorrectionSection, Sampling, TrainSection
from mappa_engine import model_shape
from mappa_engine.learning.batching import BatchLayout, build_batches
from mappa_engine.learning.logprob_model import LogprobModel
from mappa_engine.learning.shared_prefixes import PASS_TOKENS, shared_prefix, split_by_prefix
from mappa_engine.learning.update import PolicyUpdate
from mappa_engine.local import compute, sampled_scores
from mappa_engine.losses import PPOLoss
from mappa_engine.options import PPOOptions

TRAIN = TrainSection(iterations=10, learning_rate=1e-3, correction=CorrectionSection(kind="none"))
START = list(range(10, 40))


@pytest.fixture
def large(monkeypatch) -> None:
    monkeypatch.setattr(model_shape, "LARGE_MODEL", 1)
    monkeypatch.setattr(compute, "usable_cores", lambda: 1)
    monkeypatch.setattr(compute, "bfloat16_instructions", tuple)


def plain_logprobs(model, prompt, tokens) -> np.ndarray:
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0, len(prompt) - 1 : -1], -1)
    return logprobs.gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()


def prompts_of(number: int) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [np.array([*START, *random.integers(3, 259, 3 + 2 * row)], np.int32) for row in range(number)]


@pytest.mark.parametrize(
    ("ends", "limit", "length"),
    [([[1], [2]], 99, 30), ([[1, 2], [1, 3]], 99, 31), ([[1], [2]], 20, 20), ([[1]], 99, 0)],
)
def test_a_shared_prefix_ends_before_the_first_difference(ends, limit, length):
    assert shared_prefix([np.array([*START, *end], np.int32) for end in ends], limit) == length


def test_a_short_prefix_is_not_worth_a_pass():
    assert shared_prefix([np.array([1, 2, 3], np.int32), np.array([1, 2, 4], np.int32)], 99) == 0


def sequences_of(*texts: str) -> list[np.ndarray]:
    return [np.array([ord(letter) for letter in text], np.int32) for text in texts]


def test_tasks_are_split_where_their_siblings_share_more():
    """Two tasks of 100 tokens after 20 that all share, four samples each of 30: 120 + 4 * 30 twice, or 20 + 8 * 130."""
    start, tasks = "s" * 20, ["a" * 100, "b" * 100]
    rows = sequences_of(*(start + tasks[row % 2] + "xyzw"[row // 2] * 30 for row in range(8)))
    assert split_by_prefix(rows, [120] * 8) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_split_that_saves_less_than_a_pass_is_not_made():
    """Together 20 + 4 * (20 + 5) tokens; apart twice 40 + 2 * 5, which is 20 less, and a pass more."""
    start, tasks = "s" * 20, ["a" * 20, "b" * 20]
    rows = sequences_of(*(start + tasks[row % 2] + "xyzw"[row] * 5 for row in range(4)))
    assert PASS_TOKENS > 20
    assert split_by_prefix(rows, [40] * 4) == [[0, 1, 2, 3]]


def test_what_predicts_is_not_shared():
    rows = sequences_of(*("s" * 120 + end for end in "ab"))
    assert split_by_prefix(rows, [119, 119]) == [[0, 1]]
    assert split_by_prefix(rows[:1], [119]) == [[0]]
    assert split_by_prefix([], []) == []


@given(st.lists(st.text("ab", min_size=1, max_size=90), min_size=1, max_size=12))
def test_every_sequence_is_in_one_group(texts):
    groups = split_by_prefix(sequences_of(*texts), [len(text) - 1 for text in texts])
    assert sorted(index for group in groups for index in group) == list(range(len(texts)))
    assert all(group == sorted(group) for group in groups)


def test_siblings_stay_together_where_their_prompts_are_computed_once(kit):
    """Of four tasks with four samples each, steps of eight rows hold two tasks; elsewhere any rows."""
    experience = replace(kit.experience(kit.rows(16)), group=np.arange(16, dtype=np.int32) % 4)
    found = {}
    for shares in (False, True):
        plain = SimpleNamespace(name="solver")
        layout = BatchLayout("padded", 4096, shares_prefixes=shares)
        train = replace(TRAIN, minibatch_rows=8, epochs=3)
        scored = replace(experience, old_logprobs=experience.logprobs)
        advantages = Advantages(advantages=np.ones(len(experience.tokens), np.float32))
        update = PolicyUpdate(plain, scored, advantages, PPOLoss(PPOOptions()), train, layout=layout)
        steps = list(update._minibatches(0, 1))
        assert [len(step) for step in steps] == [8] * 6
        assert sorted(np.concatenate(steps[:2]).tolist()) == list(range(16))
        found[shares] = [len(set(experience.group[step].tolist())) for step in steps]
    assert found[True] == [2] * 6
    assert max(found[False]) > 2


def test_a_learner_computes_a_shared_prefix_once_with_the_same_gradient(model, kit):
    """Log-probabilities and gradients of all weights, with the prefix and without."""
    rows = [replace(row, prompt=[*START, *row.prompt]) for row in kit.rows(5)]
    experience = kit.experience(rows)
    found = []
    for shares in (False, True):
        plain = LogprobModel(AutoModelForCausalLM.from_pretrained(model).eval())
        layout = BatchLayout("padded", 4096, shares_prefixes=shares)
        (batch,) = build_batches(experience, np.arange(5), layout, device=torch.device("cpu"))
        assert batch.prefix == (30 if shares else 0)
        logprobs = plain(batch).logprobs
        logprobs.square().sum().backward()
        found.append([logprobs.detach(), *(weight.grad for weight in plain.parameters())])
    for own, expected in zip(*found, strict=True):
        torch.testing.assert_close(own, expected, atol=1e-5 * expected.abs().max().item(), rtol=0)


async def test_a_sampler_computes_a_shared_prefix_once(model, opened, large):
    engine = await opened(model)
    calls: list[tuple[int, ...]] = []
    base = engine._policies["solver"].model.base_model
    hook = base.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    prompts = prompts_of(4)
    sampling = [Sampling(max_tokens=6, temperature=1.0, seed=seed) for seed in range(4)]
    sampler = engine.sampler("solver")
    completions = await asyncio.gather(*map(sampler.sample, prompts, sampling))
    hook.remove()
    assert calls[:2] == [(1, 30), (4, 9)]
    plain = AutoModelForCausalLM.from_pretrained(model).eval()
    for prompt, completion in zip(prompts, completions, strict=True):
        expected = plain_logprobs(plain, prompt.tolist(), completion.tokens.tolist())
        np.testing.assert_allclose(completion.logprobs, expected, atol=2e-5)


async def sampled(engine, kit, *, wrong: float = 0.0):
    """An experience of what the engine samples; `wrong` is added to its log-probabilities."""
    prompts = prompts_of(8)
    sampler = engine.sampler("solver")
    sampling = [Sampling(max_tokens=6, temperature=1.0, seed=seed) for seed in range(8)]
    completions = await asyncio.gather(*map(sampler.sample, prompts, sampling))
    rows = [
        replace(
            kit.rows(1)[0],
            prompt=prompt.tolist(),
            tokens=completion.tokens.tolist(),
            logprobs=(completion.logprobs + wrong).tolist(),
            trajectory=number,
            weight=float(number > 0),
        )
        for number, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
    ]
    return kit.experience(rows)


def count_passes(engine) -> list[int]:
    """Rows of each pass over whole sequences from now on."""
    passes: list[int] = []
    base = engine._policies["solver"].model.base_model
    base.register_forward_pre_hook(
        lambda module, args, kwargs: passes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    return passes


async def test_a_sampler_that_agrees_is_believed(model, opened, kit, large):
    engine = await opened(model, train=TRAIN)
    experience = await sampled(engine, kit)
    passes = count_passes(engine)
    scored = await engine.score(experience, reference=False)
    assert sum(rows for rows in passes if rows > 1) == 4
    assert np.array_equal(scored.old_logprobs, experience.logprobs)
    plain = AutoModelForCausalLM.from_pretrained(model).eval()
    for row in range(8):
        part = slice(experience.offsets[row], experience.offsets[row + 1])
        prompt = experience.prompt_tokens[experience.prompt_offsets[row] : experience.prompt_offsets[row + 1]]
        expected = plain_logprobs(plain, prompt.tolist(), experience.tokens[part].tolist())
        np.testing.assert_allclose(scored.old_logprobs[part], expected, atol=2e-5)
    advantages = Advantages(advantages=np.ones(len(experience.tokens), np.float32))
    metrics = await engine.update(scored, advantages, PPOLoss(PPOOptions()), 0.0)
    # Of the rows that were scored: a difference of 0 would say that sampler and learner agree to the bit.
    assert 0.0 < metrics["solver"]["mismatch_max"] < 1e-4
    assert metrics["solver"]["ratio_max"] == pytest.approx(1.0, abs=1e-4)


async def test_a_sampler_that_rounds_is_believed_within_a_tolerance(model, opened, kit, large):
    """The ratio of the first step is learner to sampler, which is what a step should be clipped by."""
    engine = await opened(model, train=TRAIN, dtype="bfloat16")
    experience = await sampled(engine, kit)
    scored = await engine.score(experience, reference=False)
    assert np.array_equal(scored.old_logprobs, experience.logprobs)
    advantages = Advantages(advantages=np.ones(len(experience.tokens), np.float32))
    metrics = (await engine.update(scored, advantages, PPOLoss(PPOOptions()), 0.0))["solver"]
    # A processor that emulates bfloat16 may round a row alike whatever is computed beside it: 0 then.
    assert metrics["mismatch_mean"] < 0.05
    assert 1.0 <= metrics["ratio_max"] < 1.5


@pytest.mark.parametrize("case", ["small", "corrected", "stale", "updated", "reference", "wrong", "unknown"])
async def test_others_are_scored(model, opened, kit, large, monkeypatch, case):
    train = replace(TRAIN, correction=CorrectionSection()) if case == "corrected" else TRAIN
    if case == "small":
        monkeypatch.setattr(model_shape, "LARGE_MODEL", 10_000_000)
    engine = await opened(model, train=train)
    experience = await sampled(engine, kit, wrong=0.01 if case == "wrong" else 0.0)
    if case == "stale":
        experience = replace(experience, version=experience.version - 1)
    if case == "unknown":  # as of a teacher
        experience = replace(experience, logprobs=np.full_like(experience.logprobs, np.nan))
    if case == "updated":
        advantages = Advantages(advantages=np.ones(len(experience.tokens), np.float32))
        await engine.update(await engine.score(experience), advantages, PPOLoss(PPOOptions()), 0.0)
    passes = count_passes(engine)
    scored = await engine.score(experience, reference=case == "reference")
    assert sum(passes) >= 8
    assert not np.array_equal(scored.old_logprobs, experience.logprobs)


def test_tolerances_are_of_both_dtypes():
    assert set(sampled_scores.MAX_GAP) == {torch.float32, torch.bfloat16}
