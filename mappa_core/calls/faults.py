"""For authors of transports: why there is no reply, when to ask again, and a key that does not show."""

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

_FAULT_OF: Mapping[int, CallFault] = {
    401: "key",
    402: "quota",
    403: "key",
    404: "model",
    408: "timeout",
    409: "server",  # a conflict with another request there; all official clients try again
    410: "model",
    413: "too_long",
    429: "rate_limit",
    503: "overloaded",
    529: "overloaded",
}


def fault_of_status(status: int) -> CallFault:
    """The fault of an HTTP status, as far as it tells; the body may know better (a 429 that means `quota`, a 400 that
    means `schema` or `too_long`). A status below 300 is none of an error: the answer is `garbled`."""
    if status in _FAULT_OF:
        return _FAULT_OF[status]
    if 300 <= status < 500:
        return "request"
    return "server" if 500 <= status < 600 else "garbled"


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a reply asks to be left alone: `retry-after-ms`, else `retry-after` as seconds or as an HTTP date
    (RFC 9110, 10.2.3), by the server's own clock where it sends `date`. None where it says nothing that can be read; 0
    for what is past."""
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
    # HTTP dates are in UTC, and the parser leaves the zone out where it stands as -0000 or not at all.
    return date.replace(tzinfo=UTC) if date is not None and date.tzinfo is None else date


def one_line(text: str, limit: int = 500) -> str:
    """`text` in one line of at most `limit` characters: for messages of errors, which may quote whole pages. Where a
    key may stand in it, `Secret.hide` does the same without the key."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


class Secret:
    """The value of a key. It shows only as its name, cannot be pickled or copied, and is had by `reveal` alone."""

    __slots__ = ("_name", "_value")

    def __init__(self, value: str, name: str) -> None:
        if not value:
            raise ValueError(f"{name} has no value")
        self._value = value
        self._name = name

    @classmethod
    def from_env(cls, variable: str, owner: str) -> Secret:
        """The value of an environment variable, without the white space around it. `owner` says in messages who needs
        it (`the coach gemini`).

        Raises:
            ConfigError: there is none, it is empty, or it cannot be sent in a header. No message holds a value.
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
        """The value, for the client that sends it and nobody else."""
        return self._value

    def hide(self, text: str, limit: int = 500) -> str:
        """`text` in one line of at most `limit` characters, without the value, also where it is percent-encoded (as
        in an URL): for messages of errors, which may quote what was sent."""
        forms = "|".join(re.escape(form) for form in (self._value, quote(self._value, safe="")))
        return one_line(re.sub(forms, lambda _: f"[{self._name}]", text, flags=re.IGNORECASE), limit)

    def scrub(self, text: str) -> str:
        """`text` without the value, and otherwise as it is: for answers, which are read and kept."""
        return text.replace(self._value, f"[{self._name}]")

    def __repr__(self) -> str:
        return f"Secret({self._name})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"{self!r} is not pickled or copied: pass on the name of its environment variable")
