"""Which engine gets a request. Pure: it knows what was sent where, and asks nobody."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence

from mappa_core.records import Int32

BLOCK = 64
"""Tokens of a prompt that are told apart: a shorter head in common is not worth a detour."""
REMEMBERED = 1 << 14
"""Blocks that are remembered of each engine, about a million tokens."""


class Router:
    """Sends a request where the least is left to compute: what the engine has to do already, and the part of the prompt
    that it has not computed before. So the turns of one trajectory stay on one engine unless it falls behind."""

    def __init__(self, engines: int, *, prefixes: bool) -> None:
        """`prefixes`: whether engines keep the heads of prompts at all."""
        self._known: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(engines)]
        self._prefixes = prefixes

    def choose(self, weights: str, prompt: Int32, loads: Sequence[float]) -> int:
        """The engine for a prompt (P,). `loads` are tokens that each engine has yet to compute, infinite where it may
        not be used; `weights` names policy and version, since others' keys and values are of no use."""
        blocks = self._blocks(weights, prompt)
        costs = [load + len(prompt) - BLOCK * self._held(one, blocks) for one, load in enumerate(loads)]
        return costs.index(min(costs))

    def note(self, engine: int, weights: str, tokens: Int32) -> None:
        """The engine computes these tokens, and so will have their keys and values."""
        known = self._known[engine]
        for block in self._blocks(weights, tokens):
            known[block] = None
            known.move_to_end(block)
        while len(known) > REMEMBERED:
            known.popitem(last=False)

    def forget(self, engine: int) -> None:
        """The engine has lost all it had."""
        self._known[engine].clear()

    def _held(self, engine: int, blocks: Sequence[bytes]) -> int:
        known = self._known[engine]
        return next((place for place, block in enumerate(blocks) if block not in known), len(blocks))

    def _blocks(self, weights: str, tokens: Int32) -> list[bytes]:
        """A digest for every whole block, of it and all before it."""
        if not self._prefixes:
            return []
        digest = hashlib.blake2b(weights.encode(), digest_size=16)
        found = []
        for end in range(BLOCK, len(tokens) + 1, BLOCK):
            digest.update(tokens[end - BLOCK : end].tobytes())
            found.append(digest.copy().digest())
        return found
