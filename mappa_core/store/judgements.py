"""The latest verdicts of a run beside what came of the trajectories that they are on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mappa_core.records import Phase, Verdict
from mappa_core.store.schema import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict on an action of `agent` in a trajectory that ended. `score` is points 0-10, None unless scored;
    `seconds` is how long it took; `outcome` is empty where the trajectory ended with an error."""

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


def load_judgements(database: Database, split: str, limit: int) -> list[Judgement]:
    """At most `limit`, of the newest trajectories of a split."""
    rows = database.rows(
        "SELECT t.id, t.task_id, t.iteration, t.stratum, s.agent, s.position, s.id, v.id, v.coach, v.phase, v.status, "
        "v.score, json_extract(v.body, '$.seconds'), t.error IS NULL, t.outcome "
        "FROM trajectories t CROSS JOIN steps s ON s.trajectory = t.id CROSS JOIN verdicts v ON v.step = s.id "
        # The plus keeps SQLite from an index by which it would first sort all trajectories of the split.
        "WHERE +t.split = ? AND t.finished ORDER BY t.rowid DESC LIMIT ?",
        split,
        limit,
    )
    texts = {text for *_, whole, text in rows if whole}
    outcomes = {text: database.unpack(dict[str, float], text) for text in texts}
    return [
        Judgement(**dict(zip(Judgement.__slots__, (*row[:-2], outcomes[row[-1]] if row[-2] else {}), strict=True)))
        for row in rows
    ]


def load_verdict(database: Database, step: str, identity: str) -> Verdict:
    """One verdict, whole."""
    ((body,),) = database.rows("SELECT body FROM verdicts WHERE step = ? AND id = ?", step, identity)
    return database.unpack(Verdict, body)
