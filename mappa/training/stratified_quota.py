"""Stratified sampling quotas: every draw takes each stratum's share, rounded, without cumulative error."""

from __future__ import annotations

from collections.abc import Sequence


class StratifiedQuota:
    """Quotas for draws of `draw` members from strata of `sizes`.

    A stratum's share of a draw is `draw * size / sum(sizes)`. Every draw takes it rounded down or up, and all draws so
    far their sum likewise. Hence after as many members as there are, each stratum was taken exactly.

    This is Pfair scheduling by PD2 (Anderson and Srinivasan 2004), draw by draw without lookahead: strata are tasks
    whose weight is the fraction of their share, members beyond the whole part are quanta, draws are slots.
    """

    def __init__(self, sizes: Sequence[int], draw: int) -> None:
        self._total = sum(sizes)
        # Integers throughout: in floating point the shares of many draws would not add up exactly.
        self._whole = [draw * size // self._total for size in sizes]
        self._fraction = [draw * size % self._total for size in sizes]  # In units of 1 / total.
        self._quanta = [(0,) * len(sizes)]  # Of each stratum, before each draw.

    def taken_before(self, draw: int) -> tuple[int, ...]:
        """Members of each stratum taken before draw number `draw`, counted from 0."""
        while len(self._quanta) <= draw:
            self._quanta.append(self._next(len(self._quanta) - 1))
        return tuple(draw * whole + quanta for whole, quanta in zip(self._whole, self._quanta[draw], strict=True))

    def _next(self, slot: int) -> tuple[int, ...]:
        """Quanta of each stratum after the draw `slot`."""
        had = self._quanta[slot]
        waiting = []
        for stratum, fraction in enumerate(self._fraction):
            urgency = self._urgency(fraction, had[stratum], slot) if fraction else None
            if urgency is not None:
                waiting.append((urgency, stratum))
        # The fractions add up to a whole number, that of members which the whole parts leave to a draw.
        quanta_per_draw = sum(self._fraction) // self._total
        chosen = {stratum for _, stratum in sorted(waiting)[:quanta_per_draw]}
        return tuple(quanta + (stratum in chosen) for stratum, quanta in enumerate(had))

    def _urgency(self, fraction: int, had: int, slot: int) -> tuple[int, int, int] | None:
        """Sort key, most urgent first: deadline of the next quantum after `had`, whether its window overlaps the
        following one, group deadline of heavy strata. None if its window has not begun."""
        total = self._total
        # With the weight w = fraction / total, the window of quantum i, from 0, is [floor(i / w), ceil((i + 1) / w)).
        begins = had * total // fraction
        if begins > slot:
            return None
        deadline = _ceil_div((had + 1) * total, fraction)
        overlaps = (had + 1) * total % fraction > 0
        # Negative, as the smallest key is chosen: of equal deadlines, the quantum that leaves less room comes first.
        if 2 * fraction < total:
            return deadline, -overlaps, 0
        # ceil(ceil(deadline * (1 - w)) / (1 - w)). Taking a quantum of a heavy stratum late forces its next ones up to
        # the group deadline, so the stratum with the later one comes first.
        gap = total - fraction
        group_deadline = _ceil_div(_ceil_div(deadline * gap, total) * total, gap)
        return deadline, -overlaps, -group_deadline


def _ceil_div(number: int, by: int) -> int:
    return -(-number // by)  # `//` rounds towards minus infinity, so this rounds up.
