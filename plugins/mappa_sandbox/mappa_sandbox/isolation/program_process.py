"""The process of a program, from the fork to its first line: descriptors, limits, confinement.

It is forked before its job is there: joining a control group and entering a container take longer than most programs
run. Then it waits for its assignment.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

from mappa_sandbox.isolation import control_groups, kernel, program
from mappa_sandbox.isolation.control_groups import SPARE_PROCESSES
from mappa_sandbox.isolation.job import Assignment, SandboxJob
from mappa_sandbox.isolation.signal_pipe import reset_signals

MAX_OPEN_FILES = os.sysconf("SC_OPEN_MAX")
"""Number of descriptors that may be open, before any limit is set."""
EXIT = os._exit
"""Kept here, as a program may replace `os._exit`."""
MAX_DESCRIPTORS = 256
"""Files, pipes and sockets that one process may have open: buffers of pipes and sockets use memory."""
MAX_LOCKED_BYTES = 1 << 16
"""Memory that a process may lock against swapping."""


class ProgramProcess(Protocol):
    """A program's process, as its supervisor knows it."""

    @property
    def descriptor(self) -> int | None:
        """Descriptor that is readable when the program has ended; None where SIGCHLD tells."""

    @property
    def assignments(self) -> int:
        """Descriptor from which the process reads its assignment, to the end."""

    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs. Raises OSError if it cannot be known."""


class Confinement(Protocol):
    """What a program is confined in. Paths are those that the program sees."""

    @property
    def folder(self) -> str:
        """Working folder of the program."""

    @property
    def home(self) -> str:
        """Home folder of the program, and its folder for temporary files."""

    @property
    def has_own_user(self) -> bool:
        """Whether the program runs as a user that runs nothing else."""

    def confine(self) -> None:
        """Confine this process: called in the program's process before its first line."""


class ChildProcess:
    """A program that is a fork of its supervisor."""

    descriptor = None

    def __init__(self, pid: int, assignments: int) -> None:
        self._pid = pid
        self.assignments = assignments

    def exit_code(self) -> int | None:
        """Reap all children of this process that have ended, orphans included."""
        with contextlib.suppress(ChildProcessError):
            while (reaped := os.waitpid(-1, os.WNOHANG))[0]:
                if reaped[0] == self._pid:
                    return os.waitstatus_to_exitcode(reaped[1])
        return None


def assign(process: ProgramProcess, assignment: Assignment) -> None:
    """Let a process that waits for it run a job.

    Raises:
        OSError: the process has ended.
    """
    try:
        with open(process.assignments, "wb", buffering=0) as pipe:
            unsent = memoryview(assignment.to_json().encode())
            while unsent:
                unsent = unsent[pipe.write(unsent) :]
    except BrokenPipeError as error:
        raise OSError("the process that was to run it had ended") from error


def become_program(
    assignments: int, confine: Callable[[Assignment], Confinement], outputs: Sequence[int], group: int | None
) -> NoReturn:
    """Turn this fork into an interpreter that runs the job of its assignment as its script, confined by `confine`.
    `outputs` are the descriptors of standard output and error, `group` that of the folder of its control group."""
    status = 1
    try:
        if group is not None:
            control_groups.join(group)  # first, so that all that this process does from here on is charged to the group
        reset_signals(signal.SIGCHLD, signal.SIGTERM)
        os.setsid()  # a program that signals its process group must not reach its supervisor
        null = os.open(os.devnull, os.O_RDONLY)
        for number, descriptor in enumerate((null, *outputs)):
            os.dup2(descriptor, number)
        with open(assignments, "rb") as text:
            received = text.read()
        if not received:
            EXIT(status)  # the supervisor has ended
        assignment = Assignment.from_json(received)
        job, confinement = assignment.job, confine(assignment)
        os.chdir(confinement.folder)
        os.umask(0o022)
        os.environ.update(HOME=confinement.home, TMPDIR=confinement.home)
        limit_program(job, confinement)
        confinement.confine()  # may need a descriptor of the fork server
        os.closerange(3, MAX_OPEN_FILES)
        # Both are undone by the change of user and capabilities in `confine`.
        kernel.die_with_parent(signal.SIGKILL)
        kernel.set_dumpable()
        status = program.run_program(job.code, job.arguments)
    except BaseException:  # noqa: BLE001 - reported as far as the program left the means to
        status = 1
        with contextlib.suppress(BaseException):
            traceback.print_exc()
    finally:
        EXIT(status)  # a fork must not go on as what it was forked from


def limit_machinery() -> None:
    """Set limits that the program has, and all that the supervisor starts, as the program may gain control of it."""
    set_limit(resource.RLIMIT_NOFILE, MAX_DESCRIPTORS)
    set_limit(resource.RLIMIT_MEMLOCK, MAX_LOCKED_BYTES)
    set_limit(resource.RLIMIT_CORE, 0)


def limit_program(job: SandboxJob, confinement: Confinement) -> None:
    """Set the limits of this process and of each that it starts. The limit on processes counts all processes of a user:
    the LimitChecker counts better, this one covers what a program starts between two of its checks."""
    limit_machinery()
    # What a shared user runs beside the program is unknown: at most all that runs now.
    others = SPARE_PROCESSES if confinement.has_own_user else count_threads()
    limits = program_limits(job, job.memory_bytes + address_space_bytes(), job.processes + others)
    for kind, (soft, hard) in limits.items():
        set_limit(kind, soft, hard)


def program_limits(job: SandboxJob, address_space: int, processes: int) -> dict[int, tuple[int, int]]:
    """Limits of each process of a program, soft and hard, by kind."""
    cpu = math.ceil(job.cpu_s)
    return {
        resource.RLIMIT_FSIZE: (job.file_bytes, job.file_bytes),
        resource.RLIMIT_CPU: (cpu, cpu + 1),  # SIGXCPU at the first, which tells the reason; SIGKILL at the second
        resource.RLIMIT_AS: (address_space, address_space),
        resource.RLIMIT_NPROC: (processes, processes),
    }


def set_limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Set a resource limit, never above the current hard limit."""
    allowed = resource.getrlimit(kind)[1]
    values = [value if allowed == resource.RLIM_INFINITY else min(value, allowed) for value in (soft, hard or soft)]
    resource.setrlimit(kind, (values[0], values[1]))


def count_threads() -> int:
    """Number of threads and processes of all users."""
    with open("/proc/loadavg", "rb") as load:
        return int(load.read().split()[3].partition(b"/")[2])


def address_space_bytes() -> int:
    """Bytes that this process has mapped before the program starts, which do not count as the program's."""
    with open("/proc/self/statm", "rb") as sizes:
        return int(sizes.read().split()[0]) * resource.getpagesize()
