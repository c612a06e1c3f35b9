"""A contract for engines: sampler and learner agree, checkpoints restore everything. Needs pytest-asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mappa.testing.fakes import fake_step
from mappa_core.config.schema import TrainSection
from mappa_core.credit.build_experience import build_experience
from mappa_core.errors import PromptTooLong
from mappa_core.experience import Advantages, Experience
from mappa_core.protocols import Engine, Loss, Machine, PolicySpec, Rewards
from mappa_core.records import Completion, Float32, Message, Sampling, Task, Trajectory

AGENT, POLICY = "solo", "default"
_PROMPTS = ("Say one of these.\n- pear\n- stone", "- seven", "Two words", "- a\n- b\n- c")
SAMPLING = Sampling(max_tokens=12)
EngineOpener = Callable[[], Awaitable[Engine]]


class EngineContract:
    """Subclass it, set `model` and implement `engine` and `loss`."""

    model: str  # A tiny one, as a recipe names it.
    tolerance: float = 2e-3  # Largest difference between sampler and learner on one token, in nats.
    train: TrainSection = TrainSection(iterations=4, learning_rate=1e-2)

    def engine(self) -> Engine:
        """Create an engine."""
        raise NotImplementedError

    def loss(self) -> Loss:
        """Create the loss to train with."""
        raise NotImplementedError

    @pytest.fixture
    async def opened(self) -> AsyncIterator[EngineOpener]:
        """Opens engines, each closing the previous one, as a device may have room for only one."""
        engines: list[Engine] = []

        async def open_engine() -> Engine:
            for engine in engines:
                await engine.close()
            engines.append(self.engine())
            await engines[-1].open([PolicySpec(name=POLICY, model=self.model)], self.train, seed=0)
            return engines[-1]

        yield open_engine
        for engine in engines:
            await engine.close()
            await engine.close()

    async def test_completions_have_tokens_and_log_probabilities(self, opened: EngineOpener) -> None:
        """Keep the sampled tokens, their log-probabilities and versions of weights; never tokenize the text again."""
        engine = await opened()
        for completion in await _sampled(engine):
            tokens, logprobs = completion.tokens, completion.logprobs
            assert tokens is not None and logprobs is not None and completion.prompt_tokens is not None
            assert tokens.dtype == np.int32 and logprobs.dtype == np.float32
            assert 0 < len(tokens) == len(logprobs) <= SAMPLING.max_tokens
            assert bool((logprobs <= 0.0).all()), "log-probabilities are nats, at most 0"
            ends = [span.end for span in completion.versions]
            assert [span.start for span in completion.versions] == [0, *ends[:-1]] and ends[-1] == len(tokens)
            is_full = len(tokens) == SAMPLING.max_tokens
            assert completion.finish == ("length" if is_full else "stop") or completion.text

    async def test_a_text_is_encoded_as_it_would_be_sampled(self, opened: EngineOpener) -> None:
        """`encode` returns tokens with a stop token, or None. Tokenize what looks like a control token as text."""
        engine = await opened()
        tokens = engine.sampler(POLICY).encode("plain words")
        assert tokens is not None and tokens.dtype == np.int32 and len(tokens) > 1

    async def test_a_prompt_that_does_not_fit_is_refused(self, opened: EngineOpener) -> None:
        """Raise PromptTooLong, never truncate: agents would learn from text that they did not see."""
        engine = await opened()
        sampler = engine.sampler(POLICY)
        prompt = sampler.render([Message(role="user", content="word " * 20_000)])
        with pytest.raises(PromptTooLong):
            await sampler.sample(prompt, SAMPLING)

    async def test_concurrent_requests_do_not_mix(self, opened: EngineOpener) -> None:
        """Every caller of `sample` gets the completion of its own prompt."""
        engine = await opened()
        prompts = [_prompt(engine, text) for text in _PROMPTS * 4]
        completions = await asyncio.gather(*(engine.sampler(POLICY).sample(prompt, SAMPLING) for prompt in prompts))
        for prompt, completion in zip(prompts, completions, strict=True):
            assert completion.prompt_tokens is not None
            np.testing.assert_array_equal(completion.prompt_tokens, prompt)

    async def test_the_same_seeds_give_the_same(self, opened: EngineOpener) -> None:
        """A `deterministic` engine gives bit-equal completions for equal requests in equal batches."""
        engine = await opened()
        if not engine.deterministic:
            pytest.skip("this engine does not promise it")
        completions = await _sampled(engine)
        for first, second in zip(completions, await _sampled(await opened()), strict=True):
            assert (first.text, _bits(first)) == (second.text, _bits(second))

    async def test_the_learner_scores_what_was_sampled_as_the_sampler_did(self, opened: EngineOpener) -> None:
        """`score` fills `old_logprobs` and `ref_logprobs`, which agree with the sampler's while the weights are
        unchanged; if not, check for a different chat template, temperature, or precision of the output head."""
        engine = await opened()
        experience = await _experience(engine)
        scored = await engine.score(experience)
        for column in (scored.old_logprobs, scored.ref_logprobs):
            assert column is not None and column.shape == experience.tokens.shape
            assert np.abs(column - experience.logprobs).max() <= self.tolerance

    async def test_what_was_cut_is_scored_as_it_was_sampled(self, opened: EngineOpener) -> None:
        """Completions sampled with top_p or top_k have their sampling masks, and `score` computes log-probabilities of
        what these left; an engine without masks refuses such runs, and skips this."""
        engine = await opened()
        completions = await _sampled(engine, replace(SAMPLING, top_p=0.8, top_k=2))
        if any(completion.mask_tokens is None for completion in completions):
            pytest.skip("this engine returns no sampling masks: runs with top_p or top_k are refused")
        experience = await _experience(engine, completions=completions)
        scored = (await engine.score(experience)).old_logprobs
        assert scored is not None and np.abs(scored - experience.logprobs).max() <= self.tolerance
        assert experience.mask_tokens is not None and experience.mask_offsets is not None
        sizes = np.diff(experience.mask_offsets)
        assert sizes.min() >= 1 and sizes.max() == 2, "top_k of 2 leaves at most two"
        left = np.repeat(experience.tokens, sizes) == experience.mask_tokens
        assert np.add.reduceat(left, experience.mask_offsets[:-1]).all(), "what was sampled is among what was left"

    async def test_an_action_ends_at_a_stop_text(self, opened: EngineOpener) -> None:
        """`Sampling.stop` ends an action at the token that completes one of its texts. The text before it is returned;
        the sampled tokens, its own included, are kept, and are those that are sampled without it."""
        engine = await opened()
        for seed, free in enumerate(await _sampled(engine)):
            if len(free.text) < 2:
                continue
            wanted = free.text[len(free.text) // 2 :][:2]
            request = replace(SAMPLING, seed=seed, stop=("never written", wanted))
            stopped = await engine.sampler(POLICY).sample(free.prompt_tokens, request)
            assert (stopped.text, stopped.stop_text, stopped.finish) == (free.text.split(wanted)[0], wanted, "stop")
            assert stopped.tokens is not None and free.tokens is not None
            count = len(stopped.tokens)
            np.testing.assert_array_equal(stopped.tokens, free.tokens[:count])
            assert stopped.logprobs is not None and stopped.logprobs.shape == (count,)
            assert stopped.versions[-1].end == count

    async def test_an_update_moves_towards_what_was_better(self, opened: EngineOpener) -> None:
        """After `update` and `publish` the version is one higher, and actions with a positive advantage are likelier.
        Check the sign of the loss, and that `publish` sends the updated weights to the sampler."""
        engine = await opened()
        before = await engine.score(await _experience(engine))
        better = before.row_of_token % 2 == 0
        await engine.update(before, _advantages(np.where(better, 1.0, -1.0)), self.loss(), 0.0)
        receipts = await engine.publish()
        assert receipts[POLICY].version == 1
        after = await engine.score(before)
        assert before.old_logprobs is not None and after.old_logprobs is not None
        gain = after.old_logprobs - before.old_logprobs
        assert gain[better].mean() > gain[~better].mean(), "what was better has not become likelier"

    async def test_an_action_without_reward_changes_nothing(self, opened: EngineOpener) -> None:
        """Rows of weight 0 contribute no gradient: multiply by the weight, and exclude their tokens from every mean."""
        engine = await opened()
        experience = await _experience(engine, rewards=(1.0, None))
        rewarded = experience.token_weight > 0
        wild, none = (_advantages(np.where(rewarded, experience.row_of_token + 1.0, untold)) for untold in (1e3, 0.0))
        _, after_wild = await self._updated(engine, experience, wild, 0.0)
        _, after_none = await self._updated(await opened(), experience, none, 0.0)
        assert np.abs(after_wild - after_none).max() <= self.tolerance

    async def test_a_checkpoint_brings_everything_back(self, opened: EngineOpener, tmp_path: Path) -> None:
        """A new engine that loads a checkpoint has the same weights, optimiser state and version: save all of them."""
        engine = await opened()
        experience = await engine.score(await _experience(engine))
        advantages = _advantages(experience.row_of_token + 1.0)
        await engine.update(experience, advantages, self.loss(), 0.0)
        await engine.publish()
        await engine.save(tmp_path / "checkpoint")
        version, kept = await self._updated(engine, experience, advantages, 0.25)
        fresh = await opened()
        await fresh.load(tmp_path / "checkpoint")
        again, loaded = await self._updated(fresh, experience, advantages, 0.25)
        assert again > 1 and version == 2, "the version counts on after a checkpoint"
        np.testing.assert_allclose(loaded, kept, atol=self.tolerance)

    async def test_a_plan_is_text_and_json(self, opened: EngineOpener) -> None:
        """`plan` returns tables, or says why the memory is not known; `details` are JSON values."""
        specs, machines = [PolicySpec(name=POLICY, model=self.model)], [Machine(host="one", cpus=8)]
        plan = (await opened()).plan(specs, self.train, rows=4, machines=machines)
        assert plan.tables or plan.unknown, "say in `unknown` why there is no plan"
        assert all(len(row) == len(table[0]) for table in plan.tables for row in table)
        msgspec.json.encode(plan.details)

    async def _updated(
        self, engine: Engine, experience: Experience, advantages: Advantages, progress: float
    ) -> tuple[int, Float32]:
        """Return the new version and the new log-probabilities."""
        await engine.update(await engine.score(experience), advantages, self.loss(), progress)
        receipt = (await engine.publish())[POLICY]
        scored = (await engine.score(experience)).old_logprobs
        assert scored is not None
        return receipt.version, scored


async def _sampled(engine: Engine, sampling: Sampling = SAMPLING) -> Sequence[Completion]:
    requests = [(_prompt(engine, text), replace(sampling, seed=at)) for at, text in enumerate(_PROMPTS)]
    sampler = engine.sampler(POLICY)
    return await asyncio.gather(*(sampler.sample(prompt, sampling) for prompt, sampling in requests))


def _prompt(engine: Engine, text: str) -> Any:
    return engine.sampler(POLICY).render([Message(role="user", content=text)])


async def _experience(
    engine: Engine, rewards: Rewards = (1.0, 0.0), completions: Sequence[Completion] | None = None
) -> Experience:
    """Make trajectories of one action each, by default sampled now, with rewards taken from `rewards` in turn."""
    completions = completions or await _sampled(engine)
    tasks = [Task(id=f"t{at}", prompt=prompt) for at, prompt in enumerate(_PROMPTS)]
    steps = [
        fake_step(f"{task.id}/0", AGENT, completion, policy=POLICY)
        for task, completion in zip(tasks, completions, strict=True)
    ]
    trajectories = [
        Trajectory(id=task.id, task=task, sample=0, iteration=0, steps=(step,))
        for task, step in zip(tasks, steps, strict=True)
    ]
    shaped = [(rewards[at % len(rewards)],) for at in range(len(completions))]
    return build_experience(trajectories, shaped, {AGENT: POLICY}, {POLICY}, "correct")


def _advantages(values: Any) -> Advantages:
    return Advantages(advantages=np.asarray(values, dtype=np.float32))


def _bits(completion: Completion) -> tuple[bytes, bytes]:
    assert completion.tokens is not None and completion.logprobs is not None
    return completion.tokens.tobytes(), completion.logprobs.tobytes()
