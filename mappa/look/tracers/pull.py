"""Pulls traces of a tracer into a folder of logs, a file for each: what is there is not pulled again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

from mappa.look.output_files import unique_file_name
from mappa.look.tracers.address import TracerAddress, parse_address
from mappa.look.tracers.langfuse import LangfuseTracer
from mappa.look.tracers.phoenix import PhoenixTracer
from mappa.look.tracers.tracer import MAX_TRACES, PulledTrace, Tracer
from mappa_core import InputError
from mappa_core.files import has_file, open_log, read_text, storage_errors, write_file
from mappa_core.redaction import clean_line, redact

FOLDER = "pulled"
"""The folder of pulled logs, beside the runs that are made of them."""
SETTLED_S = 600.0
"""A trace whose root is not there is complete if nothing of it happened for so long: its root lies with another
service."""
_STAMPS = "stamps"
_MAX_STAMPS_BYTES = 1 << 27
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z_.-]{0,127}")
_HASH_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """A folder of logs, a file for each trace, and what this pull did: traces that it read, that were there before, and
    that have not ended yet, which a later pull reads."""

    folder: Path
    read: int
    known: int
    open: int


def open_tracer(address: TracerAddress) -> Tracer:
    """Open a tracer. Raises InputError if its client is not installed, or the environment lacks its keys."""
    if address.service == "phoenix":
        return PhoenixTracer(address.server, address.project)
    return LangfuseTracer(address.server)


def pull_traces(text: str, root: Path, *, on_trace: Callable[[int], None] | None = None) -> Pull:
    """Pull the traces that an address chooses into a folder in `root`, the newest first. Each is there whole or not at
    all; if it breaks off, the next pull goes on. `on_trace` is called with the number of traces read so far.

    Raises:
        InputError: the address, its server or a trace is not as it should be, or nothing was found.
        RunError: the storage failed.
    """
    address = parse_address(text)
    folder = root / FOLDER / _folder_name(address)
    counts = {"read": 0, "known": 0, "open": 0}
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    stamps = _read_stamps(folder)
    for kind in _pull_each(open_tracer(address), address, folder, stamps):
        counts[kind] += 1
        if kind == "read" and on_trace is not None:
            on_trace(counts["read"])
    if not counts["read"] and not stamps:
        open_ones = f"; {counts['open']:,} have not ended yet" if counts["open"] else ""
        raise InputError(f"{clean_line(text)}: no trace is there that was asked for{open_ones}")
    return Pull(folder=folder, **counts)


def _pull_each(tracer: Tracer, address: TracerAddress, folder: Path, stamps: dict[str, str]) -> Iterator[str]:
    """Read the traces that are not in the folder; what became of each is yielded."""
    choice, chosen = address.choice, 0
    for entry in tracer.list_traces(choice):
        if chosen >= (MAX_TRACES if choice.limit is None else choice.limit):
            return
        if not _ID.fullmatch(entry.id):
            raise InputError(f"{tracer.name}: {clean_line(entry.id)[:80]!r} is no id of a trace")
        if stamps.get(entry.id) == entry.stamp and has_file(folder, f"{entry.id}.jsonl"):
            chosen += 1
            yield "known"
            continue
        trace = tracer.read_trace(entry.id)
        if not trace.spans or not set(choice.tags) <= trace.tags:
            continue
        chosen += 1
        if not trace.has_root and time.time() - trace.last < SETTLED_S:
            yield "open"
            continue
        write_file(folder, f"{entry.id}.jsonl", encode_trace(trace))
        with open_log(folder, _STAMPS) as log:
            log.write(msgspec.json.encode([entry.id, entry.stamp]).decode() + "\n")
        yield "read"


def encode_trace(trace: PulledTrace) -> str:
    """A trace as lines of a log, without the keys that this process knows."""
    return "".join(redact(msgspec.json.encode(span).decode()) + "\n" for span in trace.spans)


def _read_stamps(folder: Path) -> dict[str, str]:
    """The stamp of each trace that was pulled before; a line that was not finished counts for nothing."""
    if not has_file(folder, _STAMPS):
        return {}
    found: dict[str, str] = {}
    for line in read_text(folder, _STAMPS, max_bytes=_MAX_STAMPS_BYTES).splitlines():
        try:
            trace, stamp = msgspec.json.decode(line, type=tuple[str, str])
        except msgspec.DecodeError:
            continue
        found[trace] = stamp
    return found


def _folder_name(address: TracerAddress) -> str:
    """The folder of an address, which names its run, too: what is chosen otherwise lies elsewhere."""
    place = (address.server or "").partition("://")[2]
    query = address.text.partition("?")[2]
    parts = (
        address.service,
        address.project,
        place,
        sha256(query.encode()).hexdigest()[:_HASH_DIGITS] if query else "",
    )
    return unique_file_name(re.sub(r"[^\w-]+", "-", "-".join(part for part in parts if part)), ())
