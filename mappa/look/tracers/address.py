"""Addresses of tracers: `phoenix://HOST[:PORT]/PROJECT?since=…`. They hold no key: that is in the environment."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args
from urllib.parse import parse_qsl, unquote, urlsplit

from mappa_core import InputError

Service = Literal["phoenix", "langfuse"]
SERVICES: tuple[Service, ...] = get_args(Service)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_AGO = re.compile(r"(?P<count>\d{1,4})(?P<unit>[mhdw])")
_LIMIT = re.compile(r"[1-9][0-9]{0,8}")
_MARK = "://"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceChoice:
    """Which traces are pulled: those that started in `since` <= start < `until`, have every one of `tags`, and of these
    the newest `limit`. Times are in UTC."""

    since: datetime | None = None
    until: datetime | None = None
    tags: tuple[str, ...] = ()
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerAddress:
    """A server, a project on it, and which traces. `server` None: the one that the environment names."""

    service: Service
    server: str | None
    project: str | None
    choice: TraceChoice = field(default_factory=TraceChoice)
    text: str
    """The address as it was written."""


def parse_address(text: str) -> TracerAddress:
    """Parse an address.

    Raises:
        InputError: it names no tracer, holds a password, or says something that is not understood.
    """
    try:
        parts = urlsplit(text)
    except ValueError:  # Its message and the text may hold a key.
        raise InputError(
            "an address names a host that can be none; write phoenix://HOST[:PORT]/PROJECT or langfuse://HOST[:PORT]"
        ) from None
    if parts.scheme not in SERVICES:
        raise InputError(f"{text}: {parts.scheme!r} is no tracer; write {' or '.join(f'{one}://' for one in SERVICES)}")
    service: Service = parts.scheme
    if "@" in parts.netloc or parts.fragment:
        raise InputError(
            f"{service}://: an address holds no keys: set {' and '.join(KEYS[service])}, and leave out what is before "
            "@ and behind #"
        )
    project = unquote(parts.path.strip("/")) or None
    if service == "langfuse" and project is not None:
        raise InputError(
            f"{text}: the keys of Langfuse belong to one project, so the address names none: langfuse://HOST"
        )
    if service == "phoenix" and (project is None or "/" in project):
        raise InputError(f"{text}: name a project: phoenix://HOST/PROJECT, or phoenix:///PROJECT")
    return TracerAddress(
        service=service,
        server=_read_server(parts.netloc, text),
        project=project,
        choice=_read_choice(parts.query, text),
        text=text,
    )


def parse_server(text: str) -> TracerAddress:
    """Parse an address that verdicts are written to: of a server alone, as spans have ids of their own. Raises
    InputError as `parse_address` does."""
    head, mark, query = text.partition("?")
    if mark:
        raise InputError(f"{text}: verdicts go to the spans of a run, so leave out ?{query}")
    scheme, _, rest = head.partition(_MARK)
    # Phoenix keeps spans in projects, but annotates them by their ids alone.
    named = rest.partition("/")[2].strip("/") or scheme != "phoenix"
    return parse_address(text if named else f"{head.rstrip('/') if rest else head}/-")


KEYS: dict[Service, tuple[str, ...]] = {
    "phoenix": ("PHOENIX_API_KEY",),
    "langfuse": ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"),
}
"""Environment variables that hold the keys of a service, as its own client calls them."""


def _read_server(place: str, text: str) -> str | None:
    if not place:
        return None
    try:
        parts = urlsplit(f"//{place}")
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"{text}: {error}") from None
    if not host:
        raise InputError(f"{text}: names no host")
    # Keys and texts of agents go over the network in the clear to this machine alone.
    return f"{'http' if host in _LOOPBACK else 'https'}://{place}"


def _read_choice(query: str, text: str) -> TraceChoice:
    given: dict[str, list[str]] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        given.setdefault(name, []).append(value)
    for name, values in given.items():
        if name not in ("since", "until", "tag", "limit"):
            raise InputError(f"{text}: {name!r} is not known; traces are chosen by since, until, tag and limit")
        if name != "tag" and len(values) > 1:
            raise InputError(f"{text}: {name} is given twice")
    (since,), (until,), (limit,) = (given.get(name, [None]) for name in ("since", "until", "limit"))
    return TraceChoice(
        since=_read_time(since, "since", text),
        until=_read_time(until, "until", text),
        tags=tuple(given.get("tag", ())),
        limit=_read_limit(limit, text),
    )


def _read_time(value: str | None, name: str, text: str) -> datetime | None:
    """Read a time: ISO 8601, in UTC unless it says otherwise, or how long ago: `90m`, `12h`, `7d`, `2w`."""
    if value is None:
        return None
    if ago := _AGO.fullmatch(value):
        return datetime.now(UTC) - timedelta(**{_UNITS[ago["unit"]]: int(ago["count"])})
    try:
        time = datetime.fromisoformat(value)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InputError(
            f"{text}: {name}={value} is not a time; write 2026-11-28, 2026-11-28T09:30, 12h or 7d"
        ) from None


def _read_limit(value: str | None, text: str) -> int | None:
    if value is None:
        return None
    if not _LIMIT.fullmatch(value):
        raise InputError(f"{text}: limit={value} is not a number of traces")
    return int(value)
