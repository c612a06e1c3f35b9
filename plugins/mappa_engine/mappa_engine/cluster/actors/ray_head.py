"""Process that runs a Ray on this machine: starts it, prints its address, and removes all of it at the end.

The caller chooses its environment, which Ray and every worker inherit. It ends at the end of its standard input, which
a killed driver closes too, or when a vital process of Ray died. It is a child subreaper: it adopts orphans of its
descendants, so that even a stopped worker whose raylet is gone is found and killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
VITAL_PROCESSES = ("gcs_server", "raylet")
CHECK_S = 0.5
WORKER_LOGS = "worker-*"
"""Files of the standard output and error of actors."""


def main() -> None:
    """Read settings from standard input, start Ray, print its address, wait for the end of the input, clean up."""
    import ray

    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    folder = Path(settings["folder"])
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        print(json.dumps(start_ray(settings)), flush=True)  # noqa: T201
        if wait_for_eof():
            ray.shutdown()
    finally:
        end_descendants()
        if settings["logs"] is not None:
            copy_logs(folder, Path(settings["logs"]))
        shutil.rmtree(folder, ignore_errors=True)


def start_ray(settings: Mapping[str, Any]) -> dict[str, str]:
    """Start Ray; returns its address and log folder, or the `error` that prevented the start."""
    import ray

    files = Path(settings["folder"]) / "files"
    files.mkdir()
    os.environ["TMPDIR"] = str(files)  # temporary files of actors are removed with Ray
    try:
        there = ray.init(
            _temp_dir=settings["folder"],
            num_cpus=settings["cpus"],
            num_gpus=settings["gpus"],
            object_store_memory=settings["store_bytes"],
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        ).address_info
    except Exception as error:  # noqa: BLE001  reported to the driver, whatever it is
        return {"error": f"{type(error).__name__}: {error}"}
    return {"address": there["gcs_address"], "logs": f"{there['session_dir']}/logs"}


def wait_for_eof() -> bool:
    """Wait for the end of the input. Returns False where a vital process of Ray died before: without it the rest,
    drivers too, would retry for a minute and then exit."""
    import psutil

    vital = [child for child in psutil.Process().children() if child.name() in VITAL_PROCESSES]
    while not select.select([sys.stdin], [], [], CHECK_S)[0]:
        if not all(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in vital):
            return False
    return True


def end_descendants() -> None:
    """Kill all descendants and adopted orphans, until none is left."""
    import psutil

    while children := psutil.Process().children(recursive=True):
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def copy_logs(session: Path, folder: Path) -> None:
    """Copy the non-empty log files of actors."""
    for log in sorted(session.glob(f"session_2*/logs/{WORKER_LOGS}")):
        if log.stat().st_size:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(log, folder / log.name)


if __name__ == "__main__":
    main()
