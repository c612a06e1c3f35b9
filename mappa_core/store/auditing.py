"""Every verdict of a run with what it was asked on, for whoever checks it later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mappa_core.records import Verdict
from mappa_core.store.schema import Database

_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """A verdict and where it belongs. `verdict.question` is the hash of all that was asked, None where its coach asks
    no model."""

    split: str
    iteration: int
    agent: str
    verdict: Verdict


def load_audit(database: Database) -> Iterator[Audited]:
    """All verdicts: by trajectory as they began, by step, and on one step in the order in which they came."""
    cursor = database.connection.execute(
        "SELECT t.split, t.iteration, s.agent, v.body FROM trajectories t CROSS JOIN steps s ON s.trajectory = t.id "
        "CROSS JOIN verdicts v ON v.step = s.id ORDER BY t.rowid, s.position, v.number"
    )
    while rows := cursor.fetchmany(_AT_ONCE):
        for split, iteration, agent, body in rows:
            verdict = database.unpack(Verdict, body)
            yield Audited(split=split, iteration=iteration, agent=agent, verdict=verdict)
