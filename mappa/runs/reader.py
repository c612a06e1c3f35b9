"""Reader of a run, usable while the run writes."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from mappa.config.yaml_io import MAX_CONFIG_BYTES, parse_origins, parse_yaml
from mappa.runs.html_table import html_table, html_text
from mappa.runs.rows import EvaluationRow, RaisedWarning, StepRow, TrajectoryRow, TrajectoryStatus, VerdictRow
from mappa.runs.table import RolloutTable, Table
from mappa.session.eval_split import EvalPart, in_selection_split
from mappa.store import queries
from mappa.store.checkpoint import Checkpoints
from mappa.store.folder import CHECKPOINTS, CONFIG, FILES, list_run_folders
from mappa.store.iteration_report import HealthWarning, IterationReport
from mappa.store.iterations import load_iterations, load_latest_iteration
from mappa.store.schema import DATABASE_NAME, Database
from mappa.store.summary import SUMMARY_NAME, Summary, read_summary
from mappa.store.team_record import TEAM_EVENT, TeamRecord
from mappa.store.writer import MEMORY_EVENT, PROMPT_EVENT
from mappa_core.config.layers import iter_leaves
from mappa_core.errors import ConfigError, RunError
from mappa_core.files import damage_reported, has_file, read_text
from mappa_core.records import Label, Step, Task, Trajectory, Verdict
from mappa_core.redaction import clean_line

_STATUS = "CASE WHEN finished = 0 THEN 'open' WHEN error IS NULL THEN 'done' ELSE 'failed' END"
_SELECT_ROW = (
    f"SELECT id, split, iteration, sample, task_id, stratum, {_STATUS}, "
    "(SELECT count(*) FROM steps WHERE trajectory = trajectories.id), outcome, error, seconds FROM trajectories"
)
_ACTION = "t.split, t.iteration, t.id, t.task_id, t.stratum, CASE WHEN t.error IS NULL THEN t.outcome END"
_STEPS = "trajectories t CROSS JOIN steps s ON s.trajectory = t.id"
_VERDICTS = f"SELECT {_ACTION}, s.agent, s.position, v.body FROM {_STEPS} CROSS JOIN verdicts v ON v.step = s.id"
_COUNTING = "SELECT v.body FROM verdicts v WHERE v.step = s.id ORDER BY v.score IS NULL, v.number DESC LIMIT 1"
"""The last verdict with a score; without one, the last verdict."""
STATUSES: tuple[TrajectoryStatus, ...] = ("done", "failed", "open")


class RunReader(AbstractContextManager["RunReader"]):
    """Reads what a run has recorded so far. Never writes and never waits for the run. Closed by `with` or `close`.

    Raises RunError if the folder is not a run folder, or its database is of another schema, damaged or not readable.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not has_file(self.folder, DATABASE_NAME):
            inside = list_run_folders(self.folder)
            if inside:
                raise RunError(f"{folder} is not a run folder, it holds some: open one of them, such as {inside[-1]}")
        self._database = Database.open(self.folder / DATABASE_NAME, write=False)

    def __repr__(self) -> str:
        counted = {split: sum(self.counts(split).values()) for split in ("train", "eval")}
        rollouts = ", ".join(f"{count} {split}" for split, count in counted.items() if count)
        return f"RunReader({str(self.folder)!r}): {self._describe_state()}; rollouts: {rollouts or 'none'}"

    def _repr_html_(self) -> str:
        """The rollouts by split and how they ended, for notebooks."""
        counts = {split: Counter(self.counts(split)) for split in ("train", "eval")}
        rows = [(split, *(str(found[status]) for status in STATUSES)) for split, found in counts.items() if found]
        state = html_text(f"{self.folder}: {self._describe_state()}")
        return f"<div>{state}</div>{html_table('rollouts', ('', *STATUSES), rows)}"

    def _describe_state(self) -> str:
        """Recipe, seed and status as far as the run has written them."""
        if (found := self.summary) is None:
            return "no summary yet"
        after = f"{found.iterations} iteration{'' if found.iterations == 1 else 's'}"
        return clean_line(f"{found.plugin}/{found.recipe}, seed {found.seed}, {found.status} after {after}")

    @property
    def config(self) -> str:
        """The text of config.yaml: every setting with its origin."""
        return read_text(self.folder, CONFIG, max_bytes=MAX_CONFIG_BYTES)

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The value of every setting, by dotted key. Raises RunError if they cannot be read."""
        try:
            tree = parse_yaml(self.config, str(self.folder / CONFIG))
        except ConfigError as error:
            raise RunError(f"{error}") from error
        values = {key: node.plain for key, node in iter_leaves(tree)}
        return queries.StoredValues(values, f"{self.folder / CONFIG}")

    @property
    def counts_overflows(self) -> bool:
        """Whether the run counts training rollouts that outgrew the window as unsolved (`credit.overflow`)."""
        return self.settings.get("credit.overflow") == "unsolved"

    @property
    def origins(self) -> Mapping[str, str]:
        """Where the value of every setting comes from, by dotted key: `default`, or the layer that set it."""
        tree, lines = parse_yaml(self.config, ""), parse_origins(self.config)
        return {key: lines.get(int(node.origin.rpartition(":")[2]), "") for key, node in iter_leaves(tree)}

    @property
    def summary(self) -> Summary | None:
        """The contents of summary.json; None before the run has written it. Raises RunError if it is damaged."""
        return read_summary(self.folder) if has_file(self.folder, SUMMARY_NAME) else None

    @property
    def files(self) -> Path:
        """The folder of the files that agents wrote, by content hash."""
        return self.folder / FILES

    @property
    def checkpoints(self) -> Mapping[int, Path]:
        """The folders of the checkpoints, by iteration; those that only a mirror holds are left out."""
        checkpoints = Checkpoints(self.folder / CHECKPOINTS)
        return {iteration: checkpoints.path(iteration) for iteration in checkpoints.iterations()}

    @property
    def trajectories(self) -> RolloutTable[TrajectoryRow]:
        """Trajectories in the order in which they began."""
        return RolloutTable(self._trajectories)

    @property
    def steps(self) -> RolloutTable[StepRow]:
        """Actions in the order of their trajectories, each with the verdict that counts."""
        return RolloutTable(self._steps)

    @property
    def verdicts(self) -> RolloutTable[VerdictRow]:
        """Verdicts in the order of the actions, on one action by arrival."""
        return RolloutTable(self._verdicts)

    @property
    def iterations(self) -> Table[IterationReport]:
        """Figures of every iteration."""
        return Table(lambda: load_iterations(self._database))

    @property
    def evaluations(self) -> Table[EvaluationRow]:
        """Evaluations in the order in which they were made; of those that a resume repeated, the last."""
        return Table(self._evaluations)

    def _evaluations(self) -> list[EvaluationRow]:
        with self._database.damage_reported():
            rows = [msgspec.convert(dict(event.body), EvaluationRow) for event in self.events("evaluation")]
        # Later ones replace earlier ones in place, so the order is that of the first.
        return list({(row.part, row.iteration): row for row in rows}.values())

    @property
    def team(self) -> TeamRecord:
        """The team as the run recorded it when it last started. Raises RunError if it has recorded none."""
        recorded = self.events(TEAM_EVENT)
        if not recorded:
            raise RunError(
                f"{self.folder} has no record of its team, which a run writes when it starts: it did not start, or "
                "another version of Mappa wrote it; use that version"
            )
        with self._database.damage_reported():
            return msgspec.convert(dict(recorded[-1].body), TeamRecord)

    @property
    def prompts(self) -> Mapping[str, Mapping[str, str]]:
        """Texts of each agent's prompt by the version that its steps refer to, in the order of their first use."""
        texts: dict[str, dict[str, str]] = {}
        with self._database.damage_reported():
            for event in self.events(PROMPT_EVENT):
                texts.setdefault(event.body["agent"], {})[event.body["version"]] = event.body["text"]
        return texts

    def _trajectories(self, split: str | None, iteration: int | None) -> Iterator[TrajectoryRow]:
        where, values = _rollout_filter(split, iteration)
        return map(self._row, self._database.stream(f"{_SELECT_ROW} {where} ORDER BY rowid", *values))

    def _steps(self, split: str | None, iteration: int | None) -> Iterator[StepRow]:
        where, values = _rollout_filter(split, iteration)
        query = f"SELECT {_ACTION}, s.body, ({_COUNTING}) FROM {_STEPS} {where} ORDER BY t.rowid, s.position"
        for *place, step, verdict in self._database.stream(query, *values):
            judged = None if verdict is None else self._database.unpack(Verdict, verdict)
            yield StepRow(**self._action(place), step=self._database.unpack(Step, step), verdict=judged)

    def _verdicts(self, split: str | None, iteration: int | None) -> Iterator[VerdictRow]:
        where, values = _rollout_filter(split, iteration)
        query = f"{_VERDICTS} {where} ORDER BY t.rowid, s.position, v.number"
        for *place, agent, position, body in self._database.stream(query, *values):
            verdict = self._database.unpack(Verdict, body)
            agent, position = self._database.check((agent, position), tuple[str, int])
            yield VerdictRow(**self._action(place), agent=agent, position=position, verdict=verdict)

    def latest_verdicts(self, split: str, *, limit: int | None) -> list[VerdictRow]:
        """At most `limit` verdicts (None: all) on finished trajectories of a split, the newest trajectories first.
        Their texts and members are left out, which `verdict` gives."""
        names = ("step", "id", "coach", "phase", "status", "score", "blame", "seconds", "category")
        query = (
            f"SELECT {_ACTION}, s.agent, s.position, v.step, v.id, v.coach, v.phase, v.status, v.score, v.blame, "
            f"json_extract(v.body, '$.seconds'), json_extract(v.body, '$.category') "
            f"FROM {_STEPS} CROSS JOIN verdicts v ON v.step = s.id "
            # The unary plus stops SQLite from using an index by which it would first sort all trajectories.
            "WHERE +t.split = ? AND t.finished ORDER BY t.rowid DESC, s.position, v.number LIMIT ?"
        )
        rows = []
        for row in self._database.rows(query, split, -1 if limit is None else limit):  # SQLite: below 0 is no limit
            place, (agent, position), values = row[:6], row[6:8], row[8:]
            verdict = self._database.check(dict(zip(names, values, strict=True)), Verdict)
            agent, position = self._database.check((agent, position), tuple[str, int])
            rows.append(VerdictRow(**self._action(place), agent=agent, position=position, verdict=verdict))
        return rows

    def verdict(self, step: str, identity: str) -> Verdict:
        """One verdict. Raises RunError for an unknown id."""
        (body,) = self._known("verdict", "SELECT body FROM verdicts WHERE id = ? AND step = ?", identity, step)
        return self._database.unpack(Verdict, body)

    def _action(self, place: Sequence[Any]) -> dict[str, Any]:
        *found, outcome = place
        columns = ("split", "iteration", "trajectory", "task", "stratum")
        names = self._database.check(found, tuple[str, int, str, str, str])
        return {**dict(zip(columns, names, strict=True)), "outcome": queries.load_outcome(self._database, outcome)}

    def query(self, sql: str, *values: Any) -> list[Any]:
        """Rows of an SQL query over `run.db`, read-only, with `?` for values; docs/reference/store.md has the tables.
        Raises RunError if the query is wrong or the database cannot be read."""
        try:
            return self._database.rows(sql, *values)
        except sqlite3.Error as error:
            raise RunError(f"{self._database.path}: {error}: {sql}") from error

    def number(self, identity: str) -> int:
        """Position of a trajectory among all of the run. Raises RunError for an unknown id."""
        (number,) = self._known("trajectory", "SELECT rowid FROM trajectories WHERE id = ?", identity)
        return int(number)

    def row(self, identity: str) -> TrajectoryRow:
        """One trajectory without its steps. Raises RunError for an unknown id."""
        return self._row(self._known("trajectory", f"{_SELECT_ROW} WHERE id = ?", identity))

    def task(self, trajectory: str) -> Task:
        """The task of a trajectory; of its files only the names. Raises RunError for an unknown id."""
        (body,) = self._known("trajectory", "SELECT task FROM trajectories WHERE id = ?", trajectory)
        return queries.unpack_task(self._database, body)

    def step(self, identity: str) -> Step:
        """One action. Raises RunError for an unknown id."""
        (body,) = self._known("step", "SELECT body FROM steps WHERE id = ?", identity)
        return self._database.unpack(Step, body)

    def _known(self, what: str, query: str, *key: str) -> Any:
        rows = self._database.rows(query, *key)
        if not rows:
            raise RunError(f"{self._database.path} has no {what} {' on '.join(map(repr, key))}")
        return rows[0]

    def _row(self, row: Sequence[Any]) -> TrajectoryRow:
        *found, outcome, error, seconds = row
        names = ("id", "split", "iteration", "sample", "task", "stratum", "status", "steps")
        values = self._database.check(found, tuple[str, str, int, int, str, str, TrajectoryStatus, int])
        return TrajectoryRow(
            **dict(zip(names, values, strict=True)),
            outcome=queries.load_outcome(self._database, outcome),
            error=queries.load_error(self._database, error),
            seconds=self._database.check(seconds, float | None),
        )

    def trajectory(self, identity: str) -> Trajectory:
        """One trajectory with its steps and verdicts, as far as recorded, and of its task's files the names. Raises
        RunError for an unknown id."""
        with self._database.snapshot():
            row = self._known("trajectory", f"{queries.SELECT_TRAJECTORY} WHERE id = ?", identity)
            trajectory = queries.with_actions(self._database, queries.read_trajectory(self._database, row))
            return replace(trajectory, counterfactuals=queries.load_counterfactuals(self._database, identity))

    def outcomes(self, iteration: int, part: EvalPart = "all", *, split: str = "eval") -> list[Trajectory]:
        """Finished trajectories of an iteration, by default held-out ones, without steps and verdicts, in canonical
        order. Of those of training there is one part, `all`."""
        where = "WHERE split = ? AND iteration = ? AND finished = 1 ORDER BY id"
        rows = self._database.rows(f"{queries.SELECT_TRAJECTORY} {where}", split, iteration)
        trajectories = [queries.read_trajectory(self._database, row) for row in rows]
        if part == "all":
            return trajectories
        # Which part a task belongs to is not recorded, as it follows from its name and the share.
        with damage_reported(self.folder / CONFIG):
            share = float(self.settings["eval.selection"])
        is_wanted = part == "selection"
        return [trajectory for trajectory in trajectories if in_selection_split(trajectory.task, share) == is_wanted]

    def counts(self, split: str | None = None, iteration: int | None = None) -> dict[TrajectoryStatus, int]:
        """Count trajectories by status; a status without any is left out. None means any, as in a table."""
        where, values = _rollout_filter(split, iteration)
        return dict(self._database.rows(f"SELECT {_STATUS}, count(*) FROM trajectories {where} GROUP BY 1", *values))

    def labels(self, trajectory: str | None = None) -> list[Label]:
        """Labels of all trajectories, or of one, in the order in which they were recorded."""
        return queries.load_labels(self._database, trajectory)

    def latest_iteration(self) -> IterationReport | None:
        """Figures of the last iteration; None before the first is done."""
        return load_latest_iteration(self._database)

    def events(self, kind: str | None = None) -> list[queries.Event]:
        """Events in order; `kind` None means all kinds."""
        return queries.load_events(self._database, kind)

    @property
    def warnings(self) -> tuple[RaisedWarning, ...]:
        """Warnings of the policies' health, in order; those of an iteration that a resume repeated appear once."""
        raised = {}
        with self._database.damage_reported():
            for event in self.events("health"):
                iteration = event.body["iteration"]
                for warning in msgspec.convert(event.body["warnings"], tuple[HealthWarning, ...]):
                    raised[iteration, warning.rule, warning.policy] = RaisedWarning(
                        iteration=iteration, rule=warning.rule, policy=warning.policy, text=str(warning)
                    )
            return tuple(raised[key] for key in sorted(raised))

    @property
    def peak_memory(self) -> int | None:
        """Largest peak memory of the run's processes together, in bytes, without programs of agents; None where it was
        not recorded."""
        with self._database.damage_reported():
            peaks = [msgspec.convert(event.body["peak"], int) for event in self.events(MEMORY_EVENT)]
        return max(peaks, default=None)

    def close(self) -> None:
        self._database.close()

    def __exit__(self, *_: object) -> None:
        self.close()


def open(folder: Path | str) -> RunReader:  # noqa: A001 - read as `runs.open`
    """Open the run in `folder` for reading. Raises RunError as `RunReader` does."""
    return RunReader(folder)


def _rollout_filter(split: str | None, iteration: int | None) -> tuple[str, list[Any]]:
    """A WHERE clause for trajectories. Split None: of any split of tasks, and so no counterfactual rollouts."""
    if split is not None:
        return queries.where_equal(split=split, iteration=iteration)
    clause, values = queries.where_equal(iteration=iteration)
    return f"{clause} {'AND' if clause else 'WHERE'} split IN ('train', 'eval')", values
