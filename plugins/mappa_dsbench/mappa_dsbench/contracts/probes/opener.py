"""Opens agents' files in a process apart, so that the one that checks them and writes the facts has opened none.

What opens a file hands on plain arrays through a pipe (`plain_values`) and can do nothing else: it has no other open
file, and its system calls are filtered, so that it opens none for writing, reaches no other process's memory or
descriptors and signals nobody. So a file that took it over could claim no more than another file could hold.
"""

import contextlib
import ctypes
import os
import platform
import signal
import struct
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from mappa_dsbench.contracts.probes.allowed_names import ALLOWED_NAMES
from mappa_dsbench.contracts.probes.plain_values import read_message, write_message
from mappa_dsbench.contracts.probes.report import MAX_DETAIL_LENGTH, Report
from mappa_dsbench.contracts.probes.safe_unpickle import RefusedContent, open_pickle

_PIPE = 3
_MACHINES = {"x86_64": (0xC000_003E, 0), "aarch64": (0xC000_00B7, 1)}
_REFUSED = (
    # Memory and descriptors of other processes; on aarch64 there is no `creat`.
    *((101, 117), (311, 271), (438, 438), (85, None)),
    # Signals: kill, tkill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, pidfd_send_signal.
    *((62, 129), (200, 130), (234, 131), (129, 138), (297, 240), (424, 424)),
    # Opening in ways whose flags a filter does not see: openat2, open_by_handle_at, io_uring_setup.
    *((437, 437), (304, 265), (425, 425)),
)
_OPENING = {(257, 56): 2, (2, None): 1}
"""openat and open, and the argument that holds their flags."""
_WRITING_FLAGS = os.O_ACCMODE | os.O_CREAT | os.O_TRUNC
_LOAD, _EQUAL, _AT_LEAST, _AND, _RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
_REFUSE, _ALLOW = 0x0005_0001, 0x7FFF_0000
"""EPERM, and no objection."""
_X32_CALLS = 0x4000_0000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
KNOWN_TYPES = {name for names in ALLOWED_NAMES.values() for name in names} | {"NoneType", "function", "ufunc"}


def open_apart(report: Report, jobs: Mapping[str, Callable[[Any], Any]], *, checked: bool = True) -> dict[str, Any]:
    """Open the files of `jobs` in order and return by path what each job made of the content. A file that cannot be
    opened has no entry and, where it is being `checked`, a fault."""
    results: dict[str, Any] = {}
    waiting = list(jobs)
    while waiting:
        pid, pipe = start_opener({path: jobs[path] for path in waiting})
        try:
            if read_message(pipe) != "ready":
                raise OSError("what opens files did not start")
            report.start()
            while waiting and read_result(pipe, waiting.pop(0), report, results, checked):
                pass
        finally:
            os.close(pipe)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return results


def read_result(pipe: int, path: str, report: Report, results: dict[str, Any], checked: bool) -> bool:
    """Read what became of one file; returns False if the process that opened it is lost."""
    report.begin_file(path)
    try:
        kind, value = read_message(pipe)
        lost = kind not in ("made", "failed")
    except (EOFError, ValueError, TypeError, RecursionError):
        lost = True
    if not lost and kind == "made":
        results[path] = value
    elif checked:
        report.add_fault("unreadable", path, "the process that opened it was lost" if lost else str(value))
    return not lost


def start_opener(jobs: Mapping[str, Callable[[Any], Any]]) -> tuple[int, int]:
    """Fork the process that opens files; returns its id and the pipe from which its messages are read."""
    readable, writable = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            shut_off(writable)
            write_message(_PIPE, "ready")
            for path, job in jobs.items():
                write_message(_PIPE, open_file(path, job))
        finally:
            os._exit(0)
    os.close(writable)
    return pid, readable


def open_file(path: str, job: Callable[[Any], Any]) -> tuple[str, Any]:
    """Open a file: what `job` makes of it, or why it cannot be opened."""
    try:
        return "made", job(open_pickle(path))
    except Exception as error:  # noqa: BLE001 - a file can fail in any way
        return "failed", error_line(error)


def error_line(error: BaseException) -> str:
    """Format an error in one line."""
    named = str(error) if isinstance(error, RefusedContent) else f"{type(error).__name__}: {error}"
    return named[:MAX_DETAIL_LENGTH]


def shut_off(pipe: int) -> None:
    """Give up all that this process has but the end of a pipe, for good."""
    os.dup2(os.dup(pipe), _PIPE)
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(_PIPE):
        os.dup2(null, number)
    os.closerange(_PIPE + 1, os.sysconf("SC_OPEN_MAX"))
    if sys.platform == "linux":
        install_filter(build_filter(platform.machine()))


def build_filter(machine: str) -> bytes:
    """Build the filter of system calls, as a program for the kernel. Each check ends by going on to the next."""
    architecture, column = _MACHINES[machine]
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _REFUSE), (_LOAD, 0, 0, 0)]
    lines += [(_AT_LEAST, 0, 1, _X32_CALLS), (_RETURN, 0, 0, _REFUSE)]
    for numbers in _REFUSED:
        if (number := numbers[column]) is not None:
            lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE)]
    for call, argument in _OPENING.items():
        if (number := call[column]) is not None:
            lines += [(_EQUAL, 0, 5, number), (_LOAD, 0, 0, 16 + 8 * argument), (_AND, 0, 0, _WRITING_FLAGS)]
            lines += [(_EQUAL, 1, 0, 0), (_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *line) for line in [*lines, (_RETURN, 0, 0, _ALLOW)])


def install_filter(program: bytes) -> None:
    """Filter the system calls of this process, for good."""
    library = ctypes.CDLL(None, use_errno=True)
    text = ctypes.create_string_buffer(program, len(program))
    filter_program = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(text)))
    where = ctypes.addressof(filter_program)
    for option, argument, pointer in ((_PR_SET_NO_NEW_PRIVS, 1, 0), (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, where)):
        if library.prctl(option, *map(ctypes.c_ulong, (argument, pointer, 0, 0))):
            raise OSError(ctypes.get_errno(), "a filter of system calls cannot be installed")


def type_name(value: object) -> str:
    """Return the name of a value's type."""
    return types.NoneType.__name__ if value is None else type(value).__name__


def known_type(name: Any) -> str:
    """Return the name of a type as facts may hold it: one that a file may hold, else `object`."""
    return name if isinstance(name, str) and name in KNOWN_TYPES else "object"
