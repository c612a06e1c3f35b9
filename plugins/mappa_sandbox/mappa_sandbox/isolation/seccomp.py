"""The filter of system calls: a classic BPF program, one for both x86_64 and aarch64.

It reads the number and the arguments of a call, never memory, and is the same on every machine that builds it. A
process of another instruction set, which has other call numbers, is killed at its first call.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from errno import ENOMEM, ENOSYS, EOPNOTSUPP, EPERM
from functools import lru_cache
from mmap import MAP_ANONYMOUS, MAP_SHARED

from mappa_sandbox.isolation import kernel
from mappa_sandbox.isolation.syscalls import (
    CONDITIONAL_CALLS,
    CONDITIONS,
    MAX_SHARED_BYTES,
    METADATA_CALLS,
    MISSING_CALLS,
    NEWEST_CALL,
    REFUSED_CALLS,
    SHARING_NUMBERS,
    TOUCH_CALL,
    UNSUPPORTED_CALLS,
    Condition,
    Numbers,
)

ALLOW = 0x7FFF_0000
KILL = 0x8000_0000
ERRNO = 0x0005_0000
"""Fail the call with the errno in the lower bits. With errno 0, it does nothing and reports success."""
X86_64, AARCH64 = 0xC000_003E, 0xC000_00B7
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`, the input of the filter."""
SECCOMP_MODE_FILTER = 2

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP, _EQUAL, _GREATER = 0x05, 0x15, 0x25
_GROUP = 8
"""Calls per group, skipped together. A call then takes twenty comparisons instead of two hundred."""

Instructions = list[tuple[int, int, int, int]]
"""Tuples of operation, instructions to skip if true and if false, and operand."""


@lru_cache
def build_filter(*, keep_metadata: bool) -> bytes:
    """Build the filter, as an array of `struct sock_filter`: for `install_filter`, and for `bwrap --seccomp`.

    With `keep_metadata`, calls that change a file's mode, owner, times or attributes do nothing and report success: for
    a sandbox that cannot restrict them by path. An error would make most copying of files fail. Only setting a path's
    times to now is refused: if that succeeded, `Path.touch` would assume that the file exists.
    """
    code: Instructions = [(_LOAD, 0, 0, ARCHITECTURE)]
    for architecture, column in ((X86_64, 0), (AARCH64, 1)):
        body = _rules(column, keep_metadata)
        # A separate jump: a comparison cannot skip more than 255 instructions.
        code += [(_EQUAL, 1, 0, architecture), (_JUMP, 0, 0, len(body)), *body]
    code.append((_RETURN, 0, 0, KILL))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def install_filter(program: bytes) -> None:
    """Apply the filter `program` to this thread and all that it starts, for good; other threads stay unfiltered.

    Raises:
        OSError: the kernel has no seccomp (EINVAL), or privileges were not given up before (EACCES).
    """
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    kernel.prctl(kernel.PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header))


def _rules(column: int, keep_metadata: bool) -> Instructions:
    """Rules for one machine, in groups by call number that are skipped as a whole: most calls are in none of them."""
    blocks = sorted(_blocks(column, keep_metadata))
    code: Instructions = [(_LOAD, 0, 0, NUMBER), (_GREATER, 0, 1, NEWEST_CALL), (_RETURN, 0, 0, ERRNO | ENOSYS)]
    for start in range(0, len(blocks), _GROUP):
        group = blocks[start : start + _GROUP]
        body = [instruction for _, block in group for instruction in block] + [(_RETURN, 0, 0, ALLOW)]
        code += [(_GREATER, len(body), 0, group[-1][0]), *body]
    return [*code, (_RETURN, 0, 0, ALLOW)]


def _blocks(column: int, keep_metadata: bool) -> Iterator[tuple[int, Instructions]]:
    """The number of each restricted call, and its instructions, which any other call skips."""
    answers = [(REFUSED_CALLS, EPERM), (MISSING_CALLS, ENOSYS), (UNSUPPORTED_CALLS, EOPNOTSUPP)]
    if keep_metadata:
        answers.append((METADATA_CALLS, 0))
    for calls, errno in answers:
        for name, number in _calls_of_machine(calls, column):
            body = _unless_now() if name == TOUCH_CALL else []
            yield number, [(_EQUAL, 0, len(body) + 1, number), *body, (_RETURN, 0, 0, ERRNO | errno)]
    sharing = _unless_large_and_shared()
    yield SHARING_NUMBERS[column], [(_EQUAL, 0, len(sharing), SHARING_NUMBERS[column]), *sharing]
    for name, number in _calls_of_machine(CONDITIONAL_CALLS, column):
        body = [instruction for condition in CONDITIONS[name] for instruction in _must_hold(condition)]
        yield number, [(_EQUAL, 0, len(body) + 1, number), *body, (_RETURN, 0, 0, ALLOW)]


def _unless_now() -> Instructions:
    """Refuse `utimensat` of a path, argument 1, without times, argument 2; else continue. Both are pointers."""
    path, times = (ARGUMENTS + 8 * argument for argument in (1, 2))
    # A filter compares 32 bits: a pointer is null if both of its halves are 0.
    return [
        (_LOAD, 0, 0, path),
        (_EQUAL, 0, 2, 0),
        (_LOAD, 0, 0, path + 4),
        (_EQUAL, 5, 0, 0),
        (_LOAD, 0, 0, times),
        (_EQUAL, 0, 3, 0),
        (_LOAD, 0, 0, times + 4),
        (_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, ERRNO | EPERM),
    ]


def _unless_large_and_shared() -> Instructions:
    """Allow `mmap`, unless its flags, argument 3, share memory without a file and its length, argument 1, is large."""
    length, flags = (ARGUMENTS + 8 * argument for argument in (1, 3))
    return [
        (_LOAD, 0, 0, flags),
        (_AND, 0, 0, MAP_SHARED | MAP_ANONYMOUS),
        (_EQUAL, 0, 4, MAP_SHARED | MAP_ANONYMOUS),
        (_LOAD, 0, 0, length + 4),
        (_EQUAL, 0, 3, 0),
        (_LOAD, 0, 0, length),
        (_GREATER, 1, 0, MAX_SHARED_BYTES),
        (_RETURN, 0, 0, ALLOW),
        (_RETURN, 0, 0, ERRNO | ENOMEM),
    ]


def _calls_of_machine(calls: dict[str, Numbers], column: int) -> Iterator[tuple[str, int]]:
    for name, numbers in calls.items():
        if (number := numbers[column]) is not None:
            yield name, number


def _must_hold(condition: Condition) -> Instructions:
    """Refuse the call unless `condition` holds, else continue."""
    code: Instructions = [(_LOAD, 0, 0, ARGUMENTS + 8 * condition.argument + (4 if condition.upper else 0))]
    if condition.mask != 0xFFFF_FFFF:
        code.append((_AND, 0, 0, condition.mask))
    return [*code, *_compare(condition.values, condition.among), (_RETURN, 0, 0, ERRNO | EPERM)]


def _compare(values: Sequence[int], among: bool) -> Iterator[tuple[int, int, int, int]]:
    """Skip the next instruction after these if the loaded value is among `values`, or if not `among`, in none of
    them."""
    for position, value in enumerate(values):
        left = len(values) - 1 - position
        if among:
            yield _EQUAL, left + 1, 0, value
        else:
            yield _EQUAL, left, 0 if left else 1, value
