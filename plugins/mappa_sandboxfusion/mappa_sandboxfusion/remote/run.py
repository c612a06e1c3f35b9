"""Runs on the server, in the folder of one call: brings this client's copy of a trajectory's folder up to date, runs a
program in it, and lists what the program left.

Reads job.json (see `sync.Remote`) and upload.bin, the bytes of all files that came along. Writes answer.json (see
`parts.Answer`), changed.bin with the bytes of files that changed, and `started` once the program may have begun.

    ROOT/inputs/SHA256       files of tasks, once for all trajectories
    ROOT/FOLDER/work/        the copy, where the program runs
    ROOT/FOLDER/incoming/    files of which not all parts are here yet
    ROOT/FOLDER/scratch/     folders of temporary files of the program
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import Any

from mappa_sandboxfusion.remote.contents import MOST_NAMED, Contents, bundle
from mappa_sandboxfusion.remote.incoming import Lost, bring_up, receive, remove
from mappa_sandboxfusion.remote.program import run


def main() -> None:
    with open("job.json", encoding="utf-8") as text:
        job = json.load(text)
    try:
        answer = perform(job)
    except Lost as lost:
        answer = {"lost": str(lost), "gone": lost.inputs}
    with open("answer.json", "w", encoding="utf-8") as target:
        json.dump(answer, target)


def perform(job: dict[str, Any]) -> dict[str, Any]:
    root = job["root"]
    own_folder(root)
    os.utime(root)  # a root that nobody touches for long is removed, see report.py
    for name in job["remove"]:
        remove(f"{root}/{name}")
    if job["end"]:
        remove(root)
        return {}
    stamps = receive(job)
    if job["order"] is None:
        return {"stamps": stamps}
    work = f"{root}/{job['folder']}/work"
    bring_up(job, work, stamps)
    reply = run(job)
    contents = Contents(work, job)
    return {
        "stamps": stamps,
        "reply": reply,
        "files": bundle(work, contents.files, job),
        "linked": contents.linked,
        "left": contents.left[:MOST_NAMED],
    }


def own_folder(path: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise SystemExit(f"{path} is not a folder of this user")
