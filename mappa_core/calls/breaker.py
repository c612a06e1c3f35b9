"""Leave a provider alone that fails again and again."""

from __future__ import annotations

from mappa_core.errors import CallError


class Breaker:
    """A circuit breaker over all calls of one provider. Times are seconds of the event loop's clock.

    Closed, everyone may call. After `failures` in a row it is open: nobody may for `rest_s`. Then it is half open: one
    call may, as a probe, and its answer closes the breaker; until then the next probe is `rest_s` away, so that one
    that is never answered cannot hold it open.
    """

    def __init__(self, name: str, *, failures: int, rest_s: float) -> None:
        self._name = name
        self._most = failures
        self._rest_s = rest_s
        self._row = 0
        self._opened_by: CallError | None = None
        self._open_until: float | None = None

    def check(self, now: float) -> None:
        """Raise CallError `breaker` where nobody may call now."""
        if self._open_until is not None and now < self._open_until:
            # The same words until it closes: reasons are counted by their text.
            raise CallError(
                "breaker",
                f"{self._name} failed {self._most} times in a row and is left alone, but for one call every "
                f"{self._rest_s:g} s. The last of these times: {self._opened_by}",
                retry_after_s=self._open_until - now,
            )

    def enter(self, now: float) -> None:
        """A call goes out now, as the probe where the breaker is half open. Raises like `check`."""
        self.check(now)
        if self._open_until is not None:
            self._open_until = now + self._rest_s

    def answered(self) -> None:
        """The provider is there, whatever it answered."""
        self._row = 0
        self._open_until = None

    def failed(self, fault: CallError, now: float) -> None:
        """A call found the provider unable to answer."""
        self._row += 1
        if self._row == self._most:
            self._opened_by = fault
        if self._row >= self._most:
            self._open_until = now + self._rest_s
