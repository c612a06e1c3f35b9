"""Runs on the server: updates the copy of a trajectory's folder to the client's state."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable
from typing import Any, BinaryIO

from mappa_sandboxfusion.remote.contents import CHUNK_BYTES, Contents, sha256_of


class LostState(Exception):
    """Files that the client expects here are missing. `inputs` are the hashes of the lost inputs."""

    def __init__(self, what: str, inputs: Iterable[str] = ()) -> None:
        super().__init__(what)
        self.inputs = list(inputs)


def remove_tree(path: str) -> None:
    """Remove a file, a link, or a tree of any depth and mode, as far as permissions allow."""
    if os.path.isdir(path) and not os.path.islink(path):
        subprocess.run(["chmod", "-R", "u+rwX", "--", path], stderr=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", "--", path], stderr=subprocess.DEVNULL)


def receive(job: dict[str, Any]) -> dict[str, list[int]]:
    """Store the uploaded chunks; return the stamps of inputs that are now complete."""
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
            append_chunk(upload, here, offset, size)
            if offset + size < total:
                continue
            if kind == "input":
                stamps[sha256] = keep_input(here, sha256)
            else:
                move_into_place(f"{folder}/work", name, here)
    return stamps


def append_chunk(upload: BinaryIO, path: str, offset: int, size: int) -> None:
    try:
        target = open(path, "r+b" if offset else "wb")
    except FileNotFoundError:
        raise LostState("the first part of a file") from None
    with target:
        target.seek(offset)
        while size:
            data = upload.read(min(size, CHUNK_BYTES))
            if not data:
                raise SystemExit("upload.bin is too short")
            target.write(data)
            size -= len(data)


def keep_input(part: str, sha256: str) -> list[int]:
    with open(part, "rb") as source:
        if sha256_of(source) != sha256:
            raise LostState("a part of an input", [sha256])
    target = part[: -len(".part")]
    os.chmod(part, 0o444)
    os.replace(part, target)
    return file_stamp(os.lstat(target))


def file_stamp(status: os.stat_result) -> list[int]:
    """Return a stamp that changes with the file: inode, ctime (which a program cannot set) and size."""
    return [status.st_ino, status.st_ctime_ns, status.st_size]


def move_into_place(work: str, name: str, source: str) -> None:
    """Move `source` to `name`, replacing what is there and files that stand where its parent folders belong."""
    *above, _ = name.split("/")
    folder = work
    for part in above:
        folder = f"{folder}/{part}"
        if os.path.lexists(folder) and (os.path.islink(folder) or not os.path.isdir(folder)):
            os.unlink(folder)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
    if os.path.isdir(f"{work}/{name}") and not os.path.islink(f"{work}/{name}"):
        remove_tree(f"{work}/{name}")
    os.replace(source, f"{work}/{name}")


def update_copy(job: dict[str, Any], work: str, stamps: dict[str, list[int]]) -> None:
    """Update the copy to the client's state. Raises LostState where files are missing."""
    if os.path.islink(work) or not os.path.isdir(work):
        if job["before"] or not os.path.isdir(os.path.dirname(work)):
            raise LostState("the folder of the trajectory")
        remove_tree(work)  # the last program replaced the folder, and left no file
        os.mkdir(work)
    for name in job["delete"]:
        with contextlib.suppress(OSError):
            os.unlink(f"{work}/{name}")
    known = {**job["stamps"], **stamps}
    place_of = {sha256: f"{job['root']}/inputs/{sha256}" for sha256 in job["inputs"].values()}
    if gone := [sha256 for sha256, path in place_of.items() if not is_as_before(path, known[sha256])]:
        raise LostState("files of the task", gone)
    for name, sha256 in job["inputs"].items():
        place_link(work, name, place_of[sha256])
    contents = Contents(work, job)
    if {name: sha256 for name, (_, sha256) in contents.files.items()} != job["before"]:
        raise LostState("files of the trajectory")


def is_as_before(path: str, before: list[int] | None) -> bool:
    try:
        return file_stamp(os.lstat(path)) == before
    except OSError:
        return False


def place_link(work: str, name: str, target: str) -> None:
    if os.path.islink(f"{work}/{name}") and os.readlink(f"{work}/{name}") == target:
        return
    aside = f"{os.path.dirname(work)}/incoming/link"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(aside)
    os.symlink(target, aside)
    move_into_place(work, name, aside)
