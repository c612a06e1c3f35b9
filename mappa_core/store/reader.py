"""Reader of `run.db`, usable while a run writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec

from mappa_core.errors import RunError
from mappa_core.records import Failure, Phase, Step, Task, Trajectory, Verdict
from mappa_core.store import search
from mappa_core.store.audit import AuditedVerdict, load_audited_verdicts
from mappa_core.store.counterfactuals import COUNTERFACTUAL, load_counterfactuals
from mappa_core.store.schema import DATABASE_NAME, Database
from mappa_core.store.search import FilterChoices, TrajectoryFacets, TrajectoryFilter
from mappa_core.store.verdict_outcomes import VerdictWithOutcome, load_verdict, load_verdicts_with_outcomes

TrajectoryStatus = Literal["open", "done", "failed"]
"""Status of a trajectory: not ended (yet, or because the run was killed), ended, or ended with a Failure."""

_STATUS = "CASE WHEN finished = 0 THEN 'open' WHEN error IS NULL THEN 'done' ELSE 'failed' END"
_SELECT_ROW = (
    f"SELECT id, split, iteration, sample, task_id, stratum, {_STATUS}, "
    "(SELECT count(*) FROM steps WHERE trajectory = trajectories.id), outcome, error, seconds FROM trajectories"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRow:
    """A trajectory without its steps, for lists. `outcome` is empty and `seconds` None until it ends."""

    id: str
    split: str
    iteration: int
    sample: int
    task: str
    stratum: str
    status: TrajectoryStatus
    steps: int
    outcome: Mapping[str, float]
    error: Failure | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundTrajectory:
    """A search result. `number` is the trajectory's position among all of the run, the key for the next page."""

    number: int
    row: TrajectoryRow
    facets: TrajectoryFacets


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictStats:
    """Statistics of the verdicts of one coach and phase on one agent's steps in one iteration. `mean`, `low` and `high`
    are points (0-10) over the scored ones, None if there are none."""

    split: str
    iteration: int
    agent: str
    coach: str
    phase: Phase
    scored: int
    abstained: int
    failed: int
    mean: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of the run; `time` is seconds since the epoch."""

    time: float
    kind: str
    body: Mapping[str, Any]


class Reader:
    """Reads what a run has recorded so far. Never writes and never waits for the run. Closed by `with` or `close`.

    Raises RunError if the folder is not a run folder, or its database is of a newer schema, damaged or not readable.
    """

    def __init__(self, folder: Path) -> None:
        self._database = Database.open(folder / DATABASE_NAME, write=False)

    def trajectories(
        self, split: str | None = None, iteration: int | None = None, *, limit: int = 100, offset: int = 0
    ) -> list[TrajectoryRow]:
        """One page of trajectories in the order in which they began; None means any iteration, or any split but
        `counterfactual`."""
        where, values = _rollout_filter(split, iteration)
        rows = self._database.rows(f"{_SELECT_ROW} {where} ORDER BY rowid LIMIT ? OFFSET ?", *values, limit, offset)
        return [self._row(row) for row in rows]

    @property
    def is_indexed(self) -> bool:
        """Whether the run was recorded with the index that `find` and `choices` need."""
        return search.is_indexed(self._database)

    def numbers(
        self,
        trajectory_filter: TrajectoryFilter,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
    ) -> list[int]:
        """Numbers of the trajectories that `find` returns."""
        self._require_index()
        return search.find_numbers(self._database, trajectory_filter, before=before, after=after, limit=limit)

    def find(
        self,
        trajectory_filter: TrajectoryFilter,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int = 50,
    ) -> list[FoundTrajectory]:
        """One page of matching trajectories older than number `before`, the newest first; with `after` those next newer
        than that number, the oldest of them first. Raises RunError if the run is not indexed."""
        return [
            FoundTrajectory(
                number=number,
                row=self._row(self._database.rows(f"{_SELECT_ROW} WHERE rowid = ?", number)[0]),
                facets=search.load_facets(self._database, number),
            )
            for number in self.numbers(trajectory_filter, before=before, after=after, limit=limit)
        ]

    def choices(self) -> FilterChoices:
        """Values to choose from in a filter. Raises RunError if the run is not indexed."""
        self._require_index()
        return search.load_choices(self._database)

    def number(self, identity: str) -> int:
        """Position of a trajectory among all of the run. Raises RunError for an unknown id."""
        ((number,),) = self._known("trajectory", identity, "SELECT rowid FROM trajectories WHERE id = ?")
        return int(number)

    def row(self, identity: str) -> TrajectoryRow:
        """One trajectory without its steps. Raises RunError for an unknown id."""
        return self._row(self._known("trajectory", identity, f"{_SELECT_ROW} WHERE id = ?")[0])

    def step(self, identity: str) -> Step:
        """One action. Raises RunError for an unknown id."""
        ((body,),) = self._known("step", identity, "SELECT body FROM steps WHERE id = ?")
        return self._database.unpack(Step, body)

    def _known(self, what: str, identity: str, query: str) -> list[Any]:
        rows = self._database.rows(query, identity)
        if not rows:
            raise RunError(f"{self._database.path} has no {what} {identity!r}")
        return rows

    def _require_index(self) -> None:
        if not self.is_indexed:
            raise RunError(f"{self._database.path} was recorded by a version of Mappa that kept no index to find by")

    def judgements(self, split: str, *, limit: int) -> list[VerdictWithOutcome]:
        """At most `limit` verdicts on finished trajectories of a split, the newest trajectories first."""
        return load_verdicts_with_outcomes(self._database, split, limit)

    def audit(self) -> Iterator[AuditedVerdict]:
        """Every verdict with its split, iteration and agent, in order."""
        return load_audited_verdicts(self._database)

    def verdict(self, step: str, identity: str) -> Verdict:
        """One verdict with all its fields."""
        return load_verdict(self._database, step, identity)

    def _row(self, row: Sequence[Any]) -> TrajectoryRow:
        identity, split, iteration, sample, task, stratum, status, steps, outcome, error, seconds = row
        return TrajectoryRow(
            id=identity,
            split=split,
            iteration=iteration,
            sample=sample,
            task=task,
            stratum=stratum,
            status=status,
            steps=steps,
            outcome=load_outcome(self._database, outcome),
            error=load_error(self._database, error),
            seconds=seconds,
        )

    def trajectory(self, identity: str) -> Trajectory:
        """One trajectory with its steps and verdicts, as far as recorded. Raises RunError for an unknown id."""
        query = "SELECT task, sample, iteration, outcome, error, seconds FROM trajectories WHERE id = ?"
        with self._database.snapshot():
            ((task, sample, iteration, outcome, error, seconds),) = self._known("trajectory", identity, query)
            return Trajectory(
                id=identity,
                task=self._database.unpack(Task, task),
                sample=sample,
                iteration=iteration,
                steps=load_steps(self._database, identity),
                verdicts=load_verdicts(self._database, identity),
                outcome=load_outcome(self._database, outcome),
                error=load_error(self._database, error),
                seconds=0.0 if seconds is None else seconds,
                counterfactuals=load_counterfactuals(self._database, identity),
            )

    def outcomes(self, split: str, iteration: int) -> list[Trajectory]:
        """Finished trajectories of an iteration without steps and verdicts, in canonical order."""
        rows = self._database.rows(
            "SELECT id, task, sample, outcome, error, seconds FROM trajectories "
            "WHERE split = ? AND iteration = ? AND finished = 1 ORDER BY id",
            split,
            iteration,
        )
        return [
            Trajectory(
                id=identity,
                task=self._database.unpack(Task, task),
                sample=sample,
                iteration=iteration,
                outcome=load_outcome(self._database, outcome),
                error=load_error(self._database, error),
                seconds=seconds,
            )
            for identity, task, sample, outcome, error, seconds in rows
        ]

    def counts(self, split: str | None = None, iteration: int | None = None) -> dict[TrajectoryStatus, int]:
        """Count trajectories by status; a status without any is left out. None means the same as in
        `trajectories`."""
        where, values = _rollout_filter(split, iteration)
        return dict(self._database.rows(f"SELECT {_STATUS}, count(*) FROM trajectories {where} GROUP BY 1", *values))

    def verdicts(self, split: str | None = None, iteration: int | None = None) -> list[VerdictStats]:
        """Statistics of verdicts, by iteration, agent, coach and phase."""
        where, values = _where_equal(split=split, iteration=iteration)
        rows = self._database.rows(
            "SELECT split, iteration, agent, coach, phase, sum(status = 'scored'), sum(status = 'abstained'), "
            "sum(status = 'failed'), avg(score), min(score), max(score) FROM verdicts "
            "JOIN steps ON steps.id = verdicts.step JOIN trajectories ON trajectories.id = steps.trajectory "
            f"{where} GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5",
            *values,
        )
        return [VerdictStats(**dict(zip(VerdictStats.__slots__, row, strict=True))) for row in rows]

    def iterations(self) -> list[tuple[int, dict[str, float]]]:
        """Metrics of every iteration, in order."""
        return load_iterations(self._database)

    def latest_iteration(self) -> dict[str, float]:
        """Metrics of the last iteration; empty before the first is done."""
        rows = self._database.rows("SELECT metrics FROM iterations ORDER BY number DESC LIMIT 1")
        return _metrics(self._database, rows[0][0]) if rows else {}

    def events(self, kind: str | None = None) -> list[Event]:
        """Events in order; `kind` None means all kinds."""
        return load_events(self._database, kind)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load_events(database: Database, kind: str | None) -> list[Event]:
    """Events in order; `kind` None means all kinds."""
    where, values = _where_equal(kind=kind)
    rows = database.rows(f"SELECT time, kind, body FROM events {where} ORDER BY number", *values)
    return [Event(time=time, kind=kind, body=database.unpack(dict[str, Any], body)) for time, kind, body in rows]


def load_iterations(database: Database) -> list[tuple[int, dict[str, float]]]:
    """Metrics of every recorded iteration, in order."""
    rows = database.rows("SELECT number, metrics FROM iterations ORDER BY number")
    return [(number, _metrics(database, metrics)) for number, metrics in rows]


def _metrics(database: Database, text: str) -> dict[str, float]:
    """Decode metrics; fast path for text without escapes (see `codec`)."""
    plain = '"@' not in text
    return msgspec.json.decode(text, type=dict[str, float]) if plain else database.unpack(dict[str, float], text)


def load_steps(database: Database, trajectory: str) -> tuple[Step, ...]:
    """Load the recorded steps of a trajectory, in order."""
    rows = database.rows("SELECT body FROM steps WHERE trajectory = ? ORDER BY position", trajectory)
    return tuple(database.unpack(Step, body) for (body,) in rows)


def load_verdicts(database: Database, trajectory: str) -> tuple[Verdict, ...]:
    """Load the verdicts on a trajectory's steps, ordered by step, and on one step by arrival."""
    rows = database.rows(
        "SELECT verdicts.body FROM verdicts JOIN steps ON steps.id = verdicts.step "
        "WHERE steps.trajectory = ? ORDER BY steps.position, verdicts.number",
        trajectory,
    )
    return tuple(database.unpack(Verdict, body) for (body,) in rows)


def load_outcome(database: Database, text: str | None) -> dict[str, float]:
    return {} if text is None else database.unpack(dict[str, float], text)


def load_error(database: Database, text: str | None) -> Failure | None:
    return None if text is None else database.unpack(Failure, text)


def _rollout_filter(split: str | None, iteration: int | None) -> tuple[str, list[Any]]:
    """A WHERE clause for trajectories. Split None excludes counterfactual rollouts."""
    if split is not None:
        return _where_equal(split=split, iteration=iteration)
    clause, values = _where_equal(iteration=iteration)
    return f"{clause} {'AND' if clause else 'WHERE'} split <> ?", [*values, COUNTERFACTUAL]


def _where_equal(**columns: Any) -> tuple[str, list[Any]]:
    """A WHERE clause for equality of the columns that are not None, and its values."""
    conditions = {name: value for name, value in columns.items() if value is not None}
    clause = " AND ".join(f"{name} = ?" for name in conditions)
    return (f"WHERE {clause}" if clause else ""), list(conditions.values())
