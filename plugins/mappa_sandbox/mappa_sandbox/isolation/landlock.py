"""Landlock: restricts by path what this process, and all that it starts, may do with files; and whom it may signal.

It needs no privileges and makes no namespaces, and so works where those are forbidden. It does not hide files: names,
sizes and times of all files can still be read, contents not. What else it leaves open (networks other than TCP, Unix
sockets, metadata of files, other calls) is restricted by `seccomp`.
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

from mappa_sandbox.isolation import kernel, system_paths

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE = (1 << bit for bit in range(6))
MAKE_CHAR, MAKE_DIR, MAKE_REG, MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM = (1 << bit for bit in range(6, 13))
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
"""Rights that a rule for anything but a folder can give."""
READ_RIGHTS = READ_FILE | READ_DIR | EXECUTE
WRITE_RIGHTS = (
    READ_RIGHTS | WRITE_FILE | TRUNCATE | REMOVE_DIR | REMOVE_FILE | MAKE_DIR | MAKE_REG | MAKE_FIFO | MAKE_SYM | REFER
)
"""All but making devices and sockets, and `ioctl` on devices."""

BIND_TCP, CONNECT_TCP = 1, 2
SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL = 1, 2
LOG_SAME_EXEC_OFF = 1

COMPLETE_ABI = 6
"""First version without known gaps."""

_UNREACHABLE = (FileNotFoundError, NotADirectoryError, PermissionError)

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_CREATE_RULESET_VERSION, _RULE_PATH_BENEATH = 1, 1


def abi_version() -> int:
    """Landlock version of this kernel; 0 if it has none, or was started without."""
    try:
        return kernel.syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)
    except OSError as error:
        if error.errno not in (ENOSYS, EOPNOTSUPP):
            raise
        return 0


def gaps(version: int) -> tuple[str, ...]:
    """Describe what this version leaves open to programs that run as your own user, even with `seccomp`. Programs that
    run as another user can do neither."""
    descriptions = []
    if version < 3:
        descriptions.append("programs can empty files that your user may write, though not read or change them")
    if version < COMPLETE_ABI:
        descriptions.append("programs can send signals to the other processes of your user, and so end them")
    return tuple(descriptions)


def restrict(*, writable: Sequence[str], readable: Sequence[str], hidden: Sequence[str]) -> None:
    """Restrict this process and all that it starts to these paths, for good. Applies to this thread alone, which so
    must be the only one. Privileges must have been given up before (`no_new_privileges`).

    `writable` folders allow all changes but devices and sockets; `readable` paths can be read and executed, except
    those that are `hidden`, as `expand_rules` explains. `system_paths.DEVICES` are allowed too. Readable paths that do
    not exist or cannot be reached are skipped.

    Raises:
        OSError: a writable folder does not exist, or the kernel refuses.
    """
    version = abi_version()
    handled = _known_rights(version)
    devices = [(path, READ_FILE | (WRITE_FILE if may_write else 0)) for path, may_write in system_paths.DEVICES.items()]
    ruleset = _create_ruleset(version, handled)
    try:
        for path in writable:
            _allow(ruleset, path, WRITE_RIGHTS & handled)
        _allow_all(ruleset, [*((path, READ_RIGHTS) for path in readable), *devices])
        if hidden:
            _enter(_hiding_ruleset(tuple(hidden), writable, readable), version)
        _enter(ruleset, version)
    finally:
        os.close(ruleset)


def prepare(hidden: Sequence[str]) -> None:
    """Do the slow part of `restrict` once, in the process whose forks call it: walk the folders with hidden paths.
    Leaves a descriptor open, which the forks need until they have called `restrict`."""
    if hidden:
        _build_hiding_layer(tuple(hidden))


def _hiding_ruleset(hidden: tuple[str, ...], writable: Sequence[str], readable: Sequence[str]) -> int:
    """Return a ruleset that allows reading everything except hidden paths: a second layer, shared by all programs, as
    making a thousand rules takes longer than starting a program."""
    layer = _build_hiding_layer(hidden)
    # A rule is for a folder itself, not for what is mounted at it later, as workspaces are.
    mounted = any(os.path.dirname(path) in layer.walked and os.path.ismount(path) for path in writable)
    if mounted or not all(_covers(layer, path) for path in (*writable, *readable)):
        os.close(layer.ruleset)
        _build_hiding_layer.cache_clear()
        layer = _build_hiding_layer(hidden)
    return layer.ruleset


class _HidingLayer(NamedTuple):
    ruleset: int
    walked: frozenset[str]
    """Folders that contain hidden paths, at any depth."""
    known: frozenset[str]
    """Content of these folders when they were walked."""


@lru_cache(maxsize=1)
def _build_hiding_layer(hidden: tuple[str, ...]) -> _HidingLayer:
    rules = expand_rules("/", hidden)
    # A layer forbids moving files between folders unless it allows that.
    handled = (READ_FILE | EXECUTE | REFER) & _known_rights(abi_version())
    ruleset = _create_ruleset(1, handled)  # files alone: networks and signals are restricted by the other layer
    _allow_all(ruleset, [(path, rights & handled) for path, rights in rules if rights & handled])
    if handled & REFER:
        _allow(ruleset, "/", REFER)
    walked = frozenset(path for path, rights in rules if rights == READ_DIR) | {"/"}
    return _HidingLayer(
        ruleset, walked, frozenset(inside for folder in walked for inside in _list_folder(folder, hidden))
    )


def _covers(layer: _HidingLayer, path: str) -> bool:
    """Whether the layer has a rule for `path`: not if `path` was created after its folder was walked."""
    while (above := os.path.dirname(path)) not in layer.walked:
        path = above
    return path in layer.known or path == "/" or not os.path.lexists(path)


def expand_rules(path: str, hidden: Sequence[str]) -> list[tuple[str, int]]:
    """Rules that make `path` readable except for the `hidden` paths in it, as (path, rights). Hidden paths must be
    resolved.

    No rule can forbid. So a folder that contains hidden paths may only be listed, and its other entries are allowed one
    by one, down to the folder of the hidden path. The names of hidden files can then be seen, their contents not; a
    file that is created in such a folder later cannot be read.
    """
    return list(_iter_rules(os.path.realpath(path), hidden))


def _iter_rules(path: str, hidden: Sequence[str]) -> Iterator[tuple[str, int]]:
    below = [secret for secret in hidden if _is_within(secret, path)]
    try:
        kind = os.lstat(path).st_mode
    except _UNREACHABLE:
        return
    # A link is skipped: its target is readable at its own path, or not meant to be.
    if stat.S_ISLNK(kind) or any(_is_within(path, secret) for secret in hidden):
        return
    if not stat.S_ISDIR(kind):
        yield path, READ_RIGHTS & FILE_RIGHTS
    elif not below:
        yield path, READ_RIGHTS
    else:
        yield path, READ_DIR
        for inside in _list_folder(path, below):
            yield from _iter_rules(inside, below)


def _list_folder(folder: str, hidden: Sequence[str]) -> set[str]:
    """Entries of a folder; if it may be entered but not listed, those that lead to hidden paths."""
    above = folder.rstrip("/") + "/"
    try:
        return {above + name for name in os.listdir(folder)}
    except PermissionError:
        return {above + path[len(above) :].partition("/")[0] for path in hidden if path.startswith(above)}


def _is_within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _known_rights(version: int) -> int:
    newest = {1: MAKE_SYM, 2: REFER, 3: TRUNCATE, 4: TRUNCATE}.get(version, IOCTL_DEV)  # version 4 brought networks
    return 2 * newest - 1  # bits were added in order: the newest and all below it


def _create_ruleset(version: int, handled: int) -> int:
    """Create an empty ruleset, which forbids all that this version knows; returns its descriptor."""
    # struct landlock_ruleset_attr, as long as this version knows it: a kernel refuses fields that are new to it.
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
    """Add a rule for `path`; for anything but a folder, with only the rights that apply to files."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= FILE_RIGHTS
        # struct landlock_path_beneath_attr, which is packed: no padding after the descriptor.
        kernel.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)


def _enter(ruleset: int, version: int) -> None:
    # Denied accesses of programs do not belong in the system's audit log.
    kernel.syscall(_RESTRICT_SELF, ruleset, LOG_SAME_EXEC_OFF if version >= 7 else 0)
