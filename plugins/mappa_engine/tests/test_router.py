"""Requests go where the least is left to compute."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mappa_engine.cluster.samplers.router import BLOCK_TOKENS, MAX_BLOCKS, Router


def prompt(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1000, length).astype(np.int32)


def test_least_loaded_engine_without_common_prefix():
    router = Router(3, prefixes=True)
    assert router.choose("solver@0", prompt(300), [50, 20, 30]) == 1
    assert router.choose("solver@0", prompt(300), [math.inf, math.inf, 30]) == 2


def test_turns_stay_on_one_engine_unless_it_is_overloaded():
    router = Router(2, prefixes=True)
    first = prompt(10 * BLOCK_TOKENS)
    router.record_prefix(1, "solver@0", first)
    second = np.concatenate([first, prompt(BLOCK_TOKENS, seed=1)])
    assert router.choose("solver@0", second, [0, 9 * BLOCK_TOKENS]) == 1
    assert router.choose("solver@0", second, [0, 11 * BLOCK_TOKENS]) == 0


def test_only_prefixes_of_the_same_weights_count():
    router = Router(2, prefixes=True)
    known = prompt(8 * BLOCK_TOKENS)
    router.record_prefix(1, "solver@0", known)
    other_head = np.concatenate([prompt(1, seed=2), known])
    for weights, tokens in [("solver@0", other_head), ("solver@1", known), ("critic@0", known)]:
        assert router.choose(weights, tokens, [0, 1]) == 0
    assert router.choose("solver@0", known, [0, 1]) == 1


def test_cleared_engine_has_no_prefixes():
    router = Router(2, prefixes=True)
    router.record_prefix(1, "solver@0", prompt(500))
    router.clear(1)
    assert router.choose("solver@0", prompt(500), [0, 1]) == 0


def test_without_prefix_caching_only_load_counts():
    router = Router(2, prefixes=False)
    router.record_prefix(1, "solver@0", prompt(500))
    assert router.choose("solver@0", prompt(500), [0, 1]) == 0


def test_old_prefixes_are_forgotten():
    router = Router(2, prefixes=True)
    old, new = prompt(BLOCK_TOKENS), prompt(BLOCK_TOKENS * MAX_BLOCKS, seed=1)
    router.record_prefix(1, "solver@0", old)
    router.record_prefix(1, "solver@0", new)
    assert router.choose("solver@0", old, [0, 1]) == 0


@given(
    loads=st.lists(st.integers(0, 10_000), min_size=1, max_size=5),
    lengths=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 400)), max_size=8),
    asked=st.integers(1, 400),
)
def test_prefix_is_worth_no_longer_queue(loads, lengths, asked):
    router = Router(len(loads), prefixes=True)
    for place, length in lengths:
        router.record_prefix(place % len(loads), "solver@0", prompt(length))
    chosen = router.choose("solver@0", prompt(asked), loads)
    assert loads[chosen] - min(loads) <= asked


@given(
    events=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(0, 6), st.booleans()), max_size=25
    ),
    loads=st.lists(st.integers(0, 400) | st.just(math.inf), min_size=4, max_size=4).filter(
        lambda loads_of_engines: min(loads_of_engines) < math.inf
    ),
    asked=st.tuples(st.sampled_from("abc"), st.integers(0, 6)),
)
def test_chosen_engine_has_least_to_compute(events, loads, asked):
    """Prompts of three families share nothing between them, and all blocks up to the shorter one's end within."""
    router, known = Router(4, prefixes=True), [dict.fromkeys("abc", 0) for _ in range(4)]
    texts = {family: prompt(6 * BLOCK_TOKENS, seed=ord(family)) for family in "abc"}
    for engine, family, blocks, lost in events:
        if lost:
            router.clear(engine)
            known[engine] = dict.fromkeys("abc", 0)
        else:
            router.record_prefix(engine, "solver@0", texts[family][: blocks * BLOCK_TOKENS + 5])
            known[engine][family] = max(known[engine][family], min(blocks, 6))
    family, blocks = asked
    costs = [load - BLOCK_TOKENS * min(known[engine][family], blocks) for engine, load in enumerate(loads)]
    chosen = router.choose("solver@0", texts[family][: blocks * BLOCK_TOKENS], loads)
    assert chosen == costs.index(min(costs))
