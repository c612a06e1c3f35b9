"""The cassette of a run's coaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mappa_core.config.schema import CassetteSection
from mappa_core.protocols import Coach
from mappa_core.store.cassette import open_cassette

NAME = "cassette.db"


@contextmanager
def coaches_on_cassette(coaches: Sequence[Coach], chosen: CassetteSection, folder: Path) -> Iterator[None]:
    """Let coaches look verdicts up, and keep them, on the cassette that `coach.cassette` names: a file of its own, or
    `cassette.db` in the run's `folder`. Coaches that ask nobody need none.

    Raises:
        RunError: the file is no cassette, damaged, or of a newer version.
    """
    cassette = None
    if any(coach.providers for coach in coaches):
        cassette = open_cassette(chosen.mode, folder / NAME if chosen.path is None else Path(chosen.path))
    if cassette is None:
        yield
        return
    try:
        for coach in coaches:
            coach.keep_on(cassette)
        yield
    finally:
        cassette.close()
