"""What sequences begin with alike, and how they are grouped so that most of it is computed once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from mappa_engine.arrays import Int32

MIN_PREFIX = 16
"""Tokens of a shared prefix that are worth a pass of their own."""
PASS_TOKENS = 48
"""Tokens that a further micro-batch has to save: it reads all weights once more."""


def shared_prefix(sequences: Sequence[Int32], limit: int) -> int:
    """Return how many tokens all sequences begin with, at most `limit`; 0 where computing them once saves little."""
    if len(sequences) < 2:
        return 0
    limit = min(limit, *(len(sequence) for sequence in sequences))
    # In the order of lists all others are between the least and the greatest, and begin with what these two share.
    least, greatest = (choose(sequence[:limit].tolist() for sequence in sequences) for choose in (min, max))
    same = _common(least, greatest)
    return same if same >= MIN_PREFIX else 0


def split_by_prefix(sequences: Sequence[Int32], limits: Sequence[int]) -> list[list[int]]:
    """Split sequences, of which the first `limits[i]` tokens may be shared, into groups of indices in ascending order.

    A group computes its shared prefix once and the rest of each row, padded to the longest. Groups are branches of the
    tree of all prefixes: a branch is split where its parts compute fewer tokens, `PASS_TOKENS` for each counted in.
    """
    tokens = [sequence.tolist() for sequence in sequences]

    def computed(group: Sequence[int]) -> int:
        prefix = shared_prefix([sequences[index] for index in group], min(limits[index] for index in group))
        return PASS_TOKENS + prefix + len(group) * (max(len(tokens[index]) for index in group) - prefix)

    def split(branch: list[int]) -> list[list[int]]:
        shared = _common(tokens[branch[0]], tokens[branch[-1]])
        children = [list(found) for _, found in groupby(branch, key=lambda index: tokens[index][shared : shared + 1])]
        if len(children) == 1:
            return [branch]
        parts = [part for child in children for part in split(child)]
        return parts if sum(map(computed, parts)) < computed(branch) else [branch]

    ordered = sorted(range(len(tokens)), key=tokens.__getitem__)
    return [sorted(group) for group in split(ordered)] if ordered else []


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many tokens two sequences begin with alike."""
    limit = min(len(first), len(second))
    return next((place for place in range(limit) if first[place] != second[place]), limit)
