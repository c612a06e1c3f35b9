"""Circuit breaker: stops calls to a provider that keeps failing."""

from __future__ import annotations

from mappa_core.errors import CallError


class CircuitBreaker:
    """A circuit breaker over all calls of one provider; times are seconds of the event loop's clock. After `failures`
    consecutive failures it opens: no call passes for `rest_s`. Then it is half-open: one call passes every `rest_s` as
    a probe, and any answer closes the breaker."""

    def __init__(self, name: str, *, failures: int, rest_s: float) -> None:
        self._name = name
        self._max_failures = failures
        self._rest_s = rest_s
        self._consecutive_failures = 0
        self._opened_by: CallError | None = None
        self._open_until: float | None = None

    def check(self, now: float) -> None:
        """Raise CallError `breaker` while the breaker is open."""
        if self._open_until is not None and now < self._open_until:
            # The text is the same until the breaker closes: reasons are counted by their text.
            raise CallError(
                "breaker",
                f"{self._name} failed {self._max_failures} times in a row and is left alone, but for one call every "
                f"{self._rest_s:g} s. The last of these times: {self._opened_by}",
                retry_after_s=self._open_until - now,
            )

    def begin_call(self, now: float) -> None:
        """Record that a call is sent now, as the probe if the breaker is half-open. Raises like `check`."""
        self.check(now)
        if self._open_until is not None:
            # Open again before the probe is answered: calls that come meanwhile are not probes, too.
            self._open_until = now + self._rest_s

    def record_success(self) -> None:
        """Record that the provider answered, whatever the answer."""
        self._consecutive_failures = 0
        self._open_until = None

    def record_failure(self, fault: CallError, now: float) -> bool:
        """Record a call that the provider was unable to answer; return whether this opened the closed breaker."""
        self._consecutive_failures += 1
        # Only the one that opened it: faults of later probes would change the text of `check`.
        opens = self._consecutive_failures == self._max_failures
        if opens:
            self._opened_by = fault
        if self._consecutive_failures >= self._max_failures:
            self._open_until = now + self._rest_s
        return opens
