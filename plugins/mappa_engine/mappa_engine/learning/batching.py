"""Batching: group sequences into micro-batches and distribute them over the ranks of a learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mappa_core.engine import Experience, element_indices
from mappa_engine.arrays import Int32, Int64
from mappa_engine.learning.shared_prefixes import shared_prefix, split_by_prefix
from mappa_engine.learning.training_sequences import TrainingSequence, build_sequences

IndexGroups = list[list[int]]
"""Micro-batches as lists of sequence indices."""


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Layout of sequences in a micro-batch, and its token budget (padding counts).

    `padded`: one row each, padded on the right. `packed`: concatenated in one row, for models whose attention separates
    sequences by their positions (`learning.checks`). A sequence longer than the budget is a micro-batch of its own.
    """

    kind: Literal["padded", "packed"]
    tokens: int
    shares_prefixes: bool = False
    """Whether the tokens that all rows of a padded micro-batch begin with are computed once, and micro-batches are
    split so that rows which begin alike are together. Ranks would get different numbers of them, so for one only."""

    def groups(self, lengths: Sequence[int]) -> IndexGroups:
        """Group sequences of these lengths into micro-batches, longest first."""
        return (group_padded if self.kind == "padded" else group_packed)(lengths, self.tokens)


class SamplingMask(NamedTuple):
    """What top_p and top_k left n tokens to be chosen from, as pairs of a token's index and an id."""

    rows: Tensor  # (K,) in [0, n), ascending
    ids: Tensor  # (K,)
    uncut: Tensor  # (n,) whether a token was chosen from all

    def select(self, start: int, end: int) -> SamplingMask:
        """Return the mask of tokens [start, end)."""
        # Rows are ascending, so those of a chunk are one slice.
        first, last = torch.searchsorted(self.rows, torch.tensor([start, end], device=self.rows.device)).tolist()
        return SamplingMask(self.rows[first:last] - start, self.ids[first:last], self.uncut[start:end])

    def cut(self, logits: Tensor) -> Tensor:
        """Return logits (n, V) with the lowest number in place of those that could not be sampled: -inf would make
        the gradient of an entropy unknown."""
        allowed = self.uncut[:, None].expand_as(logits).clone()
        allowed[self.rows, self.ids] = True
        return logits.masked_fill(~allowed, torch.finfo(logits.dtype).min)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroBatch:
    """One micro-batch, and which of its positions predict sampled tokens.

    A dummy micro-batch keeps a rank in step with ranks that have more micro-batches: it predicts one token, and its
    results are discarded.
    """

    ids: Tensor  # (B, L)
    positions: Tensor | None  # (1, L) position of each token in its sequence, if packed
    predicting: Tensor  # (n,) flat index in (B, L) of the position before each sampled token
    targets: Tensor  # (n,) the sampled tokens
    temperature: Tensor | None  # (n, 1); None if all are 1
    source: Int64  # (n,) index of each sampled token on the experience's N axis; (0,) if dummy
    mask: SamplingMask | None = None  # None if every token was chosen from all
    prefix: int = 0  # how many leading tokens are those of all rows, and are computed once; none of them predicts
    dummy: bool = False


def build_batches(
    experience: Experience, rows: Int64, layout: BatchLayout, *, device: torch.device, rank: int = 0, ranks: int = 1
) -> list[MicroBatch]:
    """Build the micro-batches of `rank` for the sampled tokens of `rows`. Every rank gets equally many."""
    sequences = build_sequences(experience, rows)
    return rank_micro_batches(sequences, layout, sampled=experience, device=device, rank=rank, ranks=ranks)


def rank_micro_batches(
    sequences: Sequence[TrainingSequence],
    layout: BatchLayout,
    *,
    sampled: Experience | None,
    device: torch.device,
    rank: int = 0,
    ranks: int = 1,
) -> list[MicroBatch]:
    """Build the micro-batches of `rank` for the sequences. Their `source` indexes the tokens of `sampled`, which has
    temperatures and sampling masks; None: all temperatures are 1, and nothing was cut."""
    share = split_over_ranks([len(sequence.tokens) for sequence in sequences], ranks, layout)[rank]
    if layout.shares_prefixes:
        share = [part for members in share for part in _split_members(members, sequences)]
    return [
        _batch([sequences[index] for index in members], sampled, layout, device)
        if members
        else _dummy_batch(sequences[0], layout, device)
        for members in share
    ]


def _split_members(members: Sequence[int], sequences: Sequence[TrainingSequence]) -> IndexGroups:
    tokens = [sequences[index].tokens for index in members]
    limits = [_shared_limit(sequences[index]) for index in members]
    return [[members[place] for place in group] for group in split_by_prefix(tokens, limits)]


def _shared_limit(sequence: TrainingSequence) -> int:
    """How many tokens of a sequence may be a shared prefix: none that predicts a sampled one."""
    return int(sequence.targets[0]) - 1


def split_over_ranks(lengths: Sequence[int], ranks: int, layout: BatchLayout) -> list[IndexGroups]:
    """Distribute sequences over ranks and group them into micro-batches; empty ones make the counts equal.

    The longest sequence left goes to the rank with the fewest tokens so far, whose maximum is within 4/3 of the optimum
    (Graham 1969). Every rank computes the same result independently.
    """
    assigned: IndexGroups = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for index in _longest_first(lengths):
        rank = loads.index(min(loads))
        assigned[rank].append(index)
        loads[rank] += lengths[index]
    found = [
        [[own[index] for index in group] for group in layout.groups([lengths[index] for index in own])]
        for own in assigned
    ]
    # A rank with fewer micro-batches gets empty ones: every pass of a sharded model is a collective of all ranks.
    max_groups = max(len(groups) for groups in found)
    return [groups + [[] for _ in range(max_groups - len(groups))] for groups in found]


def group_padded(lengths: Sequence[int], budget: int) -> IndexGroups:
    """Group sequences, longest first, so that rows times longest row stays within `budget` tokens.

    A sequence longer than the budget is a group of its own. Equal lengths keep their order.
    """
    groups: IndexGroups = []
    for index in _longest_first(lengths):
        if groups and lengths[groups[-1][0]] * (len(groups[-1]) + 1) <= budget:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def group_packed(lengths: Sequence[int], budget: int) -> IndexGroups:
    """Group sequences by first-fit decreasing, so that each group has at most `budget` tokens."""
    groups: IndexGroups = []
    room: list[int] = []
    for index in _longest_first(lengths):
        place = next((group for group, free in enumerate(room) if free >= lengths[index]), None)
        if place is None:
            groups.append([index])
            room.append(budget - lengths[index])
        else:
            groups[place].append(index)
            room[place] -= lengths[index]
    return groups


def pad_right(sequences: Sequence[Int32], device: torch.device) -> Tensor:
    """Return token ids (B, L) int64, padded on the right. Causal attention never sees padding, so no mask is needed."""
    filled = np.zeros((len(sequences), max(len(sequence) for sequence in sequences)), dtype=np.int64)
    for row, sequence in enumerate(sequences):
        filled[row, : len(sequence)] = sequence
    return torch.from_numpy(filled).to(device)


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])


def _batch(
    sequences: Sequence[TrainingSequence], sampled: Experience | None, layout: BatchLayout, device: torch.device
) -> MicroBatch:
    ids, starts, positions = _lay_out([sequence.tokens for sequence in sequences], layout, device)
    predicting = np.concatenate(
        [start + sequence.targets - 1 for start, sequence in zip(starts, sequences, strict=True)]
    )
    targets = np.concatenate([sequence.tokens[sequence.targets] for sequence in sequences])
    source = np.concatenate([sequence.source for sequence in sequences])
    temperature = np.ones(1, np.float32) if sampled is None else sampled.temperature[sampled.row_of_token[source]]
    # A greedy token has the log-probability of temperature 1, as the sampler reports it.
    temperature = np.where(temperature == 0.0, np.float32(1.0), temperature)
    return MicroBatch(
        ids=ids,
        positions=positions,
        predicting=torch.from_numpy(predicting).to(device),
        targets=torch.from_numpy(targets.astype(np.int64)).to(device),
        temperature=None if (temperature == 1.0).all() else torch.from_numpy(temperature).to(device)[:, None],
        source=source,
        mask=None if sampled is None else _sampling_mask(sampled, source, device),
        prefix=shared_prefix([sequence.tokens for sequence in sequences], min(map(_shared_limit, sequences)))
        if layout.shares_prefixes
        else 0,
    )


def _sampling_mask(sampled: Experience, source: Int64, device: torch.device) -> SamplingMask | None:
    if sampled.mask_tokens is None or sampled.mask_offsets is None:
        return None
    sizes = np.diff(sampled.mask_offsets)[source]
    ids = sampled.mask_tokens[element_indices(sampled.mask_offsets, source)]
    return SamplingMask(
        rows=torch.from_numpy(np.repeat(np.arange(len(source)), sizes)).to(device),
        ids=torch.from_numpy(ids.astype(np.int64)).to(device),
        uncut=torch.from_numpy(sizes == 0).to(device),
    )


def _dummy_batch(sequence: TrainingSequence, layout: BatchLayout, device: torch.device) -> MicroBatch:
    """Build a dummy micro-batch of the first two tokens of a sequence, the shortest input with a prediction."""
    ids, _, positions = _lay_out([sequence.tokens[:2]], layout, device)
    return MicroBatch(
        ids=ids,
        positions=positions,
        predicting=torch.zeros(1, dtype=torch.int64, device=device),
        targets=ids[0, 1:],
        temperature=None,
        source=np.zeros(0, dtype=np.int64),
        dummy=True,
    )


def _lay_out(
    sequences: Sequence[Int32], layout: BatchLayout, device: torch.device
) -> tuple[Tensor, list[int], Tensor | None]:
    """Return token ids, the flat start index of each sequence, and positions."""
    if layout.kind == "padded":
        ids = pad_right(sequences, device)
        return ids, [row * ids.shape[1] for row in range(len(sequences))], None
    lengths = [len(sequence) for sequence in sequences]
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    ids = torch.from_numpy(np.concatenate(sequences).astype(np.int64)).to(device)
    positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
    return ids[None], starts, positions[None]
