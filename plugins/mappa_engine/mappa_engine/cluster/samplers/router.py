"""Prefix-aware routing of requests to engines, from what was sent to each; makes no calls."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

from mappa_engine.arrays import Int32

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
        self._prefixes = prefixes

    def choose(self, weights: str, prompt: Int32, loads: Sequence[float]) -> int:
        """Choose the engine for a prompt (P,). `loads` are the tokens that each engine has yet to compute, infinite
        where it must not be used; `weights` identifies policy and version, as KV caches of others do not count."""
        blocks = self._blocks(weights, prompt)
        costs = [
            load + len(prompt) - BLOCK_TOKENS * self._known_prefix_blocks(one, blocks) for one, load in enumerate(loads)
        ]
        return costs.index(min(costs))

    def record_prefix(self, engine: int, weights: str, tokens: Int32) -> None:
        """Record that the engine computes these tokens, and so caches their keys and values."""
        known = self._known[engine]
        for block in self._blocks(weights, tokens):
            known[block] = None
            known.move_to_end(block)
        while len(known) > MAX_BLOCKS:
            known.popitem(last=False)

    def clear(self, engine: int) -> None:
        """Forget the cached blocks of a restarted engine."""
        self._known[engine].clear()

    def _known_prefix_blocks(self, engine: int, blocks: Sequence[bytes]) -> int:
        known = self._known[engine]
        return next((index for index, block in enumerate(blocks) if block not in known), len(blocks))

    def _blocks(self, weights: str, tokens: Int32) -> list[bytes]:
        """Hash every whole block together with all blocks before it."""
        if not self._prefixes:
            return []
        digest = hashlib.blake2b(weights.encode(), digest_size=16)
        digests = []
        for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
            digest.update(tokens[end - BLOCK_TOKENS : end].tobytes())
            digests.append(digest.copy().digest())
        return digests
