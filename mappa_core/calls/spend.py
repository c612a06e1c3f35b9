"""What a run has spent, and its cap."""

from __future__ import annotations

from mappa_core.errors import CallError
from mappa_core.records import Usage


class Ledger:
    """Adds up what coaches and policies behind an API cost, in US dollars. A run that is resumed begins by adding what
    it had spent."""

    def __init__(self, cap_usd: float | None) -> None:
        self._cap = cap_usd
        self._known = 0.0
        self._dearest: float | None = None
        self._unknown = 0

    def add(self, usage: Usage | None) -> None:
        """Count what a verdict or a completion took; None: nobody was asked for it."""
        if usage is None:
            return
        calls = max(1, usage.calls)  # a call for several verdicts is counted with one of them
        if usage.usd is None:
            self._unknown += calls
            return
        self._known += usage.usd
        self._dearest = max(self._dearest or 0.0, usage.usd / calls)

    @property
    def spent(self) -> float | None:
        """US dollars so far; None once the cost of anything is unknown."""
        return None if self._unknown else self._known

    def check(self) -> None:
        """Raise CallError `spend` where the cap is reached, or cannot be kept because no cost is known at all.

        So that an odd reply without usage neither ends a run nor is free, a call of unknown cost counts here, and only
        here, as much as the dearest that is known.
        """
        if self._cap is None:
            return
        if self._unknown and self._dearest is None:
            raise CallError(
                "spend",
                f"coach.spend_usd={self._cap:g} cannot be kept: what the calls took is not known, as their provider "
                "does not say it. Leave coach.spend_usd out, or ask another provider",
            )
        spent = self._known + self._unknown * (self._dearest or 0.0)
        if spent >= self._cap:
            how = ", with every call of unknown cost taken for the dearest" if self._unknown else ""
            raise CallError("spend", f"coach.spend_usd={self._cap:g} is reached{how}")
