"""Queries of run.db that its writer and its readers share."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mappa.store.schema import Database
from mappa_core.errors import RunError
from mappa_core.records import Counterfactual, Failure, Label, Step, Task, Trajectory, Verdict

COUNTERFACTUAL = "counterfactual"
"""Split of counterfactual rollouts, so that nothing that is counted or learned from includes them. Their ids are
`counterfactual/<id of the trajectory>/<position>/<number>`."""
SELECT_TRAJECTORY = "SELECT id, task, sample, iteration, outcome, error, seconds, finished FROM trajectories"
"""Selects what `read_trajectory` reads."""
_TRAJECTORY = tuple[str, Any, int, int, Any, Any, float | None, Any]
_PLACE = re.compile(r"(\d{3,})/(\d{2,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event of the run; `time` is seconds since the epoch."""

    time: float
    kind: str
    body: Mapping[str, Any]


class StoredValues(dict[str, Any]):
    """Values of an event or a config, of which any may be missing in a damaged run; `what` names the place."""

    def __init__(self, values: Mapping[str, Any], what: str) -> None:
        super().__init__(values)
        self._what = what

    def __missing__(self, key: str) -> Any:
        raise RunError(f"{self._what} is damaged: it has no {key!r}")


def load_events(database: Database, kind: str | None) -> list[Event]:
    where, values = where_equal(kind=kind)
    rows = database.rows(f"SELECT number, time, kind, body FROM events {where} ORDER BY number", *values)
    events = []
    for number, time, event_kind, text in rows:
        time, event_kind = database.check((time, event_kind), tuple[float, str])
        what = f"{database.path}: the event {number} ({event_kind})"
        body = StoredValues(database.unpack(dict[str, Any], text), what)
        events.append(Event(time=time, kind=event_kind, body=body))
    return events


def read_trajectory(database: Database, row: Sequence[Any]) -> Trajectory:
    """A row as a trajectory without steps and verdicts. Until it ends, its outcome is empty and its seconds are 0."""
    identity, task, sample, iteration, outcome, error, seconds, _ = database.check(row, _TRAJECTORY)
    return Trajectory(
        id=identity,
        task=unpack_task(database, task),
        sample=sample,
        iteration=iteration,
        outcome=load_outcome(database, outcome),
        error=load_error(database, error),
        seconds=0.0 if seconds is None else seconds,
    )


def unpack_task(database: Database, text: str) -> Task:
    """A recorded task with the names of its files alone. Their paths are those of the machine where it was played, and
    a stranger's could name any file of this one; `mappa.session.source_tasks` finds those that may be opened."""
    task: Task = database.unpack(Task, text)
    return replace(task, files=dict.fromkeys(task.files, ""))


def with_actions(database: Database, trajectory: Trajectory) -> Trajectory:
    """Add its steps, and their verdicts."""
    steps, verdicts = load_steps(database, trajectory.id), load_verdicts(database, trajectory.id)
    return replace(trajectory, steps=steps, verdicts=verdicts)


def load_steps(database: Database, trajectory: str) -> tuple[Step, ...]:
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


def load_labels(database: Database, trajectory: str | None) -> list[Label]:
    where, values = where_equal(trajectory=trajectory)
    rows = database.rows(f"SELECT body FROM labels {where} ORDER BY rowid", *values)
    return [database.unpack(Label, body) for (body,) in rows]


def load_outcome(database: Database, text: str | None) -> dict[str, float]:
    return {} if text is None else database.unpack(dict[str, float], text)


def load_error(database: Database, text: str | None) -> Failure | None:
    return None if text is None else database.unpack(Failure, text)


def counterfactual_id(trajectory: str, position: int, number: int) -> str:
    """Id of the `number`-th rollout in which the action at `position` of a trajectory is replaced."""
    return f"{COUNTERFACTUAL}/{trajectory}/{position:03d}/{number:02d}"


def load_counterfactuals(database: Database, trajectory: str) -> tuple[Counterfactual, ...]:
    """Load the finished counterfactuals of one trajectory, by position and number."""
    prefix = f"{COUNTERFACTUAL}/{trajectory}/"
    rows = database.rows(
        "SELECT id, outcome, error FROM trajectories WHERE id > ? AND id < ? AND split = ? AND finished ORDER BY id",
        prefix,
        after_prefix(prefix),
        COUNTERFACTUAL,
    )
    counterfactuals = []
    for name, outcome, error in rows:
        place = _PLACE.fullmatch(name.removeprefix(prefix))
        if place is None:
            continue  # Of another trajectory, whose id begins like this one.
        counterfactuals.append(
            Counterfactual(
                position=int(place[1]),
                number=int(place[2]),
                outcome=load_outcome(database, outcome),
                error=load_error(database, error),
            )
        )
    return tuple(counterfactuals)


def after_prefix(prefix: str) -> str:
    """The end of the range of the texts that begin with `prefix`, which ends in a slash. LIKE would not use the index,
    and ids may hold its wildcards."""
    return prefix[:-1] + chr(ord("/") + 1)


def where_equal(**columns: Any) -> tuple[str, list[Any]]:
    """A WHERE clause for equality of the columns that are not None, and its values."""
    conditions = {name: value for name, value in columns.items() if value is not None}
    clause = " AND ".join(f"{name} = ?" for name in conditions)
    return (f"WHERE {clause}" if clause else ""), list(conditions.values())
