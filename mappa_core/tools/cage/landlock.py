"""Landlock: what this process, and all that it starts, may do with files, by path; and whom it may signal.

It takes no privileges and makes no namespaces, and so works where those are forbidden. It does not hide: names, sizes
and times of all files can still be asked for, contents not. What it leaves open beside (networks other than TCP, Unix
sockets, metadata of files, other calls) is for `seccomp`.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from errno import ENOSYS, EOPNOTSUPP
from functools import lru_cache
from typing import NamedTuple

from mappa_core.tools.cage import kernel, places

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""The rights that a rule about something else than a folder can give."""
READ = READ_FILE | READ_DIR | EXECUTE
WRITE = READ | WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_FIFO | MAKE_SYM | REFER
"""All but making devices and sockets, and `ioctl` on devices."""

BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL = 1, 2
LOG_SAME_EXEC_OFF = 1

COMPLETE_ABI = 6
"""From here on nothing is open."""

_UNREACHABLE = (FileNotFoundError, NotADirectoryError, PermissionError)

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION, _RULE_PATH_BENEATH = 1, 1


def abi() -> int:
    """The version that this kernel has; 0 where it has none, or was started without."""
    if not kernel.LINUX:
        return 0
    try:
        return kernel.syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    except OSError as error:
        if error.errno not in (ENOSYS, EOPNOTSUPP):
            raise
        return 0


def gaps(abi: int) -> tuple[str, ...]:
    """What this version leaves open to programs that run as your own user, even with `seccomp` beside it. Programs that
    run as a user of their own can do neither."""
    found = []
    if abi < 3:
        found.append("programs can empty files that your user may write, though not read or change them")
    if abi < COMPLETE_ABI:
        found.append("programs can send signals to the other processes of your user, and so end them")
    return tuple(found)


def restrict(*, writable: Sequence[str], readable: Sequence[str], hidden: Sequence[str]) -> None:
    """Leave this process and all that it starts only these places: for ever, and for this thread alone, so that it must
    be the only one. Privileges must have been given up before (`no_new_privileges`).

    `writable` folders can be changed in all ways but for devices and sockets; what is `readable` can be read and run,
    unless it is `hidden`, as `expand` explains. The devices of `places.DEVICES` come with it. Readable paths that do
    not exist or cannot be reached are passed over.

    Raises:
        OSError: a writable folder does not exist, or the kernel refuses.
    """
    version = abi()
    handled = _all_rights(version)
    devices = [(path, READ_FILE | (WRITE_FILE if may_write else 0)) for path, may_write in places.DEVICES.items()]
    ruleset = _ruleset(version, handled)
    try:
        for path in writable:
            _allow(ruleset, path, WRITE & handled)
        _allow_all(ruleset, [*((path, READ) for path in readable), *devices])
        if hidden:
            _enter(_curtain(tuple(hidden), (*writable, *readable)), version)
        _enter(ruleset, version)
    finally:
        os.close(ruleset)


def prepare(hidden: Sequence[str]) -> None:
    """Do once, in the process whose forks call `restrict`, what takes long: walk the folders with something hidden. It
    leaves a descriptor open, which the forks must have until they have called `restrict`."""
    if hidden:
        _all_but(tuple(hidden))


def _curtain(hidden: tuple[str, ...], needed: Iterable[str]) -> int:
    """A ruleset that allows to read everything but what is hidden: a second layer, the same for all programs, as a
    thousand rules take longer to make than a program to start."""
    curtain = _all_but(hidden)
    if not all(_covers(curtain, path) for path in needed):
        os.close(curtain.ruleset)
        _all_but.cache_clear()
        curtain = _all_but(hidden)
    return curtain.ruleset


class _Curtain(NamedTuple):
    ruleset: int
    walked: frozenset[str]
    """The folders that something hidden lies below."""
    known: frozenset[str]
    """What lay in them."""


@lru_cache(maxsize=1)
def _all_but(hidden: tuple[str, ...]) -> _Curtain:
    rules = expand("/", hidden)
    # A layer forbids moving between folders even where it says nothing about it.
    handled = (READ_FILE | EXECUTE | REFER) & _all_rights(abi())
    ruleset = _ruleset(1, handled)
    _allow_all(ruleset, [(path, rights & handled) for path, rights in rules if rights & handled])
    if handled & REFER:
        _allow(ruleset, "/", REFER)
    walked = frozenset(path for path, rights in rules if rights == READ_DIR) | {"/"}
    return _Curtain(ruleset, walked, frozenset(inside for folder in walked for inside in _contents(folder, hidden)))


def _covers(curtain: _Curtain, path: str) -> bool:
    """Whether the curtain can be right about `path`: not if it came into a folder after that was walked."""
    while (above := os.path.dirname(path)) not in curtain.walked:
        path = above
    return path in curtain.known or path == "/" or not os.path.lexists(path)


def expand(path: str, hidden: Sequence[str]) -> list[tuple[str, int]]:
    """Rules that make `path` readable without what is `hidden` in it, as (path, rights). Hidden paths must be resolved.

    There is no rule that forbids. So a folder with something hidden in it can only be listed, as a whole, and what lies
    in it is allowed one by one, down to the folder of what is hidden. The names of hidden files can then be seen, and
    their contents not; a file that comes into such a folder later cannot be read.
    """
    return list(_expand(os.path.realpath(path), hidden))


def _expand(path: str, hidden: Sequence[str]) -> Iterator[tuple[str, int]]:
    below = [secret for secret in hidden if _is_within(secret, path)]
    try:
        kind = os.lstat(path).st_mode
    except _UNREACHABLE:
        return
    # A link is passed over: what it leads to is readable at its own place, or is not meant to be.
    if stat.S_ISLNK(kind) or any(_is_within(path, secret) for secret in hidden):
        return
    if not stat.S_ISDIR(kind):
        yield path, READ & OF_FILES
    elif not below:
        yield path, READ
    else:
        yield path, READ_DIR
        for inside in _contents(path, below):
            yield from _expand(inside, below)


def _contents(folder: str, hidden: Sequence[str]) -> set[str]:
    """What is in a folder; where it may be entered but not listed, what is on the way to hidden paths."""
    above = folder.rstrip("/") + "/"
    try:
        return {above + name for name in os.listdir(folder)}
    except PermissionError:
        return {above + path[len(above) :].partition("/")[0] for path in hidden if path.startswith(above)}


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _all_rights(version: int) -> int:
    newest = {1: MAKE_SYM, 2: REFER, 3: TRUNCATE, 4: TRUNCATE}.get(version, IOCTL_DEV)
    return 2 * newest - 1


def _ruleset(version: int, handled: int) -> int:
    """A descriptor of an empty ruleset: all that this version knows is forbidden."""
    fields = [handled]
    if version >= 4:
        fields.append(BIND_TCP | CONNECT_TCP)
    if version >= COMPLETE_ABI:
        fields.append(SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    return kernel.syscall(_CREATE_RULESET, attributes, len(attributes), 0)


def _allow_all(ruleset: int, rules: Iterable[tuple[str, int]]) -> None:
    for path, rights in rules:
        with suppress(*_UNREACHABLE):
            _allow(ruleset, path, rights)


def _allow(ruleset: int, path: str, rights: int) -> None:
    """Add a rule about `path`; about something else than a folder, with those of the rights that such a thing has."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= OF_FILES
        kernel.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)


def _enter(ruleset: int, version: int) -> None:
    # What a program tries and may not is no event for the system's log of audits.
    kernel.syscall(_RESTRICT_SELF, ruleset, LOG_SAME_EXEC_OFF if version >= 7 else 0)
