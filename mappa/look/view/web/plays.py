"""What the plays of a run came to, for pages that ask it again every few seconds."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from mappa.look.view.plays import PlaysSummary, summarize_plays
from mappa.look.view.web.run_folders import MAX_RUNS, change_stamp
from mappa.runs import RunReader
from mappa_core import ConfigError, RunError


def read_plays(folder: Path) -> PlaysSummary | None:
    """As `summarize_plays`, which counts again only what has changed since the last time. None also of a run whose
    record of its team or outcomes is missing or damaged: its pages show what else it holds."""
    return _read_plays(folder, change_stamp({"": folder}))


@lru_cache(maxsize=MAX_RUNS)
def _read_plays(folder: Path, stamp: str) -> PlaysSummary | None:
    with RunReader(folder) as reader, suppress(RunError, ConfigError):
        return summarize_plays(reader)
    return None
