"""Draws that hold every stratum in its share, one after the other: as close to it as whole numbers allow, always."""

from __future__ import annotations

from collections.abc import Sequence


class Apportionment:
    """Draws of `draw` members out of strata of `sizes`.

    A stratum's share of a draw is `draw * size / sum(sizes)`. Every draw takes of it the share rounded down or up, and
    so do all draws so far together, of their sum. Hence whenever draws have taken as many members as there are, they
    have taken each stratum exactly.

    That is fair scheduling in Pfair's sense: strata are tasks whose weight is the fraction of their share, members
    beyond the whole part are quanta, draws are slots. PD2 (Anderson and Srinivasan 2004) finds such a schedule draw by
    draw, without looking ahead.
    """

    def __init__(self, sizes: Sequence[int], draw: int) -> None:
        self._total = sum(sizes)
        self._whole = [draw * size // self._total for size in sizes]
        self._fraction = [draw * size % self._total for size in sizes]  # in units of 1 / total
        self._quanta = [(0,) * len(sizes)]

    def before(self, draw: int) -> tuple[int, ...]:
        """Members of each stratum that were taken before the draw of this number, from 0."""
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
        """What strata that had so many quanta are sorted by, the most urgent first: the deadline of the next one, the
        bit that tells whether its window overlaps the one after it, and the group deadline of heavy strata. None where
        its window has not begun."""
        total = self._total
        if had * total // fraction > slot:
            return None
        deadline, overlaps = _up((had + 1) * total, fraction), (had + 1) * total % fraction > 0
        if 2 * fraction < total:
            return deadline, -overlaps, 0
        gap = total - fraction
        return deadline, -overlaps, -_up(_up(deadline * gap, total) * total, gap)


def _up(number: int, by: int) -> int:
    """The quotient, rounded up."""
    return -(-number // by)
