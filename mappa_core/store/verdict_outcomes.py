"""Latest verdicts of a run joined with the outcomes of their trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mappa_core.records import Phase, Verdict
from mappa_core.store.schema import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictWithOutcome:
    """A verdict on an action of `agent` in a trajectory that ended. `score` is points 0-10, None unless scored;
    `seconds` is its duration; `outcome` is empty if the trajectory ended with an error."""

    trajectory: str
    task: str
    iteration: int
    stratum: str
    agent: str
    position: int
    step: str
    verdict: str
    coach: str
    phase: Phase
    status: str
    score: float | None
    seconds: float
    outcome: Mapping[str, float]


def load_verdicts_with_outcomes(database: Database, split: str, limit: int) -> list[VerdictWithOutcome]:
    """Load at most `limit` verdicts, on the newest trajectories of a split."""
    rows = database.rows(
        "SELECT t.id, t.task_id, t.iteration, t.stratum, s.agent, s.position, s.id, v.id, v.coach, v.phase, v.status, "
        "v.score, json_extract(v.body, '$.seconds'), t.error IS NULL, t.outcome "
        "FROM trajectories t CROSS JOIN steps s ON s.trajectory = t.id CROSS JOIN verdicts v ON v.step = s.id "
        # The unary plus stops SQLite from using an index by which it would first sort all trajectories of the split.
        "WHERE +t.split = ? AND t.finished ORDER BY t.rowid DESC LIMIT ?",
        split,
        limit,
    )
    texts = {text for *_, whole, text in rows if whole}
    outcomes = {text: database.unpack(dict[str, float], text) for text in texts}
    return [
        VerdictWithOutcome(
            **dict(zip(VerdictWithOutcome.__slots__, (*row[:-2], outcomes[row[-1]] if row[-2] else {}), strict=True))
        )
        for row in rows
    ]


def load_verdict(database: Database, step: str, identity: str) -> Verdict:
    """Load one verdict."""
    ((body,),) = database.rows("SELECT body FROM verdicts WHERE step = ? AND id = ?", step, identity)
    return database.unpack(Verdict, body)
