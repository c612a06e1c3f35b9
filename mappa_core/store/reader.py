"""Reading `run.db`, also while a run writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec

from mappa_core.errors import RunError
from mappa_core.records import Failure, Phase, Step, Task, Trajectory, Verdict
from mappa_core.store import finding
from mappa_core.store.auditing import Audited, load_audit
from mappa_core.store.counterfactuals import COUNTERFACTUAL, load_counterfactuals
from mappa_core.store.finding import Choices, Marks, Wanted
from mappa_core.store.judgements import Judgement, load_judgements, load_verdict
from mappa_core.store.schema import NAME, Database

Status = Literal["open", "done", "failed"]
"""Of a trajectory: not ended yet (or never, where the run was killed), ended, ended with a Failure."""

_STATUS = "CASE WHEN finished = 0 THEN 'open' WHEN error IS NULL THEN 'done' ELSE 'failed' END"
_ROW = (
    f"SELECT id, split, iteration, sample, task_id, stratum, {_STATUS}, "
    "(SELECT count(*) FROM steps WHERE trajectory = trajectories.id), outcome, error, seconds FROM trajectories"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRow:
    """A trajectory in a list, without its steps. `outcome` is empty and `seconds` None until it ends."""

    id: str
    split: str
    iteration: int
    sample: int
    task: str
    stratum: str
    status: Status
    steps: int
    outcome: Mapping[str, float]
    error: Failure | None
    seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRow:
    """A trajectory that was looked for. `number` is its place among all of the run, from which one reads on."""

    number: int
    row: TrajectoryRow
    marks: Marks


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRow:
    """The verdicts of one coach and phase on one agent's steps in one iteration. `mean`, `low` and `high` are points
    (0-10) over the scored ones, None where there are none."""

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
    """Something that happened to the run; `time` is seconds since the epoch."""

    time: float
    kind: str
    body: Mapping[str, Any]


class Reader:
    """What a run has recorded so far. Never writes and never waits for the run. Closed by `with` or `close`.

    Raises RunError where the folder is no run folder, or its database is of a newer schema, damaged or not readable.
    """

    def __init__(self, folder: Path) -> None:
        self._database = Database.open(folder / NAME, write=False)

    def trajectories(
        self, split: str | None = None, iteration: int | None = None, *, limit: int = 100, offset: int = 0
    ) -> list[TrajectoryRow]:
        """One page of trajectories in the order in which they began; None is any iteration, and any split but
        `counterfactual`."""
        where, values = _rollouts(split, iteration)
        rows = self._database.rows(f"{_ROW} {where} ORDER BY rowid LIMIT ? OFFSET ?", *values, limit, offset)
        return [self._row(row) for row in rows]

    @property
    def is_indexed(self) -> bool:
        """Whether the run was recorded with what `find` and `choices` need."""
        return finding.is_indexed(self._database)

    def numbers(
        self, wanted: Wanted, *, before: int | None = None, after: int | None = None, limit: int = 50
    ) -> list[int]:
        """The numbers alone of what `find` gives."""
        self._require_index()
        return finding.numbers(self._database, wanted, before=before, after=after, limit=limit)

    def find(
        self, wanted: Wanted, *, before: int | None = None, after: int | None = None, limit: int = 50
    ) -> list[FoundRow]:
        """One page of the trajectories that are wanted, the newest first, from number `before` on; with `after` those
        next newer than that number, the oldest of them first. Raises RunError where the run is not indexed."""
        return [
            FoundRow(
                number=number,
                row=self._row(self._database.rows(f"{_ROW} WHERE rowid = ?", number)[0]),
                marks=finding.marks(self._database, number),
            )
            for number in self.numbers(wanted, before=before, after=after, limit=limit)
        ]

    def choices(self) -> Choices:
        """What there is to look for. Raises RunError where the run is not indexed."""
        self._require_index()
        return finding.choices(self._database)

    def number(self, identity: str) -> int:
        """The place of a trajectory among all of the run. Raises RunError for an unknown id."""
        ((number,),) = self._known("trajectory", identity, "SELECT rowid FROM trajectories WHERE id = ?")
        return int(number)

    def row(self, identity: str) -> TrajectoryRow:
        """One trajectory without its steps. Raises RunError for an unknown id."""
        return self._row(self._known("trajectory", identity, f"{_ROW} WHERE id = ?")[0])

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

    def judgements(self, split: str, *, limit: int) -> list[Judgement]:
        """At most `limit` verdicts, on the trajectories of a split that ended, of the newest ones first."""
        return load_judgements(self._database, split, limit)

    def audit(self) -> Iterator[Audited]:
        """Every verdict with what it was asked on, in order."""
        return load_audit(self._database)

    def verdict(self, step: str, identity: str) -> Verdict:
        """One verdict, whole."""
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
        """One trajectory, whole, as far as it is recorded. Raises RunError for an unknown id."""
        query = "SELECT task, sample, iteration, outcome, error, seconds FROM trajectories WHERE id = ?"
        with self._database.reading():
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
        """What came of every trajectory of an iteration that ended, in canonical order: without steps and verdicts."""
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

    def counts(self, split: str | None = None, iteration: int | None = None) -> dict[Status, int]:
        """How many trajectories there are of each status; a status without any is left out. None is as in
        `trajectories`."""
        where, values = _rollouts(split, iteration)
        return dict(self._database.rows(f"SELECT {_STATUS}, count(*) FROM trajectories {where} GROUP BY 1", *values))

    def verdicts(self, split: str | None = None, iteration: int | None = None) -> list[VerdictRow]:
        """Statistics of verdicts, by iteration, agent, coach and phase."""
        where, values = _filters(split=split, iteration=iteration)
        rows = self._database.rows(
            "SELECT split, iteration, agent, coach, phase, sum(status = 'scored'), sum(status = 'abstained'), "
            "sum(status = 'failed'), avg(score), min(score), max(score) FROM verdicts "
            "JOIN steps ON steps.id = verdicts.step JOIN trajectories ON trajectories.id = steps.trajectory "
            f"{where} GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 2, 3, 4, 5",
            *values,
        )
        return [VerdictRow(**dict(zip(VerdictRow.__slots__, row, strict=True))) for row in rows]

    def iterations(self) -> list[tuple[int, dict[str, float]]]:
        """Metrics of every iteration, in order."""
        return load_iterations(self._database)

    def latest_iteration(self) -> dict[str, float]:
        """Metrics of the last iteration; empty before the first is done."""
        rows = self._database.rows("SELECT metrics FROM iterations ORDER BY number DESC LIMIT 1")
        return _metrics(self._database, rows[0][0]) if rows else {}

    def events(self, kind: str | None = None) -> list[Event]:
        """Events in order; None is of any kind."""
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
    """Events in order; None is of any kind."""
    where, values = _filters(kind=kind)
    rows = database.rows(f"SELECT time, kind, body FROM events {where} ORDER BY number", *values)
    return [Event(time=time, kind=kind, body=database.unpack(dict[str, Any], body)) for time, kind, body in rows]


def load_iterations(database: Database) -> list[tuple[int, dict[str, float]]]:
    """Metrics of every recorded iteration, in order."""
    rows = database.rows("SELECT number, metrics FROM iterations ORDER BY number")
    return [(number, _metrics(database, metrics)) for number, metrics in rows]


def _metrics(database: Database, text: str) -> dict[str, float]:
    """Metrics are many, and flat: where none is escaped (see `codec`) they are read in one go."""
    plain = '"@' not in text
    return msgspec.json.decode(text, type=dict[str, float]) if plain else database.unpack(dict[str, float], text)


def load_steps(database: Database, trajectory: str) -> tuple[Step, ...]:
    """The recorded steps of a trajectory, in order."""
    rows = database.rows("SELECT body FROM steps WHERE trajectory = ? ORDER BY position", trajectory)
    return tuple(database.unpack(Step, body) for (body,) in rows)


def load_verdicts(database: Database, trajectory: str) -> tuple[Verdict, ...]:
    """The verdicts on a trajectory's steps: by step, and on one step in the order in which they came."""
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


def _rollouts(split: str | None, iteration: int | None) -> tuple[str, list[Any]]:
    """A WHERE clause for trajectories. What only shows what an action was worth is no rollout of any other split."""
    if split is not None:
        return _filters(split=split, iteration=iteration)
    clause, values = _filters(iteration=iteration)
    return f"{clause} {'AND' if clause else 'WHERE'} split <> ?", [*values, COUNTERFACTUAL]


def _filters(**columns: Any) -> tuple[str, list[Any]]:
    """A WHERE clause for the columns that are not None, and its values."""
    asked = {name: value for name, value in columns.items() if value is not None}
    clause = " AND ".join(f"{name} = ?" for name in asked)
    return (f"WHERE {clause}" if clause else ""), list(asked.values())
