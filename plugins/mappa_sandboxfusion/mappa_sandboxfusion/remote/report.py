"""Runs on the server: says what programs find there. Names of environment variables, never their values.

Reads job.json (`name` of a folder for this client, `mark` of a file in it, whether to `remove` the folder), writes
report.json. Folders of clients that have not come back for a day are removed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time

PREFIX = "mappa-fusion-"
"""With it begin the names of all clients' folders, and of nothing else."""
STALE_S = 24 * 3600.0
MOST_REMOVED = 16


def remove_stale(temp: str, name: str) -> int:
    """Folders of this user that no client has touched for long; one that comes back after all sends its files again."""
    removed = 0
    for other in sorted(os.listdir(temp)):
        path = os.path.join(temp, other)
        if not other.startswith(PREFIX) or other == name or removed == MOST_REMOVED:
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
