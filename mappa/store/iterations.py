"""Table `iterations`: reports of finished iterations."""

from __future__ import annotations

import msgspec

from mappa.store.iteration_report import IterationReport
from mappa.store.schema import Database


def load_iterations(database: Database) -> list[IterationReport]:
    """Reports of all finished iterations, in order."""
    return [_decode(database, text) for (text,) in database.rows("SELECT report FROM iterations ORDER BY number")]


def load_latest_iteration(database: Database) -> IterationReport | None:
    """Report of the last finished iteration; None before the first."""
    rows = database.rows("SELECT report FROM iterations ORDER BY number DESC LIMIT 1")
    return _decode(database, rows[0][0]) if rows else None


def _decode(database: Database, text: str) -> IterationReport:
    """Decode a report; fast path for text without escapes (see `codec`)."""
    with database.damage_reported():
        plain = '"@' not in text
        return msgspec.json.decode(text, type=IterationReport) if plain else database.unpack(IterationReport, text)
