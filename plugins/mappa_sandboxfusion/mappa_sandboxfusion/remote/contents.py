"""Runs on the server: lists the content of a copy of a trajectory's folder."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import Any, BinaryIO

CHUNK_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_NAMED_LEFT = 100
"""Limit on the other entries that are named."""
KINDS = {stat.S_IFLNK: "symbolic link", stat.S_IFIFO: "FIFO", stat.S_IFSOCK: "socket"}


class Contents:
    """The content of a copy: `files` by name with size and hash, unchanged `linked` inputs, and `left`, descriptions of
    everything else. Links are not followed, and files over a limit are not read."""

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
            if prefix.count("/") >= MAX_DEPTH:
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
                self.files[path] = size, sha256_of(source)
                self.bytes += size
        except OSError:
            self.left.append(f"{path} (cannot be read)")


def write_changed(work: str, files: dict[str, tuple[int, str]], job: dict[str, Any]) -> list[list[Any]]:
    """Write the bytes of changed files to changed.bin, up to `inline_bytes`; return every file with size, hash and its
    offset there (None: not in it)."""
    listed: list[list[Any]] = []
    at = 0
    with open("changed.bin", "wb") as target:
        for path, (size, sha256) in sorted(files.items()):
            place = None
            if job["before"].get(path) != sha256 and at + size <= job["inline_bytes"]:
                place = at
                at += copy_bytes(f"{work}/{path}", target, size)
            listed.append([path, size, sha256, place])
    return listed


def copy_bytes(path: str, target: BinaryIO, size: int) -> int:
    with open_regular(path) as source:
        left = size
        while left:
            data = source.read(min(left, CHUNK_BYTES))
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


def sha256_of(source: BinaryIO) -> str:
    hasher = hashlib.sha256()
    while data := source.read(CHUNK_BYTES):
        hasher.update(data)
    return hasher.hexdigest()


def readable(name: str) -> str:
    """Escape bytes of `name` that are not UTF-8."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")
