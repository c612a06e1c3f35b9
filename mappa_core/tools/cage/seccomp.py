"""The filter of system calls: a program for the kernel's classic packet filter, one for x86_64 and aarch64 together.

It reads the number and the arguments of a call, never memory, and is the same wherever it is built. A process of
another instruction set, which would have other numbers, is killed at its first call.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator, Sequence
from errno import ENOSYS, EPERM
from functools import lru_cache

from mappa_core.tools.cage import kernel
from mappa_core.tools.cage.syscalls import (
    CONDITIONAL,
    CONDITIONS,
    METADATA,
    MISSING,
    NEWEST,
    REFUSED,
    TOUCHES,
    Condition,
    Numbers,
)

ALLOW = 0x7FFF_0000
KILL = 0x8000_0000
ERRNO = 0x0005_0000
"""The answer, with the errno in the lower bits. With none, a call does nothing and says that it succeeded."""
X86_64, AARCH64 = 0xC000_003E, 0xC000_00B7
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Where these are in what the filter is asked about."""
SECCOMP_MODE_FILTER = 2

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP, _EQUAL, _GREATER = 0x05, 0x15, 0x25
_GROUP = 8
"""Calls that are skipped together. Twenty comparisons decide a call then, instead of two hundred."""

Code = list[tuple[int, int, int, int]]
"""Instructions: operation, how many to skip if true and if false, operand."""


@lru_cache
def program(*, keep_metadata: bool) -> bytes:
    """The filter, as an array of `struct sock_filter`: for `install`, and for `bwrap --seccomp`.

    With `keep_metadata`, calls that change a file's mode, owner, times or attributes do nothing and say that they
    succeeded: for a cage that cannot restrict them by path. As an error, they would end most copying of files. Only
    setting a path's times to now is refused: by its success `Path.touch` would take the file for there.
    """
    code: Code = [(_LOAD, 0, 0, ARCHITECTURE)]
    for architecture, column in ((X86_64, 0), (AARCH64, 1)):
        body = _rules(column, keep_metadata)
        # A jump of its own: a comparison cannot skip more than 255 instructions.
        code += [(_EQUAL, 1, 0, architecture), (_JUMP, 0, 0, len(body)), *body]
    code.append((_RETURN, 0, 0, KILL))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def install(program: bytes) -> None:
    """Put this process, all that it starts, and no other thread of it, under `program`, for good.

    Raises:
        OSError: the kernel has no seccomp (EINVAL), or privileges were not given up before (EACCES).
    """
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    kernel.prctl(kernel.PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(header))


def _rules(column: int, keep_metadata: bool) -> Code:
    """For one machine, in groups by number that are skipped as a whole: most calls are in none of them."""
    blocks = sorted(_blocks(column, keep_metadata))
    code: Code = [(_LOAD, 0, 0, NUMBER), (_GREATER, 0, 1, NEWEST), (_RETURN, 0, 0, ERRNO | ENOSYS)]
    for start in range(0, len(blocks), _GROUP):
        group = blocks[start : start + _GROUP]
        body = [instruction for _, block in group for instruction in block] + [(_RETURN, 0, 0, ALLOW)]
        code += [(_GREATER, len(body), 0, group[-1][0]), *body]
    return [*code, (_RETURN, 0, 0, ALLOW)]


def _blocks(column: int, keep_metadata: bool) -> Iterator[tuple[int, Code]]:
    """The number of each call in question, and what to do if it is that, else to go on behind it."""
    answers = [(REFUSED, EPERM), (MISSING, ENOSYS), *([(METADATA, 0)] if keep_metadata else [])]
    for calls, errno in answers:
        for name, number in _of(calls, column):
            body = _unless_now() if name == TOUCHES else []
            yield number, [(_EQUAL, 0, len(body) + 1, number), *body, (_RETURN, 0, 0, ERRNO | errno)]
    for name, number in _of(CONDITIONAL, column):
        body = [instruction for condition in CONDITIONS[name] for instruction in _must_hold(condition)]
        yield number, [(_EQUAL, 0, len(body) + 1, number), *body, (_RETURN, 0, 0, ALLOW)]


def _unless_now() -> Code:
    """Refuse `utimensat` of a path, argument 1, without times, argument 2; else go on behind it. Both are pointers."""
    path, times = (ARGUMENTS + 8 * argument for argument in (1, 2))
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


def _of(calls: dict[str, Numbers], column: int) -> Iterator[tuple[str, int]]:
    for name, numbers in calls.items():
        if (number := numbers[column]) is not None:
            yield name, number


def _must_hold(condition: Condition) -> Code:
    """Refuse the call unless `condition` holds, else go on behind it."""
    code: Code = [(_LOAD, 0, 0, ARGUMENTS + 8 * condition.argument + (4 if condition.upper else 0))]
    if condition.mask != 0xFFFF_FFFF:
        code.append((_AND, 0, 0, condition.mask))
    return [*code, *_compare(condition.values, condition.among), (_RETURN, 0, 0, ERRNO | EPERM)]


def _compare(values: Sequence[int], among: bool) -> Iterator[tuple[int, int, int, int]]:
    """Skip the one instruction behind these if what was loaded is among `values`, or among none of them."""
    for position, value in enumerate(values):
        left = len(values) - 1 - position
        if among:
            yield _EQUAL, left + 1, 0, value
        else:
            yield _EQUAL, left, 0 if left else 1, value
