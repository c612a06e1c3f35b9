"""A contract for engines to subclass: sampler and learner agree, and checkpoints restore everything. Needs
pytest-asyncio in auto mode."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mappa_core.config.schema import TrainSection
from mappa_core.credit.build_experience import build_experience
from mappa_core.errors import PromptTooLong
from mappa_core.experience import Advantages, Experience
from mappa_core.protocols import Engine, Loss, Machine, PolicySpec, Rewards
from mappa_core.records import Completion, Float32, Int32, Message, Sampling, Step, Task, Trajectory

AGENT, POLICY = "solo", "default"
_PROMPTS = ("Say one of these.\n- pear\n- stone", "- seven", "Two words", "- a\n- b\n- c")
SAMPLING = Sampling(max_tokens=12)
EngineOpener = Callable[[], Awaitable[Engine]]


class EngineContract:
    """Subclass it, set `model` and implement `engine` and `loss`."""

    model: str
    """The model that is sampled and trained, as a recipe names it; a tiny one."""
    tolerance: float = 2e-3
    """Largest difference between sampler and learner on one token, in nats, with the same weights."""
    train: TrainSection = TrainSection(iterations=4, learning_rate=1e-2)

    def engine(self) -> Engine:
        """Create an engine."""
        raise NotImplementedError

    def loss(self) -> Loss:
        """Create the loss to train with."""
        raise NotImplementedError

    @pytest.fixture
    async def opened(self) -> AsyncIterator[EngineOpener]:
        """Opens engines one after the other, each closing the previous one, as a device may have room for only one."""
        engines: list[Engine] = []

        async def open_engine() -> Engine:
            for one in engines:
                await one.close()
            engines.append(self.engine())
            await engines[-1].open([PolicySpec(name=POLICY, model=self.model)], self.train, seed=0)
            return engines[-1]

        yield open_engine
        for engine in engines:
            await engine.close()
            await engine.close()

    async def test_completions_have_tokens_and_log_probabilities(self, opened: EngineOpener) -> None:
        """A completion has the sampled token ids, a log-probability for each, and the version of the weights that
        each was sampled from. Keep the sampled tokens; never tokenize the text again."""
        engine = await opened()
        for completions in await _sampled(engine):
            assert (
                completions.tokens is not None
                and completions.logprobs is not None
                and completions.prompt_tokens is not None
            )
            assert completions.tokens.dtype == np.int32 and completions.logprobs.dtype == np.float32
            assert 0 < len(completions.tokens) == len(completions.logprobs) <= SAMPLING.max_tokens
            assert bool((completions.logprobs <= 0.0).all()), "log-probabilities are nats, at most 0"
            spans = [(span.start, span.end) for span in completions.versions]
            ends = [end for _, end in spans]
            assert [start for start, _ in spans] == [0, *ends[:-1]] and ends[-1] == len(completions.tokens)
            assert (
                completions.finish == ("length" if len(completions.tokens) == SAMPLING.max_tokens else "stop")
                or completions.text
            )

    async def test_a_text_is_encoded_as_it_would_be_sampled(self, opened: EngineOpener) -> None:
        """`encode` returns tokens with a final stop token, or None. Tokenize text that only looks like a control token
        as ordinary text."""
        engine = await opened()
        tokens = engine.sampler(POLICY).encode("plain words")
        assert tokens is not None and tokens.dtype == np.int32 and len(tokens) > 1

    async def test_a_prompt_that_does_not_fit_is_refused(self, opened: EngineOpener) -> None:
        """A prompt beyond the model's window raises PromptTooLong. Never truncate it: an agent that was shown half of
        what is recorded would learn from text that it did not see."""
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
        """An engine that declares itself `deterministic` gives bit-equal completions for equal requests in equal
        batches."""
        engine = await opened()
        if not engine.deterministic:
            pytest.skip("this engine does not promise it")
        completions = await _sampled(engine)
        for first, second in zip(completions, await _sampled(await opened()), strict=True):
            assert (first.text, _bits(first)) == (second.text, _bits(second))

    async def test_the_learner_scores_what_was_sampled_as_the_sampler_did(self, opened: EngineOpener) -> None:
        """`score` fills `old_logprobs` and `ref_logprobs`. They agree with the sampler's as long as the weights are
        unchanged; if not, check for a different chat template, temperature, or precision of the output head."""
        engine = await opened()
        experience = await _experience(engine)
        scored = await engine.score(experience)
        for column in (scored.old_logprobs, scored.ref_logprobs):
            assert column is not None and column.shape == experience.tokens.shape
            assert np.abs(column - experience.logprobs).max() <= self.tolerance

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
        """Rows of weight 0 contribute no gradient. Multiply by the weight, and exclude their tokens from every mean."""
        engine = await opened()
        experience = await _experience(engine, rewards=(1.0, None))
        rewarded = experience.token_weight > 0
        wild, none = (_advantages(np.where(rewarded, experience.row_of_token + 1.0, untold)) for untold in (1e3, 0.0))
        _, one = await self._updated(engine, experience, wild, 0.0)
        _, two = await self._updated(await opened(), experience, none, 0.0)
        assert np.abs(one - two).max() <= self.tolerance

    async def test_a_checkpoint_brings_everything_back(self, opened: EngineOpener, tmp_path: Path) -> None:
        """A new engine that loads a checkpoint has the same weights, optimiser state and version: it gives the same
        scores and makes the same updates."""
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
        """Update and publish; return the new version and the new log-probabilities."""
        await engine.update(await engine.score(experience), advantages, self.loss(), progress)
        receipt = (await engine.publish())[POLICY]
        scored = (await engine.score(experience)).old_logprobs
        assert scored is not None
        return receipt.version, scored


async def _sampled(engine: Engine) -> Sequence[Completion]:
    """Sample a completion per prompt, concurrently."""
    requests = [(_prompt(engine, text), replace(SAMPLING, seed=at)) for at, text in enumerate(_PROMPTS)]
    sampler = engine.sampler(POLICY)
    return await asyncio.gather(*(sampler.sample(prompt, sampling) for prompt, sampling in requests))


def _prompt(engine: Engine, text: str) -> Any:
    return engine.sampler(POLICY).render([Message(role="user", content=text)])


async def _experience(engine: Engine, rewards: Rewards = (1.0, 0.0)) -> Experience:
    """Sample an iteration of trajectories of one action each, with rewards taken from `rewards` in turn."""
    completions = await _sampled(engine)
    trajectories = [
        Trajectory(
            id=f"t{at}", task=Task(id=f"t{at}", prompt=_PROMPTS[at]), sample=0, iteration=0, steps=(_step(at, one),)
        )
        for at, one in enumerate(completions)
    ]
    shaped = [(rewards[at % len(rewards)],) for at in range(len(completions))]
    return build_experience(trajectories, shaped, {AGENT: POLICY}, {POLICY}, "correct")


def _step(number: int, completion: Completion) -> Step:
    reply = Message(role="assistant", content=completion.text)
    return Step(
        id=f"t{number}/0",
        agent=AGENT,
        turn=0,
        position=0,
        policy=POLICY,
        messages=(),
        reply=reply,
        completion=completion,
    )


def _advantages(values: Any) -> Advantages:
    return Advantages(advantages=np.asarray(values, dtype=np.float32))


def _bits(completion: Completion) -> tuple[bytes, bytes]:
    tokens: Int32 | None = completion.tokens
    assert tokens is not None and completion.logprobs is not None
    return tokens.tobytes(), completion.logprobs.tobytes()
