"""Runs on the server: reports the environment of programs, with names of environment variables but never their values.

Reads job.json (`name` of a folder for this client, `mark`, the name of a file in it, whether to `remove` the folder),
writes report.json. Folders that no client has used for a day are removed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

FOLDER_PREFIX = "mappa-fusion-"
"""Prefix of the names of all clients' folders, and of nothing else."""
STALE_S = 24 * 3600.0
MAX_REMOVED = 16


def remove_stale(temp: str, name: str) -> int:
    """Remove stale folders of this user; return their number. A client that comes back later sends its files again."""
    removed = 0
    for other in sorted(os.listdir(temp)):
        path = os.path.join(temp, other)
        if not other.startswith(FOLDER_PREFIX) or other == name or removed == MAX_REMOVED:
            continue
        status = os.lstat(path)
        if status.st_uid == os.getuid() and time.time() - status.st_mtime > STALE_S and not os.path.islink(path):
            subprocess.call(["rm", "-rf", "--", path])
            removed += 1
    return removed


def main() -> None:
    with open("job.json") as file:
        job = json.load(file)
    temp = os.path.realpath(tempfile.gettempdir())
    root = os.path.join(temp, job["name"])
    if not os.path.isdir(root):
        os.mkdir(root, 0o700)
    mark = os.path.join(root, job["mark"])
    found = os.path.exists(mark)
    if found:
        os.unlink(mark)
    else:
        open(mark, "w").close()
    if job["remove"]:
        subprocess.call(["rm", "-rf", "--", root])
    report = {
        "python": list(sys.version_info[:3]),
        "root": root,
        "found": found,
        "uid": os.getuid(),
        "names": sorted(os.environ),
        "removed": remove_stale(temp, job["name"]),
    }
    with open("report.json", "w") as file:
        json.dump(report, file)


main()
