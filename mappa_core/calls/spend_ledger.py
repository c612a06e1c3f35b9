"""Spend of a run, and its cap."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mappa_core.errors import CallError
from mappa_core.records import Usage

_enforced: ContextVar[Ledger | None] = ContextVar("ledger", default=None)


class Ledger:
    """Sums the cost of coaches and of policies behind an API in US dollars; a resumed run adds its previous spend."""

    def __init__(self, cap_usd: float | None) -> None:
        self._cap = cap_usd
        self._priced_usd = 0.0
        self._max_call_usd: float | None = None
        self._unpriced_calls = 0

    def add(self, usage: Usage | None) -> None:
        """Add the usage of a verdict or a completion; None: no provider was called."""
        if usage is None:
            return
        calls = max(1, usage.calls)  # A call for several verdicts is counted once, with one of them.
        if usage.usd is None:
            self._unpriced_calls += calls
            return
        self._priced_usd += usage.usd
        self._max_call_usd = max(self._max_call_usd or 0.0, usage.usd / calls)

    @property
    def total_usd(self) -> float | None:
        """US dollars so far; None once the cost of any call is unknown."""
        return None if self._unpriced_calls else self._priced_usd

    @property
    def left_usd(self) -> float | None:
        """US dollars left of the cap, at most 0 once it is reached; None without a cap. A call of unknown cost counts
        as much as the most expensive known call."""
        if self._cap is None:
            return None
        unpriced_usd = self._unpriced_calls * (self._max_call_usd or 0.0)
        return self._cap - (self._priced_usd + unpriced_usd)

    def check(self) -> None:
        """Raise CallError `spend` if the cap is reached, or cannot be enforced because no cost is known at all."""
        if self._cap is None:
            return
        if self._unpriced_calls and self._max_call_usd is None:
            unknown = "what the calls took is not known, as their provider does not say it"
            advice = "Leave coach.spend_usd out, or price.cached if cached tokens are all that is missing"
            raise CallError("spend", f"coach.spend_usd={self._cap:g} cannot be kept: {unknown}. {advice}")
        if self.left_usd is not None and self.left_usd <= 0.0:
            how = ", with every call of unknown cost taken for the dearest" if self._unpriced_calls else ""
            raise CallError("spend", f"coach.spend_usd={self._cap:g} is reached{how}")

    @contextmanager
    def enforce_cap(self) -> Iterator[None]:
        """Check the cap now and, inside the context, before every call to a provider: others may have reached it while
        the call waited for its turn. Raises CallError like `check`."""
        self.check()
        token = _enforced.set(self)
        try:
            yield
        finally:
            _enforced.reset(token)


def check_cap() -> None:
    """Check the cap that work under way is held to (`Ledger.enforce_cap`), if any. Raises CallError like `check`."""
    ledger = _enforced.get()
    if ledger is not None:
        ledger.check()
