"""What every tracer can do, and the bounds on what its server may send."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mappa.look.tracers.address import KEYS, Service, TraceChoice
from mappa_core import InputError
from mappa_core.calls.bounded_reply import UNCOMPRESSED, ByteCounter, bound_fault, causes, reply_bytes
from mappa_core.redaction import clean_line

if TYPE_CHECKING:
    import httpx

    from mappa.look.tracers.judgements import Judgement

MAX_REPLY_BYTES = 1 << 28
"""Of one page of spans, which hold what agents saw and wrote."""
MAX_TRACES = 100_000
"""Of one pull."""
MAX_SPANS = 10_000
"""Of one trace."""
TIMEOUT_S = 60.0
"""Of a connection, and between two pieces of a reply."""
_MAX_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEntry:
    """A trace in a server's list. `stamp` changes when the server gets more of it."""

    id: str
    stamp: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledTrace:
    """The spans of a trace, as JSON objects of a format that can be imported. `has_root`: the span around all others is
    among them, and has ended; `last` is when the last of them ended, in seconds since the epoch."""

    spans: Sequence[Mapping[str, Any]]
    has_root: bool
    last: float
    tags: frozenset[str]


class Tracer(ABC):
    """A server that keeps traces, by the service's own client."""

    name: str
    """How errors call it."""

    @abstractmethod
    def list_traces(self, choice: TraceChoice) -> Iterator[TraceEntry]:
        """The traces of a choice, the newest first; those of other tags, too, where the server cannot tell."""

    @abstractmethod
    def read_trace(self, trace: str) -> PulledTrace:
        """Read a trace."""

    @abstractmethod
    def write(self, judgements: Sequence[Judgement]) -> None:
        """Write verdicts to their spans and traces. What was written there before by the same judge is replaced."""


def check_span_count(spans: Sequence[object], trace: str) -> None:
    """Raise InputError for a trace that is too large."""
    if len(spans) > MAX_SPANS:
        raise InputError(f"trace {clean_line(trace)} has more than {MAX_SPANS:,} spans, so that it cannot be pulled")


def import_client(module: str, extra: str) -> Any:
    """Import a module of a library that an extra of mappa brings. Raises InputError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f'{extra} needs a library that is not installed ({error}): pip install "mappa[{extra}]"'
        ) from error


def open_http(server: str, headers: Mapping[str, str] | None = None) -> httpx.Client:
    """Open an HTTP client whose replies are bounded. It follows no redirect: keys go where the user says."""
    import httpx

    class Counted(httpx.SyncByteStream):
        def __init__(self, stream: httpx.SyncByteStream, counter: ByteCounter) -> None:
            self._stream, self._counter = stream, counter

        def __iter__(self) -> Iterator[bytes]:
            for chunk in self._stream:
                yield self._counter.add(chunk)

        def close(self) -> None:
            self._stream.close()

    def ask_for_plain(request: httpx.Request) -> None:
        request.headers.update(UNCOMPRESSED)

    def bound(response: httpx.Response) -> None:
        stream: Any = response.stream
        response.stream = Counted(stream, ByteCounter(response.status_code, response.headers))

    return httpx.Client(
        base_url=server,
        headers=dict(headers or {}),
        timeout=TIMEOUT_S,
        follow_redirects=False,
        event_hooks={"request": [ask_for_plain], "response": [bound]},
    )


@contextmanager
def server_errors(name: str, service: Service) -> Iterator[None]:
    """Turn what a client raises because of its server into an InputError that says what to do; `name` is the server."""
    try:
        with reply_bytes(MAX_REPLY_BYTES):
            yield
    except (InputError, MemoryError):
        raise
    except Exception as error:  # of a client: httpx's, its own, and what reading a strange reply leads to
        raise InputError(f"{name}: {_describe(error, service)}") from error


def _describe(error: Exception, service: Service) -> str:
    if (fault := bound_fault(error)) is not None:
        return clean_line(str(fault))
    status, said = next((found for cause in causes(error) if (found := _read_reply(cause))), (None, ""))
    if status in (401, 403):
        return f"the server refused the key (status {status}): set {' and '.join(KEYS[service])}"
    shown = clean_line(said or f"{type(error).__name__}: {error}")[:_MAX_SHOWN]
    return shown if status is None else f"status {status}: {shown}"


def _read_reply(error: BaseException) -> tuple[int, str] | None:
    """Status and text of the reply that an error is about: those of httpx hold the reply, those of Langfuse's client
    what they read of it."""
    reply = getattr(error, "response", None)
    status = getattr(reply, "status_code", None) or getattr(error, "status_code", None)
    said = getattr(reply, "text", None) or getattr(error, "body", None) or ""
    return (status, str(said)) if isinstance(status, int) else None
