"""For authors of transports: errors of providers, by status, headers and body."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from msgspec import DecodeError, json

from mappa_core.errors import CallFault

_FAULT_BY_STATUS: Mapping[int, CallFault] = {
    401: "key", 402: "quota", 403: "key", 404: "model", 408: "timeout", 410: "model", 413: "too_long",
    409: "server",  # A conflict with another request; all official clients retry.
    429: "rate_limit", 503: "overloaded", 529: "overloaded",
}  # fmt: skip


MAX_READ_CHARACTERS = 2**16
"""Of a text that becomes one line."""


def fault_from_status(status: int) -> CallFault:
    """Return the fault of an HTTP status; the body may be more specific. A status below 300 is no error: `garbled`."""
    if status in _FAULT_BY_STATUS:
        return _FAULT_BY_STATUS[status]
    if 300 <= status < 500:
        return "request"
    return "server" if 500 <= status < 600 else "garbled"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait that a reply asks for: `retry-after-ms`, else `retry-after` as seconds or as an HTTP
    date (RFC 9110, 10.2.3), by the server's clock if it sends `date`; 0 for the past, None without a valid header."""
    values = {name.lower(): value.strip() for name, value in headers.items()}
    # The more precise header first, as servers that send it send both.
    seconds = _number(values.get("retry-after-ms"), scale=1e-3)
    if seconds is None:
        seconds = _number(values.get("retry-after"))
    if seconds is None:
        then = _date(values.get("retry-after"))
        if then is not None:
            now = _date(values.get("date")) or datetime.now(UTC)
            seconds = (then - now).total_seconds()
    return None if seconds is None else max(0.0, seconds)


def _number(text: str | None, scale: float = 1.0) -> float | None:
    try:
        number = math.nan if text is None else float(text) * scale
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _date(text: str | None) -> datetime | None:
    try:
        date = None if text is None else parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    # HTTP dates are in UTC; the parser returns no time zone for -0000 or a missing zone.
    return date.replace(tzinfo=UTC) if date is not None and date.tzinfo is None else date


def one_line(text: str, limit: int = 500) -> str:
    """Return `text` as one line of at most `limit` characters, for error messages; see `Secret.hide` for keys."""
    # A stranger's text may have millions of words.
    line = " ".join(text[:MAX_READ_CHARACTERS].split())
    is_whole = len(line) <= limit and len(text) <= MAX_READ_CHARACTERS
    return line if is_whole else f"{line[: limit - 1]}…"


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """The body of an error as parsed: the `fields` of the error and its `message`, which is the whole `body` without
    one. `status` is that of the response; of an error with status 200 its integer `code`, else None."""

    status: int | None
    fields: Mapping[str, Any]
    message: str
    body: str

    @property
    def status_fault(self) -> CallFault:
        """The fault by the status alone; `server` without one."""
        return "server" if self.status is None else fault_from_status(self.status)


@dataclass(frozen=True, slots=True)
class ErrorParser:
    """Parses the errors of a provider; `classify` is what only this provider's errors say."""

    classify: Callable[[ErrorBody], CallFault] = lambda error: error.status_fault

    def __call__(self, status: int | None, body: str) -> tuple[CallFault, str]:
        """Return the fault and the message of an error with `status`; None: it came with status 200. Servers write
        `{"error": {"message": …, …}}`, `{"error": "…"}`, the fields without `error`, or a list of one of these."""
        try:
            value = json.decode(body)
        except DecodeError:
            value = None
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        error = value.get("error", value) if isinstance(value, dict) else None
        fields = error if isinstance(error, dict) else {"message": error}
        text = fields.get("message")
        message = text if isinstance(text, str) else body.strip()
        code = fields.get("code") if status is None else status
        # By exact type, as True is an int; some servers put the name of the error into `code`.
        parsed = ErrorBody(code if type(code) is int else None, fields, message, body)
        return self.classify(parsed), f"status {status or 200}: {message}"
