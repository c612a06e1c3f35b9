"""For authors of transports: faults of HTTP statuses, Retry-After headers, and API keys that are never printed."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NoReturn
from urllib.parse import quote

from mappa_core.errors import CallFault, ConfigError

_FAULT_BY_STATUS: Mapping[int, CallFault] = {
    401: "key",
    402: "quota",
    403: "key",
    404: "model",
    408: "timeout",
    409: "server",  # a conflict with another request; all official clients retry
    410: "model",
    413: "too_long",
    429: "rate_limit",
    503: "overloaded",
    529: "overloaded",
}


def fault_of_status(status: int) -> CallFault:
    """Return the fault of an HTTP status. The body may be more specific (a 429 that means `quota`, a 400 that means
    `schema` or `too_long`). A status below 300 is no error status: the answer is `garbled`."""
    if status in _FAULT_BY_STATUS:
        return _FAULT_BY_STATUS[status]
    if 300 <= status < 500:
        return "request"
    return "server" if 500 <= status < 600 else "garbled"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait that a reply asks for: `retry-after-ms`, else `retry-after` as seconds or as an HTTP
    date (RFC 9110, 10.2.3), by the server's clock if it sends `date`. None without a valid header; 0 for a time in the
    past."""
    found = {name.lower(): value.strip() for name, value in headers.items()}
    seconds = _number(found.get("retry-after-ms"), scale=1e-3)
    if seconds is None:
        seconds = _number(found.get("retry-after"))
    if seconds is None and (then := _date(found.get("retry-after"))) is not None:
        now = _date(found.get("date")) or datetime.now(UTC)
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
    """Return `text` as one line of at most `limit` characters, for error messages, which may quote whole pages. If the
    text may contain a key, use `Secret.hide`."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


class Secret:
    """The value of an API key. It prints as its name, cannot be pickled or copied, and is read by `reveal` only."""

    __slots__ = ("_name", "_value")

    def __init__(self, value: str, name: str) -> None:
        if not value:
            raise ValueError(f"{name} has no value")
        self._value = value
        self._name = name

    @classmethod
    def from_env(cls, variable: str, owner: str) -> Secret:
        """Read an environment variable and strip the white space around its value. `owner` says in messages who needs
        it (`the coach gemini`).

        Raises:
            ConfigError: the variable is unset or empty, or its value cannot be sent in a header. No message holds a
                value.
        """
        if not os.environ.get(variable, "").strip():
            if not re.fullmatch(r"[A-Z][A-Z0-9_]*", variable):  # perhaps the key itself
                raise ConfigError(f"{owner} needs the name of the environment variable that holds its key, not the key")
            raise ConfigError(f"{variable} is not set or empty: {owner} needs its key in this environment variable")
        secret = cls(os.environ[variable].strip(), variable)
        if not re.fullmatch("[!-~]+", secret._value):
            raise ConfigError(f"{variable} holds characters that no key has (white space or not ASCII): set it again")
        return secret

    def reveal(self) -> str:
        """Return the value. Only for the client that sends it."""
        return self._value

    def hide(self, text: str, limit: int = 500) -> str:
        """Return `text` as one line of at most `limit` characters with the value masked, also where it is
        percent-encoded (as in a URL), for error messages, which may quote the request."""
        forms = "|".join(re.escape(form) for form in (self._value, quote(self._value, safe="")))
        return one_line(re.sub(forms, lambda _: f"[{self._name}]", text, flags=re.IGNORECASE), limit)

    def scrub(self, text: str) -> str:
        """Return `text` with the value masked and otherwise unchanged, for answers, which are parsed and stored."""
        return text.replace(self._value, f"[{self._name}]")

    def __repr__(self) -> str:
        return f"Secret({self._name})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{self!r} is not pickled or copied: pass on the name of its environment variable")
