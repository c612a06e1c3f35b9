"""Traces as they arrive: spans are added to a file for each trace, which gets its name as a log once it is complete."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from mappa.look.importing.spans import read_spans
from mappa.look.tracers.pull import SETTLED_S
from mappa.look.tracers.tracer import MAX_SPANS
from mappa_core.files import open_log, storage_errors
from mappa_core.redaction import redact

QUIET_S = 6.0
"""A trace whose root has ended is complete if nothing more of it came for so long: SDKs send what they have every five
seconds, and several processes may work on one trace."""
MAX_OPEN = 10_000
"""Traces that have begun and are not complete."""
MAX_TRACE_BYTES = 1 << 28
_OPEN, _LOG = ".open", ".jsonl"
_TRACE_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(slots=True)
class _OpenTrace:
    spans: int = 0
    size: int = 0
    has_root: bool = False
    last: float = 0.0


class ReceivedTraces:
    """A folder that traces arrive in. Spans are in their file before their arrival is confirmed, so that none is lost
    when the process is killed; what was open then is taken up again."""

    def __init__(self, folder: Path, *, quiet_s: float = QUIET_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder, self._quiet_s, self._clock = folder, quiet_s, clock
        self._open: dict[str, _OpenTrace] = {}
        self._lock = Lock()
        """Spans arrive in one thread, and another takes what is complete: a file that is renamed must not get more."""
        with storage_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            # Whether their root came is not known any more: they end when nothing more comes.
            for path in sorted(folder.glob(f"*{_OPEN}")):
                self._open[path.stem] = _OpenTrace(size=path.stat().st_size, last=clock())

    def add(self, request: Mapping[str, Any]) -> Mapping[str, int]:
        """Add the spans of an OTLP request in its JSON form. What is refused is counted, by reason.

        Raises:
            LogFormatError: it is no such request; nothing of it is added.
            RunError: the storage failed.
        """
        read_spans(request, "")
        refused: Counter[str] = Counter()
        with self._lock:
            for trace, part in _split_by_trace(request).items():
                if (reason := self._add_part(trace, part)) is not None:
                    refused[reason] += part.spans
        return refused

    def _add_part(self, trace: str, part: _TracePart) -> str | None:
        if not _TRACE_ID.fullmatch(trace):
            return "the id of the trace has not 16 bytes"
        # A span that comes after its trace was complete is kept with it, though no run reads it any more.
        if (self._folder / f"{trace}{_LOG}").exists():
            self._write(f"{trace}{_LOG}", part)
            return None
        known = self._open.get(trace)
        if known is None and len(self._open) >= MAX_OPEN:
            return f"{MAX_OPEN:,} traces have begun and not ended"
        known = self._open.setdefault(trace, _OpenTrace())
        if known.spans + part.spans > MAX_SPANS or known.size > MAX_TRACE_BYTES:
            return f"the trace has more than {MAX_SPANS:,} spans, or {MAX_TRACE_BYTES:,} bytes"
        known.size += self._write(f"{trace}{_OPEN}", part)
        known.spans += part.spans
        known.has_root = known.has_root or part.has_root
        known.last = self._clock()
        return None

    def _write(self, name: str, part: _TracePart) -> int:
        line = redact(msgspec.json.encode({"resourceSpans": part.resources}).decode()) + "\n"
        with open_log(self._folder, name) as log:
            log.write(line)
        return len(line)

    def settle(self, *, all_of_them: bool = False) -> list[Path]:
        """The logs of the traces that are complete by now. With `all_of_them` those are that have a root."""
        with self._lock:
            now = self._clock()
            complete = [
                trace
                for trace, known in self._open.items()
                if now - known.last >= (self._quiet_s if known.has_root else SETTLED_S)
                or (all_of_them and known.has_root)
            ]
            return [self._complete(trace) for trace in complete]

    def _complete(self, trace: str) -> Path:
        log = self._folder / f"{trace}{_LOG}"
        with storage_errors(log):
            (self._folder / f"{trace}{_OPEN}").rename(log)
        del self._open[trace]
        return log


@dataclass(slots=True)
class _TracePart:
    """The spans of one trace in a request, within their resources and scopes."""

    resources: list[dict[str, Any]]
    spans: int = 0
    has_root: bool = False


def _split_by_trace(request: Mapping[str, Any]) -> dict[str, _TracePart]:
    found: dict[str, _TracePart] = {}
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            by_trace: dict[str, list[Any]] = {}
            for span in scope["spans"]:
                by_trace.setdefault(str(span["traceId"]).lower(), []).append(span)
            for trace, spans in by_trace.items():
                part = found.setdefault(trace, _TracePart([]))
                part.resources.append({**resource, "scopeSpans": [{**scope, "spans": spans}]})
                part.spans += len(spans)
                part.has_root = part.has_root or any(not span.get("parentSpanId") for span in spans)
    return found
