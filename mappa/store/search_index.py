"""Writer of a run's search index: the tables `facets` and `texts` (see `schema.sql`)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from mappa_core.records import NOBODY, Step, Trajectory, Verdict

Facet = tuple[str, str | float]

MAX_ENDINGS = 16
"""Maximum number of indexed endings per trajectory: a lost one continues after a resume and ends again."""


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    query = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?"
    return connection.execute(query, (name,)).fetchone() is not None


class SearchIndex:
    """Writes the index; every method is called inside the transaction that writes the record itself. A database that
    was created without the tables stays without them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._has_facets, self._has_texts = has_table(connection, "facets"), has_table(connection, "texts")

    def add_trajectory(self, trajectory: str, stratum: str) -> None:
        self._add(trajectory, [("stratum", stratum)])

    def add_step(self, trajectory: str, step: Step) -> None:
        self._add(trajectory, [("agent", step.agent), *(("breach", breach.kind) for breach in step.breaches)])

    def add_verdict(self, verdict: Verdict) -> None:
        query = "SELECT trajectory, agent FROM steps WHERE id = ?"
        trajectory, agent = self._connection.execute(query, (verdict.step,)).fetchone()
        self._add(trajectory, _verdict_facets(verdict, agent))

    def finish_trajectory(self, trajectory: Trajectory) -> None:
        """Add the facets of its ending, in place of those of an earlier ending, and the words of all its steps."""
        if self._has_facets:
            self._connection.execute(
                "DELETE FROM facets WHERE trajectory = (SELECT number FROM trajectories WHERE id = ?) "
                "AND (name = 'failure' OR name LIKE 'outcome/%')",
                (trajectory.id,),
            )
        facets: list[Facet] = [(f"outcome/{name}", value) for name, value in trajectory.outcome.items()]
        if trajectory.error is not None:
            facets.append(("failure", trajectory.error.kind))
        self._add(trajectory.id, facets)
        if self._has_texts:
            self._connection.execute(
                "INSERT INTO texts (rowid, task, said, printed, judged) VALUES (?, ?, ?, ?, ?)",
                (self._free_row(trajectory.id), *_indexed_texts(trajectory)),
            )

    def _free_row(self, trajectory: str) -> int:
        """First free row of `texts` for the trajectory; the last row takes all later endings."""
        query = "SELECT number FROM trajectories WHERE id = ?"
        ((number,),) = self._connection.execute(query, (trajectory,))
        first = int(number) * MAX_ENDINGS
        last = first + MAX_ENDINGS - 1
        query = "SELECT max(rowid) FROM texts WHERE rowid BETWEEN ? AND ?"
        ((taken,),) = self._connection.execute(query, (first, last))
        return first if taken is None else min(int(taken) + 1, last)

    def _add(self, trajectory: str, facets: Sequence[Facet]) -> None:
        if self._has_facets and facets:
            self._connection.executemany(
                "INSERT OR IGNORE INTO facets SELECT number, ?, ? FROM trajectories WHERE id = ?",
                [(name, value, trajectory) for name, value in facets],
            )


def _verdict_facets(verdict: Verdict, agent: str) -> list[Facet]:
    facets: list[Facet] = []
    if verdict.score is None:
        facets.append(("verdict", verdict.status))
    else:
        facets.append((f"score/{agent}", verdict.score))
    if verdict.blame not in (None, NOBODY):
        facets.append(("blame", verdict.blame))
    scores = [member.score for member in verdict.members if member.score is not None]
    if len(scores) > 1:
        facets.append(("disagreement", max(scores) - min(scores)))
    return facets


def _indexed_texts(trajectory: Trajectory) -> tuple[str, str, str, str]:
    """Texts of the columns of `texts`: task; replies with reasoning; tool output; reasons of coaches."""
    said = [text for step in trajectory.steps for text in (step.reply.reasoning, step.completion.text) if text]
    results = [result for step in trajectory.steps for result in step.results]
    printed = [text for result in results for text in (result.stdout, result.stderr) if text]
    judged = [text for verdict in trajectory.verdicts for text in (verdict.reasoning, verdict.error) if text]
    return _storable([trajectory.task.prompt]), _storable(said), _storable(printed), _storable(judged)


def _storable(texts: Sequence[str]) -> str:
    """Join texts and replace characters that UTF-8 lacks (unpaired surrogates)."""
    return "\n".join(texts).encode(errors="replace").decode()
