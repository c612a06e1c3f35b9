"""The watch over a program: reads its output, and ends it where it or the clock reaches a limit."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

from mappa_core.tools.cage import disk, processes
from mappa_core.tools.cage.cages import Cage
from mappa_core.tools.cage.order import Order
from mappa_core.tools.cage.output import CHUNK, Ends

FIRST_LOOK_S = 0.05
LOOK_S = 0.1
THOROUGH_LOOKS = 3
"""Every so many looks files and mappings are looked at too."""
PATIENCE = 5
"""Looks in a row that may fail, as one does at a process that is about to start another program."""


class Watch:
    """Waits for a program while reading its output."""

    def __init__(
        self, pid: int, signals: int, channel: socket.socket, outputs: list[Ends], guard: Guard | None
    ) -> None:
        self.pid = pid
        self.signals = signals
        self.channel = channel
        self.outputs = {output.pipe: output for output in outputs}
        self.guard = guard

    def until(self, deadline: float) -> dict[str, Any] | None:
        """How the program ended: `exit`, or the `limit` that was reached. None: nobody waits for it any more, as driver
        or warden are gone."""
        poller = select.poll()
        for readable in (self.signals, self.channel.fileno(), *self.outputs):
            poller.register(readable, select.POLLIN)
        look = time.monotonic() + FIRST_LOOK_S if self.guard else math.inf
        while (now := time.monotonic()) < deadline:
            if now >= look:
                assert self.guard is not None
                if (limit := self.guard.look()) is not None:
                    return {"exit": None, "limit": limit}
                look = time.monotonic() + LOOK_S
            for fd, _ in poller.poll(max(0.0, min(deadline, look) - now) * 1000 + 1):
                if fd in self.outputs:
                    if not self.outputs[fd].take():
                        poller.unregister(fd)
                elif fd == self.signals:
                    if signal.SIGTERM in os.read(fd, CHUNK):
                        return None
                    if (ending := self._ended()) is not None:
                        return ending
                else:
                    return None
        return {"exit": None, "limit": "wall"}

    def _ended(self) -> dict[str, Any] | None:
        """Reap whatever ended; the program's ending if it did."""
        with contextlib.suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] == self.pid:
                    code = os.waitstatus_to_exitcode(reaped[1])
                    # The kernel's answer to a soft limit of CPU time; to the hard one, a second later, it is SIGKILL.
                    spent = code == -signal.SIGXCPU
                    return {"exit": None, "limit": "cpu"} if spent else {"exit": code, "limit": None}
        return None


class Guard:
    """Looks at all that a program started, and at what it leaves on the disk.

    Limits of the kernel hold for single processes and files; these hold for their sums. They are looked at from time to
    time, so that a program can be over them for the time between two looks.
    """

    def __init__(self, cage: Cage, order: Order, inherited: int) -> None:
        """`inherited` is the memory of the supervisor in bytes, which every fork of it shows as its own."""
        self.cage = cage
        self.order = order
        self.inherited = inherited
        self.device = os.stat(cage.folder).st_dev
        at_start = disk.measure(cage.folders, sys.maxsize)
        # A program that was started in a folder that is too full may still clear it.
        self.most_bytes = max(order.workspace_bytes, at_start.bytes)
        self.most_entries = max(order.workspace_files, at_start.entries)
        self.looks = 0
        self.failures = 0

    def look(self) -> str | None:
        """The limit that is exceeded now, if any: memory, processes, cpu, disk, files or hidden."""
        pids = self.cage.pids()
        seen = [one for one in map(processes.look, pids) if one is not None]
        self.looks += 1
        if sum(one.threads for one in seen) > self.order.processes:
            return "processes"
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        if sum(one.cpu_s for one in seen) + ended.ru_utime + ended.ru_stime > self.order.cpu_s:
            return "cpu"
        try:
            limit = self._exceeded(pids, seen, thoroughly=self.looks % THOROUGH_LOOKS == 1)
            self.failures = 0
        except OSError:  # a process does not let itself be looked at, or moves its folders all the time
            self.failures += 1
            limit = "hidden" if self.failures > PATIENCE else None
        return limit

    def left_too_much(self) -> str | None:
        """The limit that the files exceed which an ended program left, if any."""
        return self._files_exceed(0)

    def _exceeded(self, pids: list[int], seen: list[processes.Process], *, thoroughly: bool) -> str | None:
        held = processes.Held({}, {})
        for pid in pids:
            processes.look_at_descriptors(pid, self.device, held)
            if thoroughly:
                processes.look_at_mappings(pid, self.cage.folders, held)
        if self._memory_is_over(seen, sum(held.memory.values()) + self.cage.memory_files()):
            return "memory"
        return self._files_exceed(sum(held.files.values())) if thoroughly else None

    def _memory_is_over(self, seen: list[processes.Process], elsewhere: int) -> bool:
        """What a program inherited from the preloading warden is not its own doing. It is counted once, although each
        process shows it; only where that makes a difference is it worth a walk through page tables."""
        most = self.order.memory_bytes + self.inherited - elsewhere
        if sum(one.memory for one in seen) <= most:
            return False
        fair = ((processes.fair_memory(one.pid), one.memory) for one in seen)
        return sum(shown if share is None else share for share, shown in fair) > most

    def _files_exceed(self, nameless: int) -> str | None:
        contents = disk.measure(self.cage.folders, self.most_entries)
        if contents.closed or contents.entries > self.most_entries:
            return "files"
        return "disk" if contents.bytes + nameless > self.most_bytes else None


def own_memory() -> int:
    """Bytes of memory of this process."""
    seen = processes.look(os.getpid())
    assert seen is not None
    return seen.memory
