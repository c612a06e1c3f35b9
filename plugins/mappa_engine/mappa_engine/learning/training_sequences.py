"""Merge rows into training sequences.

A row is the unit of credit, not of compute: if an action's prompt extends an earlier prompt and action of the same
policy, one causal forward pass over the longer sequence gives the log-probabilities of both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mappa_core.engine import Experience, element_indices
from mappa_engine.arrays import Int32, Int64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSequence:
    """Sequence for one forward pass; only its `targets` are trained."""

    tokens: Int32  # (L,) prompt and actions, with the tokens between them
    targets: Int64  # (n,) index in `tokens` of each sampled token, ascending
    source: Int64  # (n,) index of the same token on the experience's N axis


def build_sequences(experience: Experience, rows: Int64 | None = None) -> tuple[TrainingSequence, ...]:
    """Build sequences that contain every sampled token of `rows` (default: all rows) exactly once.

    Rows of one policy and trajectory are merged if the prompt of the later row begins with the prompt and action of the
    earlier one, token for token; any other row becomes a sequence of its own. Sequences are in the order of their first
    rows. `rows` is treated as a set: order and duplicates do not matter.
    """
    chosen = np.arange(len(experience.reward)) if rows is None else np.unique(rows)
    chains: list[list[int]] = []
    of_trajectory: dict[tuple[int, int], list[list[int]]] = {}
    for row in chosen.tolist():
        siblings = of_trajectory.setdefault((int(experience.policy[row]), int(experience.trajectory[row])), [])
        # Where the prompt continues several chains, the longest saves the most computing.
        begun = [chain for chain in siblings if _continues(experience, chain[-1], row)]
        if begun:
            max(begun, key=lambda chain: _end(experience, chain[-1])).append(row)
        else:
            siblings.append([row])
            chains.append(siblings[-1])
    return tuple(_build_sequence(experience, chain) for chain in chains)


def _prompt(experience: Experience, row: int) -> Int32:
    return experience.prompt_tokens[experience.prompt_offsets[row] : experience.prompt_offsets[row + 1]]


def _action(experience: Experience, row: int) -> Int32:
    return experience.tokens[experience.offsets[row] : experience.offsets[row + 1]]


def _end(experience: Experience, row: int) -> int:
    return len(_prompt(experience, row)) + len(_action(experience, row))


def _continues(experience: Experience, earlier: int, later: int) -> bool:
    """Whether the later row's prompt begins with the earlier row's prompt and action."""
    before, action, prompt = _prompt(experience, earlier), _action(experience, earlier), _prompt(experience, later)
    end = len(before) + len(action)
    return (
        len(prompt) >= end
        and np.array_equal(prompt[: len(before)], before)
        and np.array_equal(prompt[len(before) : end], action)
    )


def _build_sequence(experience: Experience, chain: list[int]) -> TrainingSequence:
    rows = np.array(chain, dtype=np.int64)
    lengths = experience.lengths[rows]
    source = element_indices(experience.offsets, rows)
    # An action starts in the sequence at the length of its own prompt, for every row of the chain.
    starts = np.diff(experience.prompt_offsets)[rows]
    targets = source + np.repeat(starts - experience.offsets[rows], lengths)
    tokens = np.concatenate([_prompt(experience, chain[-1]), _action(experience, chain[-1])])
    return TrainingSequence(tokens=tokens, targets=targets, source=source)
