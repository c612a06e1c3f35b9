"""What a process does once before programs are forked of it: import modules, and put its memory in order."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from mappa_core.safe_walk import remove_tree
from mappa_sandbox.isolation import huge_pages, program
from mappa_sandbox.isolation.job import SandboxConfig

WARM_UP = "<warm_up>"
"""File name of that program in tracebacks."""


def preload(config: SandboxConfig) -> dict[str, Any]:
    """Import the modules of `config`, and run its program for warming up; returns the greeting for the driver: `ready`,
    or the `fault` of the first that failed. A module whose name ends in `?` may be missing."""
    for name in config.preload:
        try:
            with contextlib.suppress(*([ModuleNotFoundError] if name.endswith("?") else [])):
                importlib.import_module(name.removesuffix("?"))
        except BaseException as error:  # noqa: BLE001 - whatever a module does
            return {"fault": f"preload: cannot import {name!r}: {type(error).__name__}: {error}"}
    if config.warm_up:
        try:
            _run_warm_up(config.warm_up, f"{config.scratch}/warm-up")
        except BaseException as error:  # noqa: BLE001 - whatever a program does
            line = next(
                (
                    f" in line {frame.lineno}"
                    for frame in reversed(traceback.extract_tb(error.__traceback__))
                    if frame.filename == WARM_UP
                ),
                "",
            )
            return {"fault": f"warm_up: the program failed{line}: {type(error).__name__}: {error}"}
    return {"ready": True, "threads": _count_other_threads()}


def _run_warm_up(source: str, folder: str) -> None:
    os.mkdir(folder, 0o700)
    os.chdir(folder)
    try:
        exec(compile(source, WARM_UP, "exec"), {"__name__": "__main__"})
    finally:
        sys.stdout.flush()  # or every program would print what is left of it
        sys.stderr.flush()
        os.chdir("/")
        remove_tree(Path(folder))


def _count_other_threads() -> int:
    """Number of threads beside this one. Programs are forks without them, whatever locks they held."""
    return len(os.listdir("/proc/self/task")) - 1


def settle_memory() -> None:
    """Prepare this process's memory for forks: what is there now is no garbage, and lies in huge pages."""
    program.record_own_modules()
    gc.collect()
    gc.freeze()  # the collector marks the objects that it looks at, and would copy all pages in every fork
    huge_pages.collapse_memory()
