"""Record of batches under way: `batches.db` in a folder, so that a process takes up what one before it submitted.

It holds names of batches and hashes of questions, no texts: results are fetched from the provider again.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

from mappa_core import RunError
from mappa_core.safe_sqlite import check_schema, connect, database_errors

RECORD_NAME = "batches.db"
LONGEST_KEPT_S = 30 * 86_400.0
"""After so many seconds no provider has the results of a batch any more."""
_TABLES = """
CREATE TABLE batches (
    id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never used again: this process remembers places of forgotten batches
    token TEXT NOT NULL,   -- ours, in the batch
    name TEXT,             -- the provider's; NULL until it has answered
    begun REAL NOT NULL,   -- Unix time, before it was submitted
    calls INTEGER NOT NULL
);
CREATE TABLE calls (
    batch INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE,
    number INTEGER NOT NULL,
    question TEXT NOT NULL,
    handed_out INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (batch, number)
) WITHOUT ROWID;
CREATE INDEX by_question ON calls (question, handed_out, batch, number);
"""

Place = tuple[int, int]
"""A batch in the record, and the number of a call in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBatch:
    """A batch: `name` is the provider's, None if its answer did not arrive."""

    id: int
    token: str
    name: str | None
    begun: datetime
    calls: int

    @property
    def call_ids(self) -> list[str]:
        """Ids of its calls at the provider, by number."""
        return [f"{self.token}-{number}" for number in range(self.calls)]


class BatchRecord:
    """The record in one folder, of one process: its transports share it. A call of the record is claimed at most once
    in a process, so equal questions get replies of their own. Storage faults raise RunError."""

    # A lock of this process on a file is one of the process as a whole.
    _open: ClassVar[dict[Path, BatchRecord]] = {}

    def __init__(self, path: Path) -> None:
        self.path = path
        self._users = 0
        self._claimed: set[Place] = set()
        self._interrupted = False
        with _storage_faults(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = connect(path, "rwc", timeout_s=0.5)
            try:
                self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
                self._connection.execute("PRAGMA foreign_keys = ON")
                ((filled,),) = self._connection.execute("SELECT count(*) FROM sqlite_schema")
                if filled:
                    check_schema(self._connection, path, _TABLES)
                else:
                    self._connection.executescript(f"BEGIN EXCLUSIVE; {_TABLES} COMMIT;")
                self._execute("DELETE FROM batches WHERE begun < ?", time.time() - LONGEST_KEPT_S)
            except BaseException:
                self._connection.close()
                raise

    @classmethod
    def open(cls, folder: Path) -> BatchRecord:
        """Open the record in `folder`, or return the one that this process has open. Each user closes it. Raises
        RunError if another process has it open."""
        path = folder.resolve() / RECORD_NAME
        if path not in cls._open:
            cls._open[path] = cls(path)
        cls._open[path]._users += 1
        return cls._open[path]

    def begin(self, token: str, questions: Sequence[str]) -> RecordedBatch:
        """Record a batch before it is submitted, with its calls claimed."""
        begun = time.time()
        with self._transaction():
            cursor = self._execute(
                "INSERT INTO batches (token, begun, calls) VALUES (?, ?, ?)", token, begun, len(questions)
            )
            assert cursor.lastrowid is not None
            rows = [(cursor.lastrowid, number, question) for number, question in enumerate(questions)]
            self._connection.executemany("INSERT INTO calls (batch, number, question) VALUES (?, ?, ?)", rows)
        self._claimed.update((batch, number) for batch, number, _ in rows)
        return self.batch(cursor.lastrowid)

    def batch(self, number: int) -> RecordedBatch:
        """Return a batch of the record."""
        token, name, begun, calls = self._execute(
            "SELECT token, name, begun, calls FROM batches WHERE id = ?", number
        ).fetchone()
        return RecordedBatch(id=number, token=token, name=name, begun=datetime.fromtimestamp(begun, UTC), calls=calls)

    def set_name(self, batch: int, name: str) -> None:
        """Record the provider's name of a batch."""
        self._execute("UPDATE batches SET name = ? WHERE id = ?", name, batch)

    def find(self, question: str) -> Place | None:
        """Return the call of this question that an earlier process made and `claim` would claim; None if there is
        none."""
        query = "SELECT batch, number FROM calls WHERE question = ? ORDER BY handed_out, batch, number"
        return next((row for row in self._execute(query, question).fetchall() if row not in self._claimed), None)

    def claim(self, question: str) -> Place | None:
        """Claim a call of this question that an earlier process made, one without a known reply first; None if there
        is none."""
        place = self.find(question)
        if place is not None:
            self._claimed.add(place)
        return place

    def give_up(self, place: Place) -> None:
        """End the claim of a caller that no longer waits."""
        self._claimed.discard(place)
        self._interrupted = True

    def interrupt(self) -> None:
        """Keep what was handed out: a caller went away before its call was in a batch, and may have had replies."""
        self._interrupted = True

    def settle(self, *, handed_out: Iterable[Place], failed: Iterable[Place]) -> None:
        """Record replies that were given to their callers, and forget calls that failed: they can be made again."""
        with self._transaction():
            mark = "UPDATE calls SET handed_out = 1 WHERE batch = ? AND number = ?"
            self._connection.executemany(mark, list(handed_out))
            self._connection.executemany("DELETE FROM calls WHERE batch = ? AND number = ?", list(failed))

    def forget(self, batch: int) -> None:
        """Forget a batch that the provider does not have."""
        self._execute("DELETE FROM batches WHERE id = ?", batch)

    def close(self) -> None:
        """Close the record for one user. After the last one it is deleted if every caller got its reply."""
        self._users -= 1
        if self._users:
            return
        del self._open[self.path]
        ((waiting,),) = self._execute("SELECT count(*) FROM calls WHERE NOT handed_out").fetchall()
        self._connection.close()
        if not waiting and not self._interrupted:
            self.path.unlink(missing_ok=True)

    def _execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        with _storage_faults(self.path):
            return self._connection.execute(statement, values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _storage_faults(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


@contextmanager
def _storage_faults(path: Path) -> Iterator[None]:
    try:
        with database_errors(path):
            yield
    except RunError as error:
        # Extended codes have the primary one in their lowest byte.
        if getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            raise RunError(
                f"{path} is in use by another process, whose batches it records: wait for it, or give this one another "
                "folder (coach.cassette.path, beside which it lies, or --cassette)"
            ) from error
        raise
    except (sqlite3.DatabaseError, OSError) as error:
        raise RunError(f"{path}, the record of batches, cannot be read or written: {error}") from error
