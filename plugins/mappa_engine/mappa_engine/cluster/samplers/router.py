"""Prefix-aware routing of requests to engines, from what was sent to each; makes no calls."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

from mappa_engine.arrays import Float64, Int32

BLOCK_TOKENS = 64
"""Tokens per block of a prompt: a shorter common prefix does not affect routing."""
MAX_BLOCKS = 1 << 14
"""Maximum number of remembered blocks per engine, about a million tokens."""


class Router:
    """Chooses the engine with the least work: its load plus the part of the prompt that is not in its prefix cache. So
    the turns of one trajectory stay on one engine unless it falls behind."""

    def __init__(self, engines: int, *, prefixes: bool) -> None:
        """`prefixes`: whether engines cache prefixes."""
        self._known: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(engines)]
        self._holders: dict[bytes, set[int]] = {}
        """Engines that know a block, so that the others cost nothing to choose from."""
        self._prefixes = prefixes

    def choose(self, weights: str, prompt: Int32, loads: Float64 | Sequence[float]) -> int:
        """Choose the engine for a prompt (P,). `loads` (engines,) are the tokens that each engine has yet to compute,
        infinite where it must not be used; `weights` identifies policy and version, as KV caches of others do not
        count."""
        given = np.asarray(loads, dtype=np.float64)
        return min((load - saved, engine) for engine, load, saved in self._candidates(weights, prompt, given))[1]

    def _candidates(self, weights: str, prompt: Int32, loads: Float64) -> Iterator[tuple[int, float, int]]:
        """Yield, for every number of blocks of the prompt, the least loaded engine that knows them, its load, and the
        tokens that it need not compute."""
        engine = int(loads.argmin())
        yield engine, float(loads[engine]), 0
        holders: set[int] | None = None
        for number, block in enumerate(self._blocks(weights, prompt), start=1):
            found = self._holders.get(block, set())
            if len(found) == len(self._known):
                engine = int(loads.argmin())
            else:
                holders = found if holders is None else holders & found
            if holders is not None:
                if not holders:
                    return
                engine = min(holders, key=lambda holder: (loads[holder], holder))
            yield engine, float(loads[engine]), BLOCK_TOKENS * number

    def record_prefix(self, engine: int, weights: str, tokens: Int32) -> None:
        """Record that the engine computes these tokens, and so caches their keys and values."""
        known = self._known[engine]
        for block in self._blocks(weights, tokens):
            known[block] = None
            known.move_to_end(block)
            self._holders.setdefault(block, set()).add(engine)
        while len(known) > MAX_BLOCKS:
            self._forget(engine, known.popitem(last=False)[0])

    def clear(self, engine: int) -> None:
        """Forget the cached blocks of a restarted engine."""
        for block in self._known[engine]:
            self._forget(engine, block)
        self._known[engine].clear()

    def _forget(self, engine: int, block: bytes) -> None:
        holders = self._holders[block]
        holders.remove(engine)
        if not holders:
            del self._holders[block]

    def _blocks(self, weights: str, tokens: Int32) -> Iterator[bytes]:
        """Hash every whole block together with all blocks before it."""
        digest = hashlib.blake2b(weights.encode(), digest_size=16)
        for end in range(BLOCK_TOKENS, len(tokens) + 1 if self._prefixes else 0, BLOCK_TOKENS):
            digest.update(tokens[end - BLOCK_TOKENS : end].tobytes())
            yield digest.copy().digest()
