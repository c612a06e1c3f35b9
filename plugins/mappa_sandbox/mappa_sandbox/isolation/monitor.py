"""Monitor a running program: read its output, and stop it at a resource limit or the wall-clock limit."""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from mappa_sandbox.isolation import disk, processes
from mappa_sandbox.isolation.backends import SandboxBackend
from mappa_sandbox.isolation.control_groups import CPU, MEMORY, PROCESSES, ControlGroup
from mappa_sandbox.isolation.job import SandboxJob
from mappa_sandbox.isolation.output import OutputCapture, read_available
from mappa_sandbox.isolation.program_process import ProgramProcess

FIRST_CHECK_S = 0.05
CHECK_INTERVAL_S = 0.1
MAPPING_CHECK_INTERVAL = 3
"""Mappings of memory are included in every n-th check; files, unless the kernel holds them, in all."""
WALL, DISK, FILES, HIDDEN = "wall", "disk", "files", "hidden"
"""Limits, beside those that control groups can hold."""
MAX_FAILED_CHECKS = 5
"""Consecutive checks that may fail, as a check of a process in the middle of an `exec` does."""


class ProgramMonitor:
    """Waits for a program while reading its output and checking its limits."""

    def __init__(
        self,
        process: ProgramProcess,
        signals: int,
        channel: socket.socket,
        outputs: list[OutputCapture],
        checker: LimitChecker,
    ) -> None:
        self.process = process
        self.signals = signals
        self.channel = channel
        self.outputs = {output.end: output for output in outputs}
        self.checker = checker

    def wait_until(self, deadline: float) -> dict[str, Any] | None:
        """Wait for the program until `deadline`; returns its `exit` code, or the `limit` that was reached. None if
        nobody waits for it any more, as the driver or the fork server is gone."""
        poller = select.poll()
        for readable in (self.signals, self.channel.fileno(), self.process.descriptor, *self.outputs):
            if readable is not None:
                poller.register(readable, select.POLLIN)
        next_check = time.monotonic() + FIRST_CHECK_S
        while (now := time.monotonic()) < deadline:
            if now >= next_check:
                if (limit := self.checker.exceeded_limit()) is not None:
                    return {"exit": None, "limit": limit}
                next_check = time.monotonic() + CHECK_INTERVAL_S
            # A millisecond more, or it could wake just before the time and poll in circles until then.
            for fd, _ in poller.poll(max(0.0, min(deadline, next_check) - now) * 1000 + 1):
                if fd in self.outputs:
                    if not self.outputs[fd].read():
                        poller.unregister(fd)
                elif fd == self.channel.fileno() or (
                    fd == self.signals and signal.SIGTERM in (read_available(fd) or b"")
                ):
                    return None
                elif (code := self.process.exit_code()) is not None:
                    # The kernel sends it at the soft limit of CPU time, and SIGKILL at the hard one a second later.
                    spent = code == -signal.SIGXCPU
                    return {"exit": None, "limit": CPU} if spent else {"exit": code, "limit": None}
        return {"exit": None, "limit": WALL}


class LimitChecker:
    """Checks all that a program started, and what it leaves on the disk, against the limits of its job.

    Limits of the kernel hold for single processes and files; these hold for their sums. They are checked from time to
    time, so a program can exceed them between two checks.
    """

    def __init__(
        self, sandbox: SandboxBackend, job: SandboxJob, inherited_memory: int, group: ControlGroup | None
    ) -> None:
        """`inherited_memory` is the supervisor's memory in bytes, which every fork of it reports as its own. What the
        kernel holds or counts for the control `group` is not looked for in the processes."""
        self.sandbox = sandbox
        self.job = job
        self.group = group
        self.held = () if group is None else group.held
        self.inherited_memory = inherited_memory
        self.device = os.stat(sandbox.folder).st_dev
        at_start = disk.measure(sandbox.folders, sys.maxsize)
        # A program that starts in a folder over its limit may still clear it.
        self.max_bytes = max(job.workspace_bytes, at_start.bytes)
        self.max_entries = max(job.workspace_files, at_start.entries)
        self.checks = 0
        self.failures = 0
        self.unreaped = UnreapedTime()

    @property
    def watched(self) -> list[str]:
        """The limits that the kernel does not hold or count for all processes together."""
        polled = [limit for limit in (MEMORY, PROCESSES, CPU) if limit not in self.held]
        return polled if self.sandbox.holds_files else [*polled, DISK, FILES]

    def exceeded_limit(self) -> str | None:
        """Return the limit that is exceeded now, if any: memory, processes, cpu, disk, files or hidden."""
        pids = self.sandbox.pids()
        usages = [usage for usage in map(processes.read_process_usage, pids) if usage is not None]
        self.checks += 1
        if sum(usage.threads for usage in usages) > self.job.processes:
            return PROCESSES
        if self._cpu_s(usages) > self.job.cpu_s:
            return CPU
        try:
            limit = self._exceeded_memory_or_files(pids, usages)
            self.failures = 0
        except OSError:  # a process cannot be inspected, or keeps moving its folders
            self.failures += 1
            limit = HIDDEN if self.failures > MAX_FAILED_CHECKS else None
        return limit

    def exceeded_at_end(self) -> str | None:
        """Return the limit that a program that has ended was over, or that its files are over, if any."""
        if self.group is not None and self.group.was_killed_for_memory():
            return MEMORY
        # Without the home, which goes with the program.
        return self._check_files((self.sandbox.folder,), 0)

    def _cpu_s(self, usages: list[processes.ProcessUsage]) -> float:
        """CPU seconds of all processes that there are and were."""
        if self.group is not None and CPU in self.held:
            return self.group.cpu_s()
        # The time of a process that ended goes to the one that waited for it: its parent, whose `cpu_s` includes it, or
        # this process, which adopts orphans.
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        reaped = ended.ru_utime + ended.ru_stime
        unreaped = self.unreaped.add(usages, reaped + sum(usage.reaped_s for usage in usages))
        return sum(usage.cpu_s for usage in usages) + reaped + unreaped

    def _exceeded_memory_or_files(self, pids: list[int], usages: list[processes.ProcessUsage]) -> str | None:
        polls_files = not self.sandbox.holds_files
        if MEMORY in self.held and not polls_files:
            return None
        held = processes.HeldResources({}, {})
        for pid in pids:
            processes.add_descriptors(pid, self.device, held)
            if polls_files or self.checks % MAPPING_CHECK_INTERVAL == 1:
                folders = self.sandbox.folders if polls_files else ()
                processes.add_mappings(pid, folders, held, self.job.file_bytes)
        if MEMORY not in self.held:
            elsewhere = sum(held.memory.values()) + self.sandbox.memory_file_bytes()
            if self._exceeds_memory(usages, elsewhere):
                return MEMORY
        return self._check_files(self.sandbox.folders, sum(held.files.values())) if polls_files else None

    def _exceeds_memory(self, usages: list[processes.ProcessUsage], elsewhere: int) -> bool:
        """Whether the program uses too much memory. Memory inherited from the preloading fork server is allowed once,
        although every process reports it; only if the plain sum is too high are shared pages divided among processes,
        which takes a walk through the page tables."""
        limit = self.job.memory_bytes + self.inherited_memory - elsewhere
        if sum(usage.memory for usage in usages) <= limit:
            return False
        shares = ((processes.proportional_memory(usage.pid), usage.memory) for usage in usages)
        return sum(reported if share is None else share for share, reported in shares) > limit

    def _check_files(self, folders: Sequence[str], nameless: int) -> str | None:
        usage = disk.measure(folders, self.max_entries)
        if usage.inaccessible or usage.entries > self.max_entries:
            return FILES
        return DISK if usage.bytes + nameless > self.max_bytes else None


class UnreapedTime:
    """Estimates the CPU time of processes for which nobody waits, as their parent ignores that they end: the kernel
    adds their time to nobody's.

    Of a process that is gone, what it was last seen to have used counts. One that is new since the last check stands
    for those that came and went in between: it counts as if it had run since then for the same share of the time as in
    its own life. What was reaped since is subtracted.
    """

    def __init__(self) -> None:
        self.total = 0.0
        self._own: dict[int, float] = {}
        self._reaped = 0.0
        self._at = time.monotonic()

    def add(self, usages: list[processes.ProcessUsage], reaped_s: float) -> float:
        """Add what ran unseen until now; returns the estimate in seconds. `reaped_s` are those of all reaped so far."""
        now = time.monotonic()
        passed, self._at = now - self._at, now
        own = {usage.pid: processes.run_time(usage) for usage in usages}
        gone = sum(ran for pid, ran in self._own.items() if pid not in own)
        new = [usage for usage in usages if usage.pid not in self._own and usage.age_s < passed]
        # A share of at most 1, although the threads of a process can together have run for longer than it is old.
        between = sum(own[usage.pid] / max(own[usage.pid], usage.age_s, 1e-3) * (passed - usage.age_s) for usage in new)
        self.total = max(0.0, self.total + gone + between - max(0.0, reaped_s - self._reaped))
        self._own, self._reaped = own, max(self._reaped, reaped_s)
        return self.total
