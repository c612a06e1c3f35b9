"""Rows joined into the sequences that a learner computes on.

A row is the unit of credit, not of compute: where an action's prompt goes on from an earlier prompt and action of the
same policy, one causal forward pass over the longer sequence gives the log-probabilities of both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mappa_core.credit.ragged import places
from mappa_core.experience import Experience
from mappa_core.records import Int32, Int64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Segment:
    """One sequence for one forward pass; only its `targets` are trained."""

    tokens: Int32  # (L,) prompt and actions, with whatever was put between them
    targets: Int64  # (n,) index in `tokens` of each sampled token, ascending
    source: Int64  # (n,) index of the same token on the experience's N axis


def segments(experience: Experience, rows: Int64 | None = None) -> tuple[Segment, ...]:
    """The sequences that hold every sampled token of `rows` (default: all rows) exactly once.

    Rows of one policy and trajectory are joined where the prompt of the later one begins with the prompt and the action
    of the earlier one, token for token; any other row is a sequence of its own. Sequences come in the order of their
    first rows. `rows` is a set: order and repeats do not matter.
    """
    chosen = np.arange(len(experience.reward)) if rows is None else np.unique(rows)
    chains: list[list[int]] = []
    of_trajectory: dict[tuple[int, int], list[list[int]]] = {}
    for row in chosen.tolist():
        siblings = of_trajectory.setdefault((int(experience.policy[row]), int(experience.trajectory[row])), [])
        begun = [chain for chain in siblings if _continues(experience, chain[-1], row)]
        if begun:
            max(begun, key=lambda chain: _end(experience, chain[-1])).append(row)
        else:
            siblings.append([row])
            chains.append(siblings[-1])
    return tuple(_segment(experience, chain) for chain in chains)


def _prompt(experience: Experience, row: int) -> Int32:
    return experience.prompt_tokens[experience.prompt_offsets[row] : experience.prompt_offsets[row + 1]]


def _action(experience: Experience, row: int) -> Int32:
    return experience.tokens[experience.offsets[row] : experience.offsets[row + 1]]


def _end(experience: Experience, row: int) -> int:
    return len(_prompt(experience, row)) + len(_action(experience, row))


def _continues(experience: Experience, earlier: int, later: int) -> bool:
    """Whether the later row's prompt begins with all of the earlier row."""
    before, action, prompt = _prompt(experience, earlier), _action(experience, earlier), _prompt(experience, later)
    end = len(before) + len(action)
    return (
        len(prompt) >= end
        and np.array_equal(prompt[: len(before)], before)
        and np.array_equal(prompt[len(before) : end], action)
    )


def _segment(experience: Experience, chain: list[int]) -> Segment:
    rows = np.array(chain, dtype=np.int64)
    lengths = experience.lengths[rows]
    source = places(experience.offsets, rows)
    # An action lies as far into the sequence as its own prompt is long, whatever row of the chain it comes from.
    starts = np.diff(experience.prompt_offsets)[rows]
    targets = source + np.repeat(starts - experience.offsets[rows], lengths)
    tokens = np.concatenate([_prompt(experience, chain[-1]), _action(experience, chain[-1])])
    return Segment(tokens=tokens, targets=targets, source=source)
