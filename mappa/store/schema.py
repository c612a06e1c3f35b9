"""Database `run.db` of a run; `schema.sql` describes its tables."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from mappa_core.codec import pack, unpack
from mappa_core.errors import RunError
from mappa_core.files import fsync_path, storage_errors

T = TypeVar("T")

DATABASE_NAME = "run.db"
DATABASE_SCHEMA = 1
_TABLES = files(__package__).joinpath("schema.sql").read_text("utf-8")
JOURNAL_PAGES = 8000
"""Pages (of 4 KiB) that the journal may hold before a checkpoint: frequent ones cost more than the writes."""
_KNOWN_BLOBS = 100_000
"""Maximum number of stored addresses that a writer caches, to avoid writing blobs again."""
_BATCH_ROWS = 500
_STORAGE = {
    sqlite3.SQLITE_FULL: "there is no space left; free some or choose another folder with run.root",
    sqlite3.SQLITE_IOERR: "the disk failed or a limit on the size of files was reached",
    sqlite3.SQLITE_READONLY: "it cannot be written to; check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "permission is denied",
    sqlite3.SQLITE_BUSY: "another program holds it; end that program",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_NOTADB: "it is not a database; is this a run folder?",
}
_DAMAGE = re.compile("^(Could not decode to UTF-8|malformed JSON|no such (table|column)|JSON path error)")


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Convert faults (space, permission, damage, impossible values) to RunError; other errors of SQLite propagate."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if "closed database" in str(error):
            raise RunError(f"{path} is closed: read it inside the `with` that opens it") from error
        # What a damaged text or page leads to has no code of its own.
        code = sqlite3.SQLITE_CORRUPT if _DAMAGE.search(str(error)) else getattr(error, "sqlite_errorcode", 0)
        # The lowest byte is the primary code; the others say more about it (https://www.sqlite.org/rescode.html).
        advice = _STORAGE.get(code & 0xFF)
        if advice is None:
            raise
        raise RunError(f"{path}: {error}: {advice}") from error
    except UnicodeDecodeError as error:  # From SQLite's own message, which quotes a damaged text.
        raise RunError(f"{path}: {error}: {_STORAGE[sqlite3.SQLITE_CORRUPT]}") from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise RunError(f"{path} can hold no such value: {error}") from error


class Database:
    """A connection to a `run.db` with a checked schema; packs and unpacks its records."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.connection = connection
        self._stored: set[str] = set()

    @classmethod
    def create(cls, path: Path) -> Database:
        """Create a database for writing. Raises RunError if it exists or the storage fails."""
        if path.exists():
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
        if not path.is_file():
            raise RunError(f"{path.parent} is not a run folder: it has no {path.name}")
        database = cls(path, connect(path, "rw" if write else "ro"))
        try:
            database._check_schema()
            if write:
                database._prepare()
        except BaseException:
            database.connection.close()
            raise
        return database

    def _check_schema(self) -> None:
        with database_errors(self.path):
            (schema,) = self.connection.execute("PRAGMA user_version").fetchone()
            if schema == DATABASE_SCHEMA:
                return
            known = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'meta'"
            if schema < 1 or self.connection.execute(known).fetchone() is None:
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
        """One write transaction: committed at the end, rolled back on any error."""
        with database_errors(self.path):
            # The lock of writers is taken here. A transaction that began to read would fail when it came to write, if
            # another process wrote meanwhile, and waiting would not help it.
            self.connection.execute("BEGIN IMMEDIATE")
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
        ((value,),) = self.rows("SELECT value FROM meta WHERE name = ?", name)
        return value

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
        with self.damage_reported():
            return unpack(kind, text, self._blob)

    @contextmanager
    def damage_reported(self) -> Iterator[None]:
        """Raise RunError where the values of a damaged database make the code inside fail (msgspec: ValueError)."""
        try:
            yield
        except RunError:
            raise
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
            raise RunError(f"{self.path}: it is damaged: {error}") from error

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
            target = sqlite3.connect(aside, isolation_level=None)
            try:
                # One consistent state, journal included; a copy of the file would miss what is only in the journal.
                self.connection.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")
            finally:
                target.close()
            aside.replace(path)
            fsync_path(path.parent)

    def close(self) -> None:
        self.connection.close()


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Connect to a database; `mode` is that of SQLite's URIs (ro, rw, rwc). Waits up to 30 s for another writer."""
    with database_errors(path):
        # isolation_level None: Python begins no transactions of its own, only those of `Database.transaction` count.
        return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=30.0)


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
