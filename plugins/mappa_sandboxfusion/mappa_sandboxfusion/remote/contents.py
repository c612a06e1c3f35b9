"""Runs on the server: what lies in a copy of a trajectory's folder."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any, BinaryIO

CHUNK = 1 << 20
DEEPEST = 64
MOST_NAMED = 100
"""Things left behind that are named one by one."""
KINDS = {stat.S_IFLNK: "symbolic link", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}


class Contents:
    """What lies in a copy: `files` by name with size and hash, `linked` inputs that stand as they were put, and `left`,
    what is neither, in words. Nothing is followed, and no file over a limit is read."""

    def __init__(self, work: str, job: dict[str, Any]) -> None:
        self.job = job
        self.inputs = f"{job['root']}/inputs/"
        self.files: dict[str, tuple[int, str]] = {}
        self.linked: list[str] = []
        self.left: list[str] = []
        self.bytes = 0
        if os.path.isdir(work) and not os.path.islink(work):  # a program may have put anything in its place
            self.walk(work)

    def walk(self, work: str) -> None:
        for folder, folders, names, descriptor in os.fwalk(work, follow_symlinks=False):
            prefix = os.path.relpath(folder, work) + "/" if folder != work else ""
            for name in sorted([*names, *folders]):
                self.look(prefix + name, name, descriptor)
            folders.sort()
            if prefix.count("/") >= DEEPEST:
                del folders[:]

    def look(self, path: str, name: str, descriptor: int) -> None:
        try:
            status = os.lstat(name, dir_fd=descriptor)
        except OSError:
            return
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            return
        if kind == stat.S_IFLNK and self.is_input(path, os.readlink(name, dir_fd=descriptor)):
            self.linked.append(path)
        elif kind != stat.S_IFREG:
            self.left.append(f"{readable(path)} ({KINDS.get(kind, 'device')})")
        elif path != readable(path):
            self.left.append(f"{readable(path)} (its name is not UTF-8)")
        elif self.is_too_much(status.st_size):
            self.left.append(f"{path} (beyond the limits of size and number)")
        else:
            self.read(path, name, descriptor)

    def is_input(self, path: str, target: str) -> bool:
        inputs: dict[str, str] = self.job["inputs"]
        return path in inputs and target == self.inputs + inputs[path]

    def is_too_much(self, size: int) -> bool:
        most_files, most_bytes, most_of_one = self.job["most"]
        return bool(size > most_of_one or self.bytes + size > most_bytes or len(self.files) >= most_files)

    def read(self, path: str, name: str, descriptor: int) -> None:
        try:
            with open_regular(name, descriptor) as source:
                size = os.fstat(source.fileno()).st_size
                self.files[path] = size, digest(source)
                self.bytes += size
        except OSError:
            self.left.append(f"{path} (cannot be read)")


def bundle(work: str, files: dict[str, tuple[int, str]], job: dict[str, Any]) -> list[list[Any]]:
    """Write the bytes of files that changed into changed.bin, as many as are wanted in the answer; every file with its
    size, its hash, and where its bytes begin there."""
    listed: list[list[Any]] = []
    at = 0
    with open("changed.bin", "wb") as target:
        for path, (size, sha256) in sorted(files.items()):
            place = None
            if job["before"].get(path) != sha256 and at + size <= job["inline_bytes"]:
                place = at
                at += copy(f"{work}/{path}", target, size)
            listed.append([path, size, sha256, place])
    return listed


def copy(path: str, target: BinaryIO, size: int) -> int:
    with open_regular(path) as source:
        left = size
        while left:
            data = source.read(min(left, CHUNK))
            if not data:
                raise SystemExit(f"{path} changed while it was read")
            target.write(data)
            left -= len(data)
    return size


def open_regular(path: str, descriptor: int | None = None) -> BinaryIO:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=descriptor)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(f"{path} is no regular file")
    return os.fdopen(file, "rb")


def digest(source: BinaryIO) -> str:
    found = hashlib.sha256()
    while data := source.read(CHUNK):
        found.update(data)
    return found.hexdigest()


def readable(name: str) -> str:
    """`name` itself where it is UTF-8."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")
