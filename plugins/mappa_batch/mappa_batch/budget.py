"""The cap of a run over calls whose cost its ledger does not know yet."""

from __future__ import annotations

import math
from collections.abc import Callable


class Budget:
    """Holds the highest possible cost of every call that is in a batch, so that the cap holds before one is submitted.

    Free is what was left at the first question, minus what is held, minus what was spent since: the ledger's figure, or
    that of the replies handed out, whichever is higher. (The ledger counts a call once its verdict is complete.) All
    figures are US dollars."""

    def __init__(self, left_usd: Callable[[], float | None]) -> None:
        """`left_usd` returns what is left of the cap by the ledger; None without a cap."""
        self._left_usd = left_usd
        self._at_first: float | None = None
        self._handed_out = 0.0
        self._held = 0.0
        self.calls = 0  # that something is held for

    @property
    def free(self) -> float:
        """What further calls may cost at most; infinite without a cap."""
        left = self._left_usd()
        if left is None:
            return math.inf
        if self._at_first is None:
            self._at_first = left
        return self._at_first - max(self._at_first - left, self._handed_out) - self._held

    def reserve(self, usd: float) -> bool:
        """Hold `usd` if they are free; return whether they were."""
        if usd > self.free:
            return False
        self.hold(usd)
        return True

    def hold(self, usd: float) -> None:
        """Hold `usd` for a call that is in a batch already."""
        self._held += usd
        self.calls += 1

    def release(self, usd: float, *, paid: float = 0.0) -> None:
        """End the hold of `usd` on a call that cost `paid`."""
        self.calls -= 1
        # Exactly 0 with the last call: floats that are subtracted in another order than they were added leave a rest.
        self._held = self._held - usd if self.calls else 0.0
        self._handed_out += paid
