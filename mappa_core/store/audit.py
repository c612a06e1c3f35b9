"""Audit of a run: every verdict with its agent and iteration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mappa_core.records import Verdict
from mappa_core.store.schema import Database

_BATCH_ROWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedVerdict:
    """A verdict and where it belongs. `verdict.question` is the hash of the whole request, None if its coach calls no
    model."""

    split: str
    iteration: int
    agent: str
    verdict: Verdict


def load_audited_verdicts(database: Database) -> Iterator[AuditedVerdict]:
    """Yield all verdicts, ordered by start of the trajectory, by step, and on one step by arrival."""
    cursor = database.connection.execute(
        "SELECT t.split, t.iteration, s.agent, v.body FROM trajectories t CROSS JOIN steps s ON s.trajectory = t.id "
        "CROSS JOIN verdicts v ON v.step = s.id ORDER BY t.rowid, s.position, v.number"
    )
    while rows := cursor.fetchmany(_BATCH_ROWS):
        for split, iteration, agent, body in rows:
            verdict = database.unpack(Verdict, body)
            yield AuditedVerdict(split=split, iteration=iteration, agent=agent, verdict=verdict)
