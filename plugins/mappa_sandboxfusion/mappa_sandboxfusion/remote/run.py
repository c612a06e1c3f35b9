"""Runs on the server, in the folder of one call: updates this client's copy of a trajectory's folder, runs a program in
it, and lists the files afterwards.

Reads job.json (see `sync.RemoteServer`) and upload.bin, the bytes of all uploaded chunks. Writes answer.json (see
`parts.RemoteAnswer`), changed.bin with the bytes of changed files, and `started` once the program may have begun.

    ROOT/inputs/SHA256       files of tasks, once for all trajectories
    ROOT/FOLDER/work/        the copy, where the program runs
    ROOT/FOLDER/incoming/    incomplete files
    ROOT/FOLDER/scratch/     temporary files of the program
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import Any

from mappa_sandboxfusion.remote.apply_files import LostState, receive, remove_tree, update_copy
from mappa_sandboxfusion.remote.contents import MAX_NAMED_LEFT, Contents, write_changed
from mappa_sandboxfusion.remote.program import run_program


def main() -> None:
    with open("job.json", encoding="utf-8") as text:
        job = json.load(text)
    try:
        answer = handle(job)
    except LostState as lost:
        answer = {"lost": str(lost), "gone": lost.inputs}
    with open("answer.json", "w", encoding="utf-8") as target:
        json.dump(answer, target)


def handle(job: dict[str, Any]) -> dict[str, Any]:
    root = job["root"]
    check_own_folder(root)
    os.utime(root)  # a root that nobody touches for long is removed, see report.py
    for name in job["remove"]:
        remove_tree(f"{root}/{name}")
    if job["end"]:
        remove_tree(root)
        return {}
    stamps = receive(job)
    if job["order"] is None:
        return {"stamps": stamps}
    work = f"{root}/{job['folder']}/work"
    update_copy(job, work, stamps)
    reply = run_program(job)
    contents = Contents(work, job)
    return {
        "stamps": stamps,
        "reply": reply,
        "files": write_changed(work, contents.files, job),
        "linked": contents.linked,
        "left": contents.left[:MAX_NAMED_LEFT],
    }


def check_own_folder(path: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise SystemExit(f"{path} is not a folder of this user")
