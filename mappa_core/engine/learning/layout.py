"""Sequences of sampled tokens to micro-batches, and micro-batches to the ranks of a learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mappa_core.credit.segments import Segment, segments
from mappa_core.experience import Experience
from mappa_core.records import Float32, Int32, Int64

Groups = list[list[int]]
"""Micro-batches as indices of their sequences."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How sequences lie in a micro-batch, and how many tokens one has at most (padding counts).

    `padded`: one row each, filled up on the right. `packed`: end to end in one row, for models whose attention keeps
    sequences apart by their positions (`learning.checks`). A sequence longer than the budget is a micro-batch of its
    own.
    """

    kind: Literal["padded", "packed"]
    tokens: int

    def groups(self, lengths: Sequence[int]) -> Groups:
        """Sequences of these lengths in micro-batches, longest first."""
        return (padded if self.kind == "padded" else packed)(lengths, self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """One micro-batch, and which of its positions predict sampled tokens.

    A weightless one only keeps a rank in step with others that have more to do: it predicts one token that is nobody's
    sample, and its results are thrown away.
    """

    ids: Tensor  # (B, L)
    positions: Tensor | None  # (1, L) place of each token in its sequence where sequences lie end to end
    predicting: Tensor  # (n,) flat index in (B, L) of the position before each sampled token
    targets: Tensor  # (n,) the sampled tokens
    temperature: Tensor | None  # (n, 1); None where all are 1
    source: Int64  # (n,) index of each sampled token on the experience's N axis; (0,) where weightless
    weightless: bool = False


def batches(
    experience: Experience, rows: Int64, layout: Layout, *, device: torch.device, rank: int = 0, ranks: int = 1
) -> list[Batch]:
    """The share of `rank` in the sampled tokens of `rows`. Every rank gets as many micro-batches."""
    temperature = experience.temperature[experience.row_of_token]
    chains = segments(experience, rows)
    return dealt(chains, layout, temperature=temperature, device=device, rank=rank, ranks=ranks)


def dealt(
    chains: Sequence[Segment],
    layout: Layout,
    *,
    temperature: Float32 | None,
    device: torch.device,
    rank: int = 0,
    ranks: int = 1,
) -> list[Batch]:
    """The share of `rank` in sequences. `temperature` is by what their `source` numbers; None: 1 everywhere."""
    share = shares([len(chain.tokens) for chain in chains], ranks, layout)[rank]
    return [
        _batch([chains[one] for one in members], temperature, layout, device)
        if members
        else _weightless(chains[0], layout, device)
        for members in share
    ]


def shares(lengths: Sequence[int], ranks: int, layout: Layout) -> list[Groups]:
    """Each rank's micro-batches, every sequence in one of one rank, and as many for each: empty ones fill up.

    The longest sequence left goes to the rank with the fewest tokens so far, which stays within 4/3 of the best
    possible (Graham 1969). Every rank comes to the same answer by itself.
    """
    held: Groups = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in _longest_first(lengths):
        rank = loads.index(min(loads))
        held[rank].append(index)
        loads[rank] += lengths[index]
    found = [[[own[one] for one in group] for group in layout.groups([lengths[one] for one in own])] for own in held]
    most = max(len(groups) for groups in found)
    return [groups + [[] for _ in range(most - len(groups))] for groups in found]


def padded(lengths: Sequence[int], budget: int) -> Groups:
    """Groups, longest sequences first, so that rows times longest row stays within `budget` tokens.

    A sequence longer than the budget is a group of its own. Equal lengths keep their order.
    """
    groups: Groups = []
    for index in _longest_first(lengths):
        if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def packed(lengths: Sequence[int], budget: int) -> Groups:
    """Groups of at most `budget` tokens in all: the longest sequence left goes where there first is room for it."""
    groups: Groups = []
    room: list[int] = []
    for index in _longest_first(lengths):
        place = next((one for one, free in enumerate(room) if free >= lengths[index]), None)
        if place is None:
            groups.append([index])
            room.append(budget - lengths[index])
        else:
            groups[place].append(index)
            room[place] -= lengths[index]
    return groups


def pad(sequences: Sequence[Int32], device: torch.device) -> Tensor:
    """Token ids (B, L) int64, filled up on the right. Causal attention never looks there, so no mask is needed."""
    filled = np.zeros((len(sequences), max(len(one) for one in sequences)), dtype=np.int64)
    for row, sequence in enumerate(sequences):
        filled[row, : len(sequence)] = sequence
    return torch.from_numpy(filled).to(device)


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda one: -lengths[one])


def _batch(chains: Sequence[Segment], temperatures: Float32 | None, layout: Layout, device: torch.device) -> Batch:
    ids, starts, positions = _lay([chain.tokens for chain in chains], layout, device)
    predicting = np.concatenate([start + chain.targets - 1 for start, chain in zip(starts, chains, strict=True)])
    targets = np.concatenate([chain.tokens[chain.targets] for chain in chains])
    source = np.concatenate([chain.source for chain in chains])
    temperature = np.ones(1, np.float32) if temperatures is None else temperatures[source]
    temperature = np.where(temperature == 0.0, np.float32(1.0), temperature)
    return Batch(
        ids=ids,
        positions=positions,
        predicting=torch.from_numpy(predicting).to(device),
        targets=torch.from_numpy(targets.astype(np.int64)).to(device),
        temperature=None if (temperature == 1.0).all() else torch.from_numpy(temperature).to(device)[:, None],
        source=source,
    )


def _weightless(chain: Segment, layout: Layout, device: torch.device) -> Batch:
    """The first two tokens of a sequence: the least that a model can predict anything in."""
    ids, _, positions = _lay([chain.tokens[:2]], layout, device)
    return Batch(
        ids=ids,
        positions=positions,
        predicting=torch.zeros(1, dtype=torch.int64, device=device),
        targets=ids[0, 1:],
        temperature=None,
        source=np.zeros(0, dtype=np.int64),
        weightless=True,
    )


def _lay(sequences: Sequence[Int32], layout: Layout, device: torch.device) -> tuple[Tensor, list[int], Tensor | None]:
    """Token ids, where each sequence begins among them, and positions."""
    if layout.kind == "padded":
        ids = pad(sequences, device)
        return ids, [row * ids.shape[1] for row in range(len(sequences))], None
    lengths = [len(one) for one in sequences]
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    ids = torch.from_numpy(np.concatenate(sequences).astype(np.int64)).to(device)
    positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
    return ids[None], starts, positions[None]
