"""Writer of `run.db`. A kill (`kill -9`) loses nothing that a method returned from; a power cut may lose what was
written after the last `flush`, which every checkpoint calls."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mappa.store.iteration_report import IterationReport
from mappa.store.iterations import load_iterations
from mappa.store.queries import (
    SELECT_TRAJECTORY,
    Event,
    after_prefix,
    load_events,
    load_steps,
    load_verdicts,
    read_trajectory,
    unpack_task,
    where_equal,
    with_actions,
)
from mappa.store.schema import Database, fold_journal
from mappa.store.team_record import TEAM_EVENT, TeamRecord
from mappa_core.errors import ReplayError, RunError
from mappa_core.files import fsync_path, storage_errors
from mappa_core.records import Label, Step, Task, Trajectory, Usage, Verdict

T = TypeVar("T")

_RUN_ID = re.compile("[0-9a-f]{32}")
_NOTE = "note/"
"""Prefix of the names of notes in the table meta."""
REOPENED_EVENT = "reopened"  # A play of a log went on, and its verdicts, whose usage this holds, were taken back.
ENGINE_LOST_EVENT = "engine_lost"  # The run went on with a new engine, or ended.
PROCESS_LOST_EVENT = "process_lost"  # The engine replaced one of its processes and went on.
TRANSPORT_LOST_EVENT = "transport_lost"  # What calls a provider broke or hung, and was replaced.
PROMPT_EVENT = "prompt"  # The text of an agent's prompt and its version.
MEMORY_EVENT = "memory"  # Bytes of the run's processes at their peak, after an iteration.
PROMPT_ROUND_EVENT = "prompt_round"  # All prompts by agent, in use from an iteration on.
_PAID_USAGE = """
SELECT json_extract(body, '$.usage.calls'), json_extract(body, '$.usage.usd') FROM verdicts
WHERE json_extract(body, '$.usage') IS NOT NULL AND NOT json_extract(body, '$.replayed')
UNION ALL
SELECT json_extract(body, '$.completion.usage.calls'), json_extract(body, '$.completion.usage.usd') FROM steps
WHERE json_extract(body, '$.completion.usage') IS NOT NULL
UNION ALL
SELECT json_extract(body, '$.usage.calls'), json_extract(body, '$.usage.usd') FROM events
WHERE json_extract(body, '$.usage') IS NOT NULL
"""
"""Calls and US dollars of every verdict, action and proposal from a provider; NULL if the price is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedTrajectory:
    """A trajectory that an earlier process began, as far as it is recorded."""

    trajectory: Trajectory
    finished: bool


class Store:
    """The only writer of a run's database; all methods but `flush` must be called from one thread.

    A run that resumes from a checkpoint repeats what was recorded after it: writing the same step or verdict again is a
    no-op, a different one under the same id raises ReplayError. Storage faults raise RunError.

    With `scratch`, a local folder, the live database lies there and `path`, which may be on a network file system, is
    a copy that `flush` renews. `generation` counts the writers of `path`: after a kill the live database is reused,
    unless another machine has written `path` since.
    """

    def __init__(self, path: Path, *, scratch: Path | None = None) -> None:
        self.path = path
        self._database = _open_live(path, scratch)

    @staticmethod
    def create(path: Path) -> None:
        """Create an empty database. Raises RunError if it exists or the storage fails."""
        with closing(Database.create(path)) as database:
            fold_journal(database.connection)

    @property
    def run(self) -> str:
        """Id of the run, 32 hex digits; independent of the name and place of its folder."""
        identity: str = self._database.meta("run")
        return identity

    @contextmanager
    def together(self) -> Iterator[None]:
        """Commit all that is recorded inside at once, at the end: after a kill it is there as a whole or not at all."""
        with self._database.transaction():
            yield

    def set_note(self, name: str, value: Any) -> None:
        """Keep a JSON value that a command needs again when it goes on, in place of the former one of this name; None
        removes that."""
        with self._database.transaction() as connection:
            if value is None:
                connection.execute("DELETE FROM meta WHERE name = ?", (_NOTE + name,))
            else:
                text = msgspec.json.encode(value).decode()
                connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (_NOTE + name, text))

    def note(self, name: str, kind: type[T]) -> T | None:
        """Return the note of a name, if there is one. Raises RunError if it is damaged."""
        for (text,) in self._database.rows("SELECT value FROM meta WHERE name = ?", _NOTE + name):
            with self._database.damage_reported():
                return msgspec.json.decode(text, type=kind)
        return None

    def notes(self, prefix: str, kind: type[T]) -> dict[str, T]:
        """Return all notes whose names begin so, by the rest of the name. Raises as `note`."""
        begin = _NOTE + prefix
        rows = self._database.rows(
            "SELECT name, value FROM meta WHERE name >= ? AND name < ?", begin, f"{begin}\U0010ffff"
        )
        with self._database.damage_reported():
            return {name.removeprefix(begin): msgspec.json.decode(text, type=kind) for name, text in rows}

    def begin_trajectory(self, split: str, trajectory_id: str, task: Task, sample: int, iteration: int) -> None:
        """Record the start of a trajectory. If already recorded, task, sample and iteration must be the same."""
        with self._database.transaction() as connection:
            text = self._database.pack(task)
            row = (trajectory_id, split, iteration, sample, task.id, task.stratum, text)
            added = connection.execute(
                "INSERT INTO trajectories (id, split, iteration, sample, task_id, stratum, task) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
                row,
            )
            if not added.rowcount:
                query = "SELECT id, split, iteration, sample, task_id, stratum, task FROM trajectories WHERE id = ?"
                self._refuse_other(f"trajectory {trajectory_id}", query, (trajectory_id,), row)

    def reopen_trajectory(self, former: str, trajectory: Trajectory, labellers: Collection[str]) -> tuple[Step, ...]:
        """Take back what was recorded under the id `former` of a play whose log went on since: its steps, which are
        returned, with their verdicts, what `labellers` said of it and labels of steps that it has no more. It becomes
        `trajectory`, the newest one, whose steps are recorded anew."""
        kept = {"", *(step.id for step in trajectory.steps)}
        with self._database.transaction() as connection:
            steps, usages = load_steps(self._database, former), self._paid_for(former)
            labels = self._database.rows("SELECT rowid, step, labeller FROM labels WHERE trajectory = ?", former)
            gone = [
                (row,)
                for row, step, labeller in labels
                if former != trajectory.id or labeller in labellers or step not in kept
            ]
            connection.executemany("DELETE FROM labels WHERE rowid = ?", gone)
            connection.execute("DELETE FROM steps WHERE trajectory = ?", (former,))
            task = trajectory.task
            named = (trajectory.id, trajectory.sample, task.id, task.stratum, self._database.pack(task), former)
            connection.execute(
                "UPDATE trajectories SET number = (SELECT max(number) + 1 FROM trajectories), id = ?, sample = ?, "
                "task_id = ?, stratum = ?, task = ?, finished = 0, outcome = NULL, error = NULL, seconds = NULL "
                "WHERE id = ?",
                named,
            )
            for usage in usages:
                self.record_event(REOPENED_EVENT, trajectory=trajectory.id, usage=usage)
        return steps

    def _paid_for(self, trajectory_id: str) -> list[Usage]:
        """The usages of the verdicts on a trajectory that were paid for: that was money, whatever becomes of them."""
        verdicts = load_verdicts(self._database, trajectory_id)
        return [verdict.usage for verdict in verdicts if verdict.usage is not None and not verdict.replayed]

    def next_sample(self, prefix: str) -> int:
        """The number after the samples of those trajectories whose ids begin with `prefix`, which ends in a slash."""
        query = "SELECT max(sample) + 1 FROM trajectories WHERE id > ? AND id < ?"
        return self._database.rows(query, prefix, after_prefix(prefix))[0][0] or 0

    def find_task(self, prefix: str) -> Task | None:
        """Return the task of the first trajectory whose id begins with `prefix`, which ends in a slash."""
        query = "SELECT task FROM trajectories WHERE id > ? AND id < ? ORDER BY id LIMIT 1"
        rows = self._database.rows(query, prefix, after_prefix(prefix))
        return unpack_task(self._database, rows[0][0]) if rows else None

    def record_step(self, trajectory_id: str, step: Step) -> None:
        """Record a finished action. Its trajectory must have begun."""
        tokens = step.completion.tokens
        with self._database.transaction() as connection:
            body = self._database.pack(step)
            place = (step.id, trajectory_id, step.position, step.agent, step.turn, step.policy)
            sampled = (None if tokens is None else len(tokens), step.completion.finish, body)
            query = "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"
            added = connection.execute(query, place + sampled)
            if not added.rowcount:
                query = "SELECT trajectory, body FROM steps WHERE id = ?"
                self._refuse_other(f"step {step.id}", query, (step.id,), (trajectory_id, body))

    def record_verdict(self, verdict: Verdict) -> None:
        """Record a verdict on a recorded step."""
        judgement = (verdict.coach, verdict.phase, verdict.status, verdict.score, verdict.blame)
        with self._database.transaction() as connection:
            added = connection.execute(
                "INSERT INTO verdicts (number, step, id, coach, phase, status, score, blame, body) "
                "VALUES ((SELECT count(*) FROM verdicts WHERE step = ?1), ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) "
                "ON CONFLICT DO NOTHING",
                (verdict.step, verdict.id, *judgement, self._database.pack(verdict)),
            )
            if not added.rowcount:
                # Not the whole body: seconds and wording may differ when a coach is asked again.
                query = "SELECT coach, phase, status, score, blame FROM verdicts WHERE step = ? AND id = ?"
                self._refuse_other(f"verdict {verdict.id}", query, (verdict.step, verdict.id), judgement)

    def record_label(self, label: Label) -> None:
        """Record a label of a recorded trajectory; a labeller says one thing of each kind about a step."""
        key = (label.trajectory, label.step or "", label.kind, label.labeller)
        with self._database.transaction() as connection:
            body = self._database.pack(label)
            added = connection.execute("INSERT OR IGNORE INTO labels VALUES (?, ?, ?, ?, ?)", (*key, body))
            if not added.rowcount:
                query = "SELECT body FROM labels WHERE (trajectory, step, kind, labeller) = (?, ?, ?, ?)"
                self._refuse_other(f"label of {label.step or label.trajectory}", query, key, (body,))

    def replace_label(self, label: Label) -> None:
        """Record a label of guilt in place of those that its labeller gave the trajectory before: people may change
        their minds, unlike coaches, whose verdicts are what a run learned from."""
        with self._database.transaction() as connection:
            same = (label.trajectory, label.kind, label.labeller)
            connection.execute("DELETE FROM labels WHERE (trajectory, kind, labeller) = (?, ?, ?)", same)
            key = (label.trajectory, label.step or "", label.kind, label.labeller)
            connection.execute("INSERT INTO labels VALUES (?, ?, ?, ?, ?)", (*key, self._database.pack(label)))

    def _refuse_other(self, what: str, query: str, key: tuple[str, ...], row: tuple[Any, ...]) -> None:
        if self._database.rows(query, *key) != [row]:
            raise ReplayError(
                f"{self.path}: the {what} is recorded already, and it is another one. Records never change: if this is "
                "a resume, the code, a setting or a library differs from when it was recorded"
            )

    def end_trajectory(self, trajectory: Trajectory) -> None:
        """Record outcome, error and seconds of a trajectory that ended; its steps and verdicts are already recorded."""
        with self._database.transaction() as connection:
            error = None if trajectory.error is None else self._database.pack(trajectory.error)
            outcome = self._database.pack(trajectory.outcome)
            ended = connection.execute(
                "UPDATE trajectories SET finished = 1, outcome = ?, error = ?, seconds = ? WHERE id = ?",
                (outcome, error, trajectory.seconds, trajectory.id),
            )
            if not ended.rowcount:
                raise ValueError(f"{self.path}: the trajectory {trajectory.id} ends but never began")

    def record_iteration(self, report: IterationReport) -> None:
        """Record the figures of an iteration; replaces those of an earlier attempt."""
        with self._database.transaction() as connection:
            row = (report.iteration, self._database.pack(report))
            connection.execute("INSERT OR REPLACE INTO iterations VALUES (?, ?)", row)

    def iterations(self) -> list[IterationReport]:
        return load_iterations(self._database)

    def record_event(self, kind: str, **body: Any) -> None:
        """Record an event; `body` holds JSON values and records."""
        with self._database.transaction() as connection:
            row = (time.time(), kind, self._database.pack(body))
            connection.execute("INSERT INTO events (time, kind, body) VALUES (?, ?, ?)", row)

    def record_team(self, team: TeamRecord) -> None:
        """Record the team; of several records the last counts."""
        self.record_event(TEAM_EVENT, **{each.name: getattr(team, each.name) for each in fields(team)})

    def events(self, kind: str) -> list[Event]:
        return load_events(self._database, kind)

    def load_recorded(self, split: str, iteration: int) -> dict[str, RecordedTrajectory]:
        """Trajectories of an iteration that this or an earlier process began, by id."""
        where, values = where_equal(split=split, iteration=iteration)
        recorded = {}
        for row in self._database.rows(f"{SELECT_TRAJECTORY} {where} ORDER BY rowid", *values):
            trajectory = with_actions(self._database, read_trajectory(self._database, row))
            recorded[trajectory.id] = RecordedTrajectory(trajectory=trajectory, finished=bool(row[-1]))
        return recorded

    def paid_usages(self) -> list[Usage]:
        """Usage of every recorded verdict, action and proposal from a provider: calls and US dollars."""
        return [Usage(calls=calls, usd=usd) for calls, usd in self._database.rows(_PAID_USAGE)]

    def flush(self) -> None:
        """Sync all writes to disk, and renew the copy at `path` of a database in `scratch`. Any thread may call it."""
        if self._database.path != self.path:
            # A connection of its own, because the store's belongs to another thread.
            with closing(Database.open(self._database.path, write=True)) as live:
                # Before the copy, so that both hold the same number and a resume takes the live one.
                _increment_generation(live)
                live.copy(self.path)
        else:
            # With `synchronous = NORMAL` all that is not synced is in the journal.
            with storage_errors(self.path):
                fsync_path(self.path.with_name(f"{self.path.name}-wal"))

    def close(self) -> None:
        """Flush and close the database: a single file is left, which can be copied and read anywhere."""
        self.flush()
        fold_journal(self._database.connection)
        self._database.close()
        # Only now: if anything above failed, the live database holds what the copy lacks.
        if self._database.path != self.path:
            self._database.path.unlink()


def _open_live(path: Path, scratch: Path | None) -> Database:
    if scratch is None:
        database = Database.open(path, write=True)
        # A live database of this run that another machine still has in its scratch is out of date from now on.
        _increment_generation(database)
        return database
    with closing(Database.open(path, write=False)) as copy:
        with storage_errors(scratch):
            scratch.mkdir(parents=True, exist_ok=True)
        run, generation = copy.check((copy.meta("run"), copy.meta("generation")), tuple[str, int])
        # It becomes a name of a file.
        if not _RUN_ID.fullmatch(run):
            raise RunError(f"{path} is damaged: the id of its run is {run[:80]!r}")
        live = scratch / f"{run}.db"
        if not _is_current(live, generation):
            # With its journal: SQLite would apply an old one to the new file.
            for leftover in (live, live.with_name(f"{live.name}-wal"), live.with_name(f"{live.name}-shm")):
                leftover.unlink(missing_ok=True)
            copy.copy(live)
    return Database.open(live, write=True)


def _is_current(live: Path, generation: int) -> bool:
    if not live.exists():
        return False
    with closing(Database.open(live, write=False)) as database:
        return bool(database.meta("generation") >= generation)


def _increment_generation(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute("UPDATE meta SET value = value + 1 WHERE name = 'generation'")
