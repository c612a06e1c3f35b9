"""The search index of one run, made when it is first searched and kept up to date after that.

It lies in a temporary database of this process, since a run folder may be read-only, and the writer of a run has other
things to do. `run.db` is attached for as long as one search takes: it may then be closed, copied or deleted.

    facets   trajectory, name, value         values by which trajectories can be filtered, by `number` of a trajectory
    texts    task, said, printed, judged     words of ended trajectories, by `number`, if SQLite has FTS5

Facets of a trajectory, whose values are names or numbers:

    stratum            of the task
    agent              that acted
    score/<agent>      points 0-10 of every scored verdict on an action of the agent
    blame              an agent that a verdict blames
    disagreement       points between the highest and the lowest member of a verdict
    verdict            `failed` or `abstained`: a verdict without a score
    breach             the kind of a breach of the hand-off contract
    outcome/<name>     a figure of the outcome
    failure            the kind of error with which it ended
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

from mappa.store import queries
from mappa.store.schema import Database, check_run_schema
from mappa_core.records import NOBODY, Trajectory
from mappa_core.safe_sqlite import attach, connect_temporary, database_errors

MAX_INDEXES = 16
"""Runs whose index is kept: those that were searched last."""
_TABLES = """
CREATE TABLE facets (trajectory INTEGER, name TEXT, value, PRIMARY KEY (trajectory, name, value)) WITHOUT ROWID;
CREATE INDEX facets_by_value ON facets (name, value);
CREATE TABLE unsettled (trajectory INTEGER PRIMARY KEY, error TEXT);
CREATE TABLE unread (trajectory INTEGER PRIMARY KEY);
"""
# `unsettled` holds trajectories that did not end or, with their `error`, failed: a lost one goes on after a resume.
# `unread` are ended ones whose words are not in `texts` yet.
_TEXTS = """
CREATE VIRTUAL TABLE texts USING fts5(
    task, said, printed, judged, content = '', tokenize = "unicode61 tokenchars '_'"
);
"""
_OF_STEPS = "FROM run.steps s JOIN run.trajectories t ON t.id = s.trajectory"
_OF_VERDICTS = f"{_OF_STEPS} JOIN run.verdicts v ON v.step = s.id"
_FACETS = {
    "trajectories": ("SELECT number, 'stratum', stratum FROM run.trajectories WHERE number > ?",),
    "steps": (
        f"SELECT t.number, 'agent', s.agent {_OF_STEPS} WHERE s.rowid > ?",
        f"SELECT t.number, 'breach', json_extract(breach.value, '$.kind') {_OF_STEPS}, "
        "json_each(s.body, '$.breaches') breach WHERE s.rowid > ?",
    ),
    "verdicts": (
        f"SELECT t.number, 'verdict', v.status {_OF_VERDICTS} WHERE v.rowid > ? AND v.score IS NULL",
        f"SELECT t.number, 'score/' || s.agent, v.score {_OF_VERDICTS} WHERE v.rowid > ? AND v.score IS NOT NULL",
        f"SELECT t.number, 'blame', v.blame {_OF_VERDICTS} WHERE v.rowid > ? AND v.blame <> '{NOBODY}'",
        "SELECT t.number, 'disagreement', max(json_extract(member.value, '$.score')) - "
        f"min(json_extract(member.value, '$.score')) {_OF_VERDICTS}, json_each(v.body, '$.members') member "
        "WHERE v.rowid > ? GROUP BY v.rowid HAVING count(json_extract(member.value, '$.score')) > 1",
    ),
}
"""Queries of the facets of the rows of a table after a rowid."""
_ENDINGS = """
SELECT t.number, t.outcome, t.error, u.error IS NOT NULL
FROM unsettled u JOIN run.trajectories t ON t.number = u.trajectory
WHERE t.finished AND (u.error IS NULL OR u.error IS NOT t.error)
"""


@lru_cache(maxsize=MAX_INDEXES)
def open_index(path: Path, run: str) -> SearchIndex:
    """The index of the database at `path`, absolute, of the run with the id `run`: the same one for every request of
    the viewer, which opens the run anew each time."""
    return SearchIndex(path)


class SearchIndex:
    """Any thread may use it; one at a time does. Raises RunError for a damaged run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        connection = connect_temporary()
        self._database = Database(path, connection)
        self.has_words = bool(self._database.rows("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'"))
        connection.executescript(f"PRAGMA synchronous = OFF; {_TABLES} {_TEXTS if self.has_words else ''}")
        self._last_row = dict.fromkeys(_FACETS, 0)

    def query(self, sql: str, *values: Any, words: bool = False) -> list[Any]:
        """Rows of a query over the index and the tables of `run.db`, after the index was brought up to date; `words`:
        its texts, too, which takes longer."""
        with self._lock, self._attached():
            self._update(words=words)
            return self._database.rows(sql, *values)

    @contextmanager
    def _attached(self) -> Iterator[None]:
        with database_errors(self._path):
            attach(self._database.connection, self._path, "run")
            try:
                # Anew each time: it may be another file than the last one of this name.
                check_run_schema(self._database.connection, self._path, database="run")
                yield
            finally:
                self._execute("DETACH run")

    def _update(self, *, words: bool) -> None:
        self._execute("BEGIN")  # `Database.transaction` would lock `run.db` for writing, too
        try:
            last_row = self._add_rows()
            self._add_endings()
            if words and self.has_words:
                self._add_texts()
            self._execute("COMMIT")
        except BaseException:
            self._execute("ROLLBACK")
            raise
        self._last_row = last_row

    def _add_rows(self) -> dict[str, int]:
        """Add the facets of the rows that tables have gained; return the last row of each."""
        found = {}
        for table, selects in _FACETS.items():
            before = self._last_row[table]
            ((found[table],),) = self._database.rows(f"SELECT coalesce(max(rowid), 0) FROM run.{table}")
            if found[table] > before:
                for select in selects:
                    self._execute(f"INSERT OR IGNORE INTO facets {select}", before)
        begun = "SELECT number, NULL FROM run.trajectories WHERE number > ?"
        self._execute(f"INSERT INTO unsettled {begun}", self._last_row["trajectories"])
        return found

    def _add_endings(self) -> None:
        for number, outcome, error, ended_before in self._database.rows(_ENDINGS):
            if ended_before:
                self._forget_ending(number)
            figures = queries.load_outcome(self._database, outcome)
            facets: dict[str, float | str] = {f"outcome/{name}": value for name, value in figures.items()}
            if (failure := queries.load_error(self._database, error)) is not None:
                facets["failure"] = failure.kind
            for name, value in facets.items():
                self._execute("INSERT OR IGNORE INTO facets VALUES (?, ?, ?)", number, name, value)
            self._execute("INSERT OR IGNORE INTO unread VALUES (?)", number)
            if error is None:
                self._execute("DELETE FROM unsettled WHERE trajectory = ?", number)
            else:
                self._execute("UPDATE unsettled SET error = ? WHERE trajectory = ?", error, number)

    def _forget_ending(self, number: int) -> None:
        ending = "trajectory = ? AND (name = 'failure' OR name LIKE 'outcome/%')"
        self._execute(f"DELETE FROM facets WHERE {ending}", number)
        if self.has_words and not self._database.rows("SELECT 1 FROM unread WHERE trajectory = ?", number):
            # FTS5 gives up a single row only for the words that it was made of. Few trajectories end twice.
            self._execute("DROP TABLE texts")
            self._execute(_TEXTS)
            self._execute("INSERT OR IGNORE INTO unread SELECT number FROM run.trajectories WHERE finished")

    def _add_texts(self) -> None:
        for (number,) in self._database.rows("SELECT trajectory FROM unread ORDER BY trajectory"):
            (row,) = self._database.rows(f"{queries.SELECT_TRAJECTORY} WHERE number = ?", number)
            whole = queries.with_actions(self._database, queries.read_trajectory(self._database, row))
            query = "INSERT INTO texts (rowid, task, said, printed, judged) VALUES (?, ?, ?, ?, ?)"
            self._execute(query, number, *_texts(whole))
        self._execute("DELETE FROM unread")

    def _execute(self, sql: str, *values: Any) -> None:
        self._database.connection.execute(sql, values)


def _texts(trajectory: Trajectory) -> tuple[str, str, str, str]:
    """Texts of the columns of `texts`: task; replies with reasoning; tool output; reasons of coaches."""
    said = [text for step in trajectory.steps for text in (step.reply.reasoning, step.completion.text) if text]
    results = [result for step in trajectory.steps for result in step.results]
    printed = [text for result in results for text in (result.stdout, result.stderr) if text]
    # Those of `mappa judge` may come before or after the first search, which is to make no difference.
    own = [verdict for verdict in trajectory.verdicts if verdict.phase != "again"]
    judged = [text for verdict in own for text in (verdict.reasoning, verdict.error) if text]
    return _storable([trajectory.task.prompt]), _storable(said), _storable(printed), _storable(judged)


def _storable(texts: Sequence[str]) -> str:
    """Join texts and replace characters that UTF-8 lacks (unpaired surrogates)."""
    return "\n".join(texts).encode(errors="replace").decode()
