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
        self._whole = [draw * size // self._total for size in sizes]
        self._fraction = [draw * size % self._total for size in sizes]  # in units of 1 / total
        self._quanta = [(0,) * len(sizes)]

    def taken_before(self, draw: int) -> tuple[int, ...]:
        """Members of each stratum taken before draw number `draw`, counted from 0."""
        while len(self._quanta) <= draw:
            self._quanta.append(self._next(len(self._quanta) - 1))
        return tuple(draw * whole + quanta for whole, quanta in zip(self._whole, self._quanta[draw], strict=True))

    def _next(self, slot: int) -> tuple[int, ...]:
        had = self._quanta[slot]
        waiting = sorted(
            (urgency, stratum)
            for stratum, fraction in enumerate(self._fraction)
            if fraction and (urgency := self._urgency(fraction, had[stratum], slot)) is not None
        )
        chosen = {stratum for _, stratum in waiting[: sum(self._fraction) // self._total]}
        return tuple(quanta + (stratum in chosen) for stratum, quanta in enumerate(had))

    def _urgency(self, fraction: int, had: int, slot: int) -> tuple[int, int, int] | None:
        """Sort key, most urgent first: deadline of the next quantum after `had`, whether its window overlaps the
        following one, group deadline of heavy strata. None if its window has not begun."""
        total = self._total
        if had * total // fraction > slot:
            return None
        deadline, overlaps = _ceil_div((had + 1) * total, fraction), (had + 1) * total % fraction > 0
        if 2 * fraction < total:
            return deadline, -overlaps, 0
        gap = total - fraction
        return deadline, -overlaps, -_ceil_div(_ceil_div(deadline * gap, total) * total, gap)


def _ceil_div(number: int, by: int) -> int:
    return -(-number // by)
