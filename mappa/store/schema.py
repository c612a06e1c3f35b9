"""Database `run.db` of a run; `schema.sql` describes its tables."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import msgspec

from mappa_core.codec import pack, unpack
from mappa_core.errors import RunError
from mappa_core.files import damage_reported, fsync_path, has_file, storage_errors
from mappa_core.safe_sqlite import MAX_VALUE_BYTES, check_schema, connect, database_errors

T = TypeVar("T")

DATABASE_NAME = "run.db"
DATABASE_SCHEMA = 1
_META = "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID"
_TABLES = files(__package__).joinpath("schema.sql").read_text("utf-8")
JOURNAL_PAGES = 8000
"""Pages (of 4 KiB) that the journal may hold before a checkpoint: frequent ones cost more than the writes."""
_KNOWN_BLOBS = 100_000
"""Maximum number of stored addresses that a writer caches, to avoid writing blobs again."""
_BATCH_ROWS = 500


class Database:
    """A connection to a `run.db` with a checked schema; packs and unpacks its records."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection
        self._stored: set[str] = set()
        self._is_writing = False

    @classmethod
    def create(cls, path: Path) -> Database:
        """Create a database for writing. Raises RunError if it exists or the storage fails."""
        if os.path.lexists(path):
            raise RunError(f"{path} exists already: choose another folder, or remove it if nothing in it is needed")
        database = cls(path, connect(path, "rwc"))
        with database_errors(path):
            database.connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {DATABASE_SCHEMA}; COMMIT")
            values = [("run", uuid4().hex), ("mappa", version("mappa")), ("generation", 0)]
            database.connection.executemany("INSERT INTO meta VALUES (?, ?)", values)
        database._prepare()
        return database

    @classmethod
    def open(cls, path: Path, *, write: bool) -> Database:
        """Open a database. Raises RunError if it is missing, no run database, of another schema or cannot be opened."""
        if not has_file(path.parent, path.name):
            raise RunError(f"{path.parent} is not a run folder: it has no {path.name}")
        database = cls(path, connect(path, "rw" if write else "ro"))
        try:
            database._check_version()
            check_run_schema(database.connection, path)
            if write:
                database._prepare()
        except BaseException:
            database.connection.close()
            raise
        return database

    def _check_version(self) -> None:
        with database_errors(self.path):
            (schema,) = self.connection.execute("PRAGMA user_version").fetchone()
            if schema == DATABASE_SCHEMA:
                return
            # In its own words, as a view of this name could have any.
            known = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'meta' AND sql = ?"
            if schema < 1 or self.connection.execute(known, (_META,)).fetchone() is None:
                raise RunError(f"{self.path} is no database of a run")
            row = self.connection.execute("SELECT value FROM meta WHERE name = 'mappa'").fetchone()
        writer = "a version of Mappa that it does not name" if row is None else f"Mappa {row[0]}"
        raise RunError(
            f"{self.path} has schema {schema} and was written by {writer}; this is Mappa {version('mappa')}, which "
            f"reads schema {DATABASE_SCHEMA} alone: use the version that wrote it"
        )

    def _prepare(self) -> None:
        with database_errors(self.path):
            # A write-ahead journal, so that readers do not block the writer. It needs memory that processes share,
            # which file systems over a network may lack; SQLite then keeps the former mode and returns it.
            ((mode,),) = self.connection.execute("PRAGMA journal_mode = WAL")
            if mode != "wal":
                raise RunError(
                    f"{self.path}: its file system cannot hold a database that is being written (SQLite's journal "
                    "mode WAL): set store.scratch to a folder on a local disk"
                )
            # Commits are not synced: a kill loses none of them, a power cut those after the last `Store.flush`.
            self.connection.execute("PRAGMA synchronous = NORMAL")
            self.connection.execute(f"PRAGMA wal_autocheckpoint = {JOURNAL_PAGES}")
            self.connection.execute("PRAGMA foreign_keys = ON")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction: committed at the end, rolled back on any error. One inside another is part of it."""
        if self._is_writing:
            yield self.connection
            return
        with database_errors(self.path):
            # The lock of writers is taken here. A transaction that began to read would fail when it came to write, if
            # another process wrote meanwhile, and waiting would not help it.
            self.connection.execute("BEGIN IMMEDIATE")
            self._is_writing = True
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                # Blobs that were stored inside are gone with it.
                self._stored.clear()
                # SQLite itself rolls back on some errors, as on a full disk.
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise
            finally:
                self._is_writing = False

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside see one snapshot, whatever is written meanwhile."""
        with database_errors(self.path):
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                self.connection.execute("ROLLBACK")

    def rows(self, query: str, *values: Any) -> list[Any]:
        with database_errors(self.path):
            return self.connection.execute(query, values).fetchall()

    def stream(self, query: str, *values: Any) -> Iterator[Any]:
        """The rows of a query, a batch in memory at a time."""
        with database_errors(self.path):
            cursor = self.connection.execute(query, values)
            while rows := cursor.fetchmany(_BATCH_ROWS):
                yield from rows

    def meta(self, name: str) -> Any:
        rows = self.rows("SELECT value FROM meta WHERE name = ?", name)
        if not rows:
            raise RunError(f"{self.path} is damaged: its table meta has no {name!r}")
        return rows[0][0]

    def pack(self, record: Any) -> str:
        """Encode a record and store its blobs. Must be called inside `transaction`."""
        blobs: dict[str, bytes] = {}
        text = pack(record, blobs.__setitem__).decode()
        new = {address: data for address, data in blobs.items() if address not in self._stored}
        if new:
            # An address is the hash of the data, so what is there already is the same.
            self.connection.executemany("INSERT INTO blobs VALUES (?, ?) ON CONFLICT DO NOTHING", new.items())
            if len(self._stored) > _KNOWN_BLOBS:
                self._stored.clear()
            self._stored.update(new)
        return text

    def unpack(self, kind: type[T], text: str) -> T:
        """Decode a record. Raises RunError if it is damaged, or one of its blobs is missing."""
        left = MAX_VALUE_BYTES

        def fetch(where: str) -> bytes:
            nonlocal left
            data = self._blob(where)
            # In all: a short text may refer to one large blob a thousand times.
            left -= len(data)
            if left < 0:
                raise RunError(f"{self.path}: a record in it is larger than {MAX_VALUE_BYTES:,} bytes")
            return data

        with self.damage_reported():
            return unpack(kind, text, fetch)

    def check(self, value: Any, kind: Any) -> Any:
        """Convert a value of columns to `kind`, as a column of SQLite takes values of any type. Raises RunError."""
        with self.damage_reported():
            return msgspec.convert(value, kind)

    def damage_reported(self) -> AbstractContextManager[None]:
        """Raise RunError where the values of a damaged database make the code inside fail."""
        return damage_reported(self.path)

    def _blob(self, where: str) -> bytes:
        rows = self.rows("SELECT data FROM blobs WHERE address = ?", where)
        if not rows:
            raise RunError(f"{self.path}: it is damaged: the blob {where} is missing")
        data: bytes = rows[0][0]
        return data

    def copy(self, path: Path) -> None:
        """Copy the database to `path` as a single file, without a journal, atomically."""
        aside = path.with_name(f".{path.name}.part")
        with storage_errors(path), database_errors(path):
            aside.unlink(missing_ok=True)
            with closing(connect(aside, "rwc")) as target:
                # One consistent state, journal included; a copy of the file would miss what is only in the journal.
                self.connection.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")
            aside.replace(path)
            fsync_path(path.parent)

    def close(self) -> None:
        self.connection.close()


def check_run_schema(connection: sqlite3.Connection, path: Path, *, database: str = "main") -> None:
    """Check that a database has the tables of a run, and nothing else. Raises RunError."""
    check_schema(connection, path, _TABLES, database=database)


def fold_journal(connection: sqlite3.Connection) -> None:
    """Merge the journal of a database into it, so that a single file is left."""
    # Another process that reads may do so for long; it will merge the journal when it closes.
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        connection.execute("PRAGMA journal_mode = DELETE")
    except sqlite3.OperationalError as error:
        # Another process still holds it, or there is no space: the journal stays until the last one that closes the
        # database, or the next open, merges it.
        if error.sqlite_errorcode not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL):
            raise
