"""What the plays of a run came to, for pages that ask it again every few seconds."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from mappa.look.view.plays import PlaysSummary, summarize_stored_plays
from mappa.look.view.web.run_folders import MAX_RUNS, change_stamp


def read_plays(folder: Path) -> PlaysSummary | None:
    """As `summarize_stored_plays`, which counts again only what has changed since the last time."""
    return _read_plays(folder, change_stamp({"": folder}))


@lru_cache(maxsize=MAX_RUNS)
def _read_plays(folder: Path, stamp: str) -> PlaysSummary | None:
    return summarize_stored_plays(folder)
