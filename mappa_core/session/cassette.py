"""Attaches the cassette of a run to its coaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mappa_core.config.schema import CassetteSection
from mappa_core.protocols import Coach
from mappa_core.store.cassette import open_cassette

CASSETTE_NAME = "cassette.db"


@contextmanager
def attach_cassette(coaches: Sequence[Coach], chosen: CassetteSection, folder: Path) -> Iterator[None]:
    """Let coaches read and write verdicts on the cassette that `coach.cassette` names: a file of its own, or
    `cassette.db` in the run's `folder`. Coaches that call no provider need none.

    Raises:
        RunError: the file is not a cassette, is damaged, or is of a newer version.
    """
    cassette = None
    if any(coach.providers for coach in coaches):
        cassette = open_cassette(chosen.mode, folder / CASSETTE_NAME if chosen.path is None else Path(chosen.path))
    if cassette is None:
        yield
        return
    try:
        for coach in coaches:
            coach.use_cassette(cassette)
        yield
    finally:
        cassette.close()
