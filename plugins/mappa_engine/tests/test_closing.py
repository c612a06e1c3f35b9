"""An engine that is closed, as Ctrl-C does, ends what it computes: an update of a large model takes minutes."""

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest

from mappa_core import Advantages, Message
from mappa_core.engine import EngineError, Sampling, TrainSection
from mappa_engine.learning.logprob_model import LogprobModel
from mappa_engine.losses import PPOLoss
from mappa_engine.options import PPOOptions

TRAIN = TrainSection(iterations=10, learning_rate=1e-3, minibatch_rows=1)
LOSS = PPOLoss(PPOOptions())
PATIENCE_S = 60


class Gate:
    """Holds a thread until the test lets it pass, and counts how often one came."""

    def __init__(self) -> None:
        self.visits, self.reached, self.open = 0, threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.visits += 1
        self.reached.set()
        assert self.open.wait(PATIENCE_S)


async def close_meanwhile(engine, gate: Gate, work: asyncio.Task) -> None:
    """Close the engine while its thread is at the gate; `work` fails."""
    assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
    closing = asyncio.create_task(engine.close())
    while not engine._worker._closing.is_set():
        await asyncio.sleep(0.01)
    gate.open.set()
    with pytest.raises(EngineError, match="was closed while it computed"):
        await work
    await closing


async def test_an_update_ends_at_its_next_pass(qwen3, opened, kit):
    engine, gate = await opened(qwen3, train=TRAIN), Gate()
    scored = await engine.score(kit.experience(kit.rows(5)))
    given = Advantages(advantages=np.ones(len(scored.tokens), np.float32))

    def loss(*arguments):
        gate()
        return LOSS(*arguments)

    await close_meanwhile(engine, gate, asyncio.create_task(engine.update(scored, given, loss, 0.0)))
    assert gate.visits == 1


async def test_scoring_ends_at_its_next_pass(qwen3, opened, kit, monkeypatch):
    gate, forward = Gate(), LogprobModel.forward
    monkeypatch.setattr(LogprobModel, "forward", lambda *given, **options: (gate(), forward(*given, **options))[1])
    engine = await opened(qwen3, train=replace(TRAIN, micro_tokens=1))
    await close_meanwhile(engine, gate, asyncio.create_task(engine.score(kit.experience(kit.rows(5)), reference=False)))
    assert gate.visits == 1


async def test_actions_that_are_sampled_fail(qwen3, opened, monkeypatch):
    engine, gate = await opened(qwen3), Gate()
    decoder, sampler = engine._decoders["solver"], engine.sampler("solver")
    step = decoder.step
    monkeypatch.setattr(decoder, "step", lambda **options: (gate(), step(**options))[1])
    prompt = sampler.render([Message(role="user", content="What is 2 + 3?")])
    request = Sampling(max_tokens=40, temperature=1.0, seed=5)
    await close_meanwhile(engine, gate, asyncio.create_task(sampler.sample(prompt, request)))
    assert gate.visits == 1


async def test_actions_that_wait_behind_a_job_fail(qwen3, opened, kit, monkeypatch):
    engine, gate = await opened(qwen3, train=TRAIN), Gate()
    decoder, sampler = engine._decoders["solver"], engine.sampler("solver")
    step = decoder.step
    monkeypatch.setattr(decoder, "step", lambda **options: (step(**options), gate())[0])
    prompt = sampler.render([Message(role="user", content="What is 2 + 3?")])
    request = Sampling(max_tokens=1, temperature=1.0, seed=5)
    first = asyncio.create_task(sampler.sample(prompt, request))
    assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
    job = asyncio.create_task(engine.score(kit.experience(kit.rows(1)), reference=False))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(sampler.sample(prompt, request))
    await asyncio.sleep(0)
    await close_meanwhile(engine, gate, asyncio.create_task(asyncio.wait_for(waiting, PATIENCE_S)))
    assert (await first).tokens.size == 1
    with pytest.raises(EngineError, match="was closed while it computed"):
        await job
