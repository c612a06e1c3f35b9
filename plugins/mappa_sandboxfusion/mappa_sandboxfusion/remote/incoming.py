"""Runs on the server: makes the copy of a trajectory's folder what the client has."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable
from typing import Any, BinaryIO

from mappa_sandboxfusion.remote.contents import CHUNK, Contents, digest


class Lost(Exception):
    """What the client believes to be here is not. `inputs` are the hashes of the files of tasks among it."""

    def __init__(self, what: str, inputs: Iterable[str] = ()) -> None:
        super().__init__(what)
        self.inputs = list(inputs)


def remove(path: str) -> None:
    """Remove a file, a link, or a tree of any depth and mode, as far as this user may."""
    if os.path.isdir(path) and not os.path.islink(path):
        subprocess.run(["chmod", "-R", "u+rwX", "--", path], stderr=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", "--", path], stderr=subprocess.DEVNULL)


def receive(job: dict[str, Any]) -> dict[str, list[int]]:
    """Put the parts of files that came along where they belong; the stamps of inputs that are complete now."""
    root, folder = job["root"], f"{job['root']}/{job['folder']}"
    os.makedirs(f"{root}/inputs", exist_ok=True)
    if job["fresh"]:
        os.mkdir(folder, 0o700)
        for name in ("work", "incoming", "scratch"):
            os.mkdir(f"{folder}/{name}")
    stamps: dict[str, list[int]] = {}
    if not job["parts"]:
        return stamps
    with open("upload.bin", "rb") as upload:
        for kind, name, sha256, total, offset, size in job["parts"]:
            here = f"{root}/inputs/{sha256}.part" if kind == "input" else f"{folder}/incoming/{sha256}"
            append(upload, here, offset, size)
            if offset + size < total:
                continue
            if kind == "input":
                stamps[sha256] = keep_input(here, sha256)
            else:
                place(f"{folder}/work", name, here)
    return stamps


def append(upload: BinaryIO, path: str, offset: int, size: int) -> None:
    try:
        target = open(path, "r+b" if offset else "wb")
    except FileNotFoundError:
        raise Lost("the first part of a file") from None
    with target:
        target.seek(offset)
        while size:
            data = upload.read(min(size, CHUNK))
            if not data:
                raise SystemExit("upload.bin is too short")
            target.write(data)
            size -= len(data)


def keep_input(part: str, sha256: str) -> list[int]:
    with open(part, "rb") as source:
        if digest(source) != sha256:
            raise Lost("a part of an input", [sha256])
    target = part[: -len(".part")]
    os.chmod(part, 0o444)
    os.replace(part, target)
    return stamp(os.lstat(target))


def stamp(status: os.stat_result) -> list[int]:
    """What tells that a file is as it was. A program cannot set the second of these."""
    return [status.st_ino, status.st_ctime_ns, status.st_size]


def place(work: str, name: str, source: str) -> None:
    """Move `source` to `name`, in place of whatever stands there or on the way: the name is a file's now."""
    *above, _ = name.split("/")
    folder = work
    for part in above:
        folder = f"{folder}/{part}"
        if os.path.lexists(folder) and (os.path.islink(folder) or not os.path.isdir(folder)):
            os.unlink(folder)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
    if os.path.isdir(f"{work}/{name}") and not os.path.islink(f"{work}/{name}"):
        remove(f"{work}/{name}")
    os.replace(source, f"{work}/{name}")


def bring_up(job: dict[str, Any], work: str, stamps: dict[str, list[int]]) -> None:
    """Make the copy what the client has, or raise Lost."""
    if os.path.islink(work) or not os.path.isdir(work):
        if job["before"] or not os.path.isdir(os.path.dirname(work)):
            raise Lost("the folder of the trajectory")
        remove(work)  # the last program put something else there, and left no file
        os.mkdir(work)
    for name in job["delete"]:
        with contextlib.suppress(OSError):
            os.unlink(f"{work}/{name}")
    known = {**job["stamps"], **stamps}
    place_of = {sha256: f"{job['root']}/inputs/{sha256}" for sha256 in job["inputs"].values()}
    if gone := [sha256 for sha256, path in place_of.items() if not is_as_before(path, known[sha256])]:
        raise Lost("files of the task", gone)
    for name, sha256 in job["inputs"].items():
        link(work, name, place_of[sha256])
    contents = Contents(work, job)
    if {name: sha256 for name, (_, sha256) in contents.files.items()} != job["before"]:
        raise Lost("files of the trajectory")


def is_as_before(path: str, before: list[int] | None) -> bool:
    try:
        return stamp(os.lstat(path)) == before
    except OSError:
        return False


def link(work: str, name: str, target: str) -> None:
    if os.path.islink(f"{work}/{name}") and os.readlink(f"{work}/{name}") == target:
        return
    aside = f"{os.path.dirname(work)}/incoming/link"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(aside)
    os.symlink(target, aside)
    place(work, name, aside)
