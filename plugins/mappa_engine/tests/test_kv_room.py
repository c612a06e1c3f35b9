"""Requests are admitted as the memory for keys and values has room, with the results that each would have alone."""

import asyncio
from itertools import pairwise

import numpy as np
import pytest

from mappa_core import ConfigError
from mappa_core.engine import PromptTooLong, Sampling
from mappa_engine.local.kv_cache import SlotCache

TINY = "package:mappa_engine/models/tiny"


@pytest.fixture
def capacities(monkeypatch):
    """Capacities of all caches, (rows, columns), in order."""
    found, reserve = [], SlotCache.reserve

    def record(cache, slots, width):
        reserve(cache, slots, width)
        found.append(cache.capacity)

    monkeypatch.setattr(SlotCache, "reserve", record)
    return found


async def sample(engine, requests):
    sampler = engine.sampler("solver")
    prompts = [np.arange(5, 5 + length, dtype=np.int32) % 90 + 5 for length, _, _ in requests]
    answers = await asyncio.gather(
        *(
            sampler.sample(prompt, Sampling(max_tokens=most, seed=seed))
            for prompt, (_, most, seed) in zip(prompts, requests, strict=True)
        )
    )
    return [(completion.tokens.tolist(), completion.logprobs) for completion in answers]


@pytest.mark.parametrize("deterministic", [False, True])
async def test_waiting_requests_get_the_same_completions(opened, capacities, deterministic):
    """Long requests come first, then many short ones, whose rows outnumber what the width of the first leaves."""
    requests = [(200, 100, seed) for seed in range(6)] + [(20 + seed, 30, seed) for seed in range(30)]
    roomy = await opened(TINY, deterministic=deterministic)
    expected = await sample(roomy, requests)
    widest = max(rows * columns for rows, columns in capacities)
    capacities.clear()
    tight = await opened(TINY, deterministic=deterministic, kv_cache_mb=1)
    room = (1 << 20) // tight._decoders["solver"]._base.kv_bytes
    assert 2 * 300 < room < widest, "the room holds two of the long requests and not all"
    found = await sample(tight, requests)
    assert max(rows * columns for rows, columns in capacities) <= room
    assert max(rows for rows, _ in capacities) > room // 300, "short rows get the room that long ones left"
    for (tokens, logprobs), (other_tokens, other_logprobs) in zip(expected, found, strict=True):
        assert tokens == other_tokens
        np.testing.assert_allclose(logprobs, other_logprobs, atol=1e-4)


async def test_cache_grows_by_an_eighth(opened, capacities):
    engine = await opened(TINY)
    capacities.clear()
    await sample(engine, [(120, 150, seed) for seed in range(3)])
    widths = [columns for _, columns in capacities]
    assert widths[0] == 121 and max(widths) <= 270 * 9 / 8
    assert all(later <= earlier * 9 / 8 for earlier, later in pairwise(widths))


async def test_shorter_window_is_enforced(opened):
    engine = await opened(TINY, max_model_len=64)
    await sample(engine, [(40, 24, 0)])
    with pytest.raises(PromptTooLong, match=r"do not fit the window of .*, 64 tokens"):
        await sample(engine, [(40, 25, 0)])


async def test_request_larger_than_the_cache_is_refused(opened):
    with pytest.raises(ConfigError, match=r"kv_cache_mb=1 holds \d+ tokens .* set it to at least \d+, or"):
        await opened(TINY, kv_cache_mb=1, max_model_len=100_000)
    engine = await opened(TINY, kv_cache_mb=1)
    with pytest.raises(PromptTooLong, match=r"in engine\.options\.kv_cache_mb, \d+ tokens"):
        await sample(engine, [(40, 660, 0)])
