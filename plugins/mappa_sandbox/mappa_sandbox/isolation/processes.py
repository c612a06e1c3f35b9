"""Inspect processes in /proc: their descendants, and the resources that they use."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from mappa_sandbox.isolation.syscalls import MAX_SHARED_BYTES

TICKS = os.sysconf("SC_CLK_TCK")
PIPE_BYTES = 1 << 16
"""Maximum kernel memory of a pipe of the default size."""


@dataclass(frozen=True)
class ProcessUsage:
    """Resources of one process: threads, CPU seconds including `reaped_s` of children that ended, seconds since it
    began, and bytes of memory of its own (`memory` counts pages shared with relatives in full, `proportional_memory`
    its share of them)."""

    pid: int
    threads: int
    cpu_s: float
    reaped_s: float
    age_s: float
    memory: int


def children_of(pid: int) -> list[int]:
    """Ids of the direct children of all threads of a process, zombies included."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as listed:
                found += map(int, listed.read().split())
    return found


def descendants_of(pid: int) -> list[int]:
    """Ids of all descendants of a process, without itself."""
    found, waiting = [], [pid]
    while waiting:
        for child in children_of(waiting.pop()):
            found.append(child)
            waiting.append(child)
    return found


def list_processes() -> list[int]:
    """Ids of all processes in this /proc."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def process_state(pid: int) -> str:
    """State letter of a process; empty for one that is gone."""
    return _state(f"/proc/{pid}")


def _state(folder: str) -> str:
    try:
        with open(f"{folder}/stat", "rb") as status:
            # The name of the program comes before, in brackets, and may hold brackets and blanks itself.
            return status.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return ""


def living_task(pid: int) -> str:
    """Folder in /proc of a living thread of a process. Where the first thread has ended, it shows no memory and no
    descriptors, while the others go on; all of them share both (see `syscalls`)."""
    if _state(f"/proc/{pid}") == "Z":
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                if _state(folder := f"/proc/{pid}/task/{thread}") not in ("Z", "X", ""):
                    return folder
    return f"/proc/{pid}"


def read_process_usage(pid: int) -> ProcessUsage | None:
    """Read the resources that a process uses now; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as status:
            fields = status.read().rpartition(b")")[2].split()
        with open(f"{living_task(pid)}/status", "rb") as status:
            sizes = parse_kilobytes(status, (b"RssAnon", b"RssShmem", b"VmSwap"))
    except OSError:
        return None
    # proc(5) numbers them from 1, and two are cut off: 14 and 15 are its own times, 16 and 17 those of children that
    # were waited for, 20 is the number of threads, 22 the start in ticks since boot, which counts suspended time.
    own, reaped = (sum(map(int, fields[first : first + 2])) / TICKS for first in (11, 13))
    age = max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / TICKS)
    return ProcessUsage(pid, int(fields[17]), own + reaped, reaped, age, sum(sizes.values()) << 10)


def own_memory_bytes() -> int:
    """Bytes of memory of this process."""
    usage = read_process_usage(os.getpid())
    assert usage is not None
    return usage.memory


def run_time(usage: ProcessUsage) -> float:
    """CPU seconds of a process alone: of its first thread to the nanosecond where the kernel tells, else to a tick."""
    ran_s = 0.0
    with contextlib.suppress(OSError), open(f"/proc/{usage.pid}/schedstat", "rb") as times:
        ran_s = int(times.read().split()[0]) / 1e9
    return max(ran_s, usage.cpu_s - usage.reaped_s)


def proportional_memory(pid: int) -> int | None:
    """Bytes of memory of a process, shared pages divided among the processes that share them (PSS); None if unknown."""
    try:
        with open(f"{living_task(pid)}/smaps_rollup", "rb") as rollup:
            sizes = parse_kilobytes(rollup, (b"Pss_Anon", b"Pss_Shmem", b"SwapPss"))
    except OSError:
        return None
    return sum(sizes.values()) << 10 if len(sizes) == 3 else None


def parse_kilobytes(lines: Iterable[bytes], names: tuple[bytes, ...]) -> dict[bytes, int]:
    """Parse the values of lines like `RssAnon:   123 kB`."""
    return {name: int(value.split()[0]) for name, _, value in (line.partition(b":") for line in lines) if name in names}


@dataclass(frozen=True)
class HeldResources:
    """Resources that neither folders nor process pages show, in bytes by inode: `files` on a disk that no longer have a
    name, and `memory` of the kernel: the maximum of buffers, and memory shared between processes."""

    files: dict[int, int]
    memory: dict[int, int]


def add_descriptors(pid: int, device: int, held: HeldResources) -> None:
    """Add the open descriptors of a process to `held`; only files on the file system `device` count.

    Raises:
        PermissionError: the process cannot be inspected.
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        folder = f"{living_task(pid)}/fd"
        for descriptor in os.listdir(folder):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                status = os.stat(f"{folder}/{descriptor}")
                if stat.S_ISSOCK(status.st_mode):
                    held.memory[status.st_ino] = socket_bytes()
                elif stat.S_ISFIFO(status.st_mode):
                    held.memory[status.st_ino] = PIPE_BYTES
                elif stat.S_ISREG(status.st_mode) and status.st_nlink == 0 and status.st_dev == device:
                    held.files[status.st_ino] = max(status.st_size, status.st_blocks * 512)


@cache
def socket_bytes() -> int:
    """Maximum kernel memory of one end of a socket pair with a buffer of the default size."""
    with open("/proc/sys/net/core/wmem_default", "rb") as usual:
        return 2 * int(usual.read())


def add_mappings(pid: int, folders: tuple[str, ...], held: HeldResources, max_file_bytes: int) -> None:
    """Add the mappings of a process to `held`: shared memory, and deleted files whose path was in one of `folders`, in
    full also where one page is mapped. Only root can read their sizes; else each counts as the largest that it may be:
    `max_file_bytes` for a file, MAX_SHARED_BYTES for memory.

    Raises:
        PermissionError: the process cannot be inspected.
    """
    task = living_task(pid)
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"{task}/maps", "rb") as maps:
        for line in maps:
            if line.endswith(b" (deleted)\n"):
                if b" /dev/zero " in line:
                    _add_mapping(held.memory, pid, line, MAX_SHARED_BYTES)
                elif any(f" {folder}/".encode() in line for folder in folders):
                    _add_mapping(held.files, pid, line, max_file_bytes)


def _add_mapping(kept: dict[int, int], pid: int, line: bytes, largest: int) -> None:
    """Add a mapping, given by its line in `maps`: START-END MODE OFFSET DEVICE INODE PATH."""
    extent, _, offset, _, inode, _ = line.split(maxsplit=5)
    number = int(inode)
    if number in kept:  # open, too, and so known
        return
    first, last = (int(end, 16) for end in extent.split(b"-"))
    try:
        status = os.stat(f"/proc/{pid}/map_files/{first:x}-{last:x}")
        kept[number] = max(status.st_size, status.st_blocks * 512)
    except OSError:
        kept[number] = max(int(offset, 16) + last - first, largest)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def kill_descendants() -> None:
    """Kill all descendants of this process, which adopts orphans: its children first, then theirs, which become its
    own, until none is left."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in children_of(os.getpid()):
            kill(pid)
        time.sleep(0.0005)  # they end only when they run, maybe on this CPU
