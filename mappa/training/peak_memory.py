"""Peak memory of the processes of a run, as the kernel counts it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path

from mappa_core.records import Process

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def peak_memory(processes: Iterable[Process]) -> int | None:
    """Add up the peak memory so far of this process and of those `processes` that run on this machine, in bytes.
    Programs of agents are left out. None where the kernel does not tell it, or a process runs elsewhere."""
    engine = tuple(processes)
    if any(process.host != socket.gethostname() for process in engine):
        return None
    peaks = [_peak_of(pid) for pid in {os.getpid(), *(process.pid for process in engine)}]
    known = [peak for peak in peaks if peak is not None]
    return sum(known) if len(known) == len(peaks) else None


def _peak_of(pid: int) -> int | None:
    try:
        found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return None
    return None if found is None else 1024 * int(found[1])
