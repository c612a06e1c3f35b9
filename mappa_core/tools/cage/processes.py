"""Processes as /proc shows them: who descends from whom, and what they use. Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

TICKS = os.sysconf("SC_CLK_TCK")
PIPE_BYTES = 1 << 16
"""What the kernel keeps for a pipe of the usual size, at most."""


@dataclass(frozen=True)
class Process:
    """What one process uses: threads, seconds of CPU with those of children that ended, bytes of memory of its own
    (`memory` counts pages shared with relatives in full, `fair_memory` its share of them)."""

    pid: int
    threads: int
    cpu_s: float
    memory: int


def children_of(pid: int) -> list[int]:
    """Direct children, zombies included, of all threads of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as listed:
                found += map(int, listed.read().split())
    return found


def descendants_of(pid: int) -> list[int]:
    """All that descends from a process, without itself."""
    found, waiting = [], [pid]
    while waiting:
        for child in children_of(waiting.pop()):
            found.append(child)
            waiting.append(child)
    return found


def all_processes() -> list[int]:
    """Every process that this /proc shows."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def state_of(pid: int) -> str:
    """State letter of a process; empty for one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as status:
            return status.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return ""


def look(pid: int) -> Process | None:
    """What a process uses now; None for one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as status:
            fields = status.read().rpartition(b")")[2].split()
        with open(f"/proc/{pid}/status", "rb") as status:
            sizes = kilobytes(status, (b"RssAnon", b"RssShmem", b"VmSwap"))
    except OSError:
        return None
    return Process(pid, int(fields[17]), sum(map(int, fields[11:15])) / TICKS, sum(sizes.values()) << 10)


def fair_memory(pid: int) -> int | None:
    """Bytes of memory of a process, pages shared by several counted in parts; None where it cannot be told."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as rollup:
            sizes = kilobytes(rollup, (b"Pss_Anon", b"Pss_Shmem", b"SwapPss"))
    except OSError:
        return None
    return sum(sizes.values()) << 10 if len(sizes) == 3 else None


def kilobytes(lines: Iterable[bytes], names: tuple[bytes, ...]) -> dict[bytes, int]:
    """The values of lines like `RssAnon:   123 kB`."""
    return {name: int(value.split()[0]) for name, _, value in (line.partition(b":") for line in lines) if name in names}


@dataclass(frozen=True)
class Held:
    """What processes keep that neither a folder nor their pages show, in bytes by inode: `files` on a disk without a
    name any more, and `memory` of the kernel: at most that of buffers, and what is shared between processes."""

    files: dict[int, int]
    memory: dict[int, int]


def look_at_descriptors(pid: int, device: int, held: Held) -> None:
    """Add what a process holds open to `held`; files count on the file system `device`.

    Raises:
        PermissionError: the process does not let itself be looked at.
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                status = os.stat(f"/proc/{pid}/fd/{descriptor}")
                if stat.S_ISSOCK(status.st_mode):
                    held.memory[status.st_ino] = socket_bytes()
                elif stat.S_ISFIFO(status.st_mode):
                    held.memory[status.st_ino] = PIPE_BYTES
                elif stat.S_ISREG(status.st_mode) and status.st_nlink == 0 and status.st_dev == device:
                    held.files[status.st_ino] = max(status.st_size, status.st_blocks * 512)


@cache
def socket_bytes() -> int:
    """What the kernel keeps for one end of a pair of sockets with a buffer of the usual size, at most."""
    with open("/proc/sys/net/core/wmem_default", "rb") as usual:
        return 2 * int(usual.read())


def look_at_mappings(pid: int, folders: tuple[str, ...], held: Held) -> None:
    """Add what a process has mapped to `held`: shared memory, and files whose old path lies in one of `folders`.

    Raises:
        PermissionError: the process does not let itself be looked at.
    """
    with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/maps", "rb") as maps:
        for line in maps:
            if line.endswith(b" (deleted)\n"):
                kept = held.memory if b" /dev/zero " in line else held.files
                if kept is held.memory or any(f" {folder}/".encode() in line for folder in folders):
                    _add(kept, line)


def _add(kept: dict[int, int], line: bytes) -> None:
    """Add a mapping, a line of `maps`: START-END MODE OFFSET DEVICE INODE PATH."""
    extent, _, _, _, inode, _ = line.split(maxsplit=5)
    first, last = (int(end, 16) for end in extent.split(b"-"))
    number = int(inode)
    kept[number] = max(kept[number], last - first) if number in kept else last - first


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def sweep(group: int | None = None) -> None:
    """Kill all descendants of this process, to which orphans come: children first, then theirs, which become ours,
    until none is left. Where /proc does not tell, it is the process group `group` that is killed."""
    if group is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in children_of(os.getpid()):
            kill(pid)
        time.sleep(0.0005)
