"""The program that holds a Ray of this machine's own: it starts it, says where it listens, and leaves nothing of it.

It runs in an environment that its starter chose, so that Ray and every worker inherit that and nothing else. It ends
when its standard input does, which is also what a killed driver leaves behind, and when a part of Ray died. It adopts
whatever its descendants leave, so that even a stopped worker whose raylet is gone is found and killed.
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
VITAL = ("gcs_server", "raylet")
LOOK_S = 0.5
LOGS = "worker-*"
"""What actors wrote to their standard output and error, one file each."""


def main() -> None:
    """Read settings from standard input, start Ray, print its address, wait for the end of the input, leave nothing."""
    import ray

    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    folder = Path(settings["folder"])
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        print(json.dumps(start(settings)), flush=True)  # noqa: T201
        if wait():
            ray.shutdown()
    finally:
        end_descendants()
        if settings["logs"] is not None:
            keep_logs(folder, Path(settings["logs"]))
        shutil.rmtree(folder, ignore_errors=True)


def start(settings: Mapping[str, Any]) -> dict[str, str]:
    """Start Ray: its address and the folder of its logs, or the `error` that kept it from starting."""
    import ray

    files = Path(settings["folder"]) / "files"
    files.mkdir()
    os.environ["TMPDIR"] = str(files)  # what actors leave there goes with Ray, however they end
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
    except Exception as error:  # noqa: BLE001  the driver is told, whatever it is
        return {"error": f"{type(error).__name__}: {error}"}
    return {"address": there["gcs_address"], "logs": f"{there['session_dir']}/logs"}


def wait() -> bool:
    """Wait for the end of the input. False where a part of Ray that all others need died before: without it the rest,
    drivers too, would try for a minute to reach it and then end themselves."""
    import psutil

    vital = [child for child in psutil.Process().children() if child.name() in VITAL]
    while not select.select([sys.stdin], [], [], LOOK_S)[0]:
        if not all(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in vital):
            return False
    return True


def end_descendants() -> None:
    """Kill what this process started and what it adopted, until nothing is left."""
    import psutil

    while children := psutil.Process().children(recursive=True):
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def keep_logs(session: Path, folder: Path) -> None:
    """Copy what actors wrote, where they wrote anything."""
    for log in sorted(session.glob(f"session_2*/logs/{LOGS}")):
        if log.stat().st_size:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(log, folder / log.name)


if __name__ == "__main__":
    main()
