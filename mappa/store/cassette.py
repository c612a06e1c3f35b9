"""Cassette: verdicts (as JSON, see `codec`) by hash of the request, so that no request is paid twice.

It is one SQLite database. `put` commits the verdict, so a kill loses none. Several processes may share a file; if two
put a verdict at the same address, the later one stays. When the last of them closes it, a single file is left, which
can be copied, also to read-only places, and replayed there.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from mappa.store.schema import JOURNAL_PAGES, fold_journal
from mappa_core.codec import from_json, to_json
from mappa_core.config.schema import CassetteMode
from mappa_core.errors import CoachError, RunError
from mappa_core.files import damage_reported, has_file, open_file, storage_errors
from mappa_core.records import Verdict
from mappa_core.safe_sqlite import check_schema, connect, database_errors

CASSETTE_SCHEMA = 1
_APPLICATION_ID = 0x4D434153
"""`PRAGMA application_id` of a cassette, which distinguishes it from other databases."""
_TABLES = "CREATE TABLE verdicts (address TEXT PRIMARY KEY, verdict TEXT NOT NULL)"
_MAGIC = b"SQLite format 3\0"
"""First bytes of every SQLite database (https://www.sqlite.org/fileformat.html, section 1.3)."""


def open_cassette(mode: CassetteMode, path: Path) -> CassetteFile | None:
    """Open the cassette at `path`; None if `mode` is `off`.

    record: every verdict is requested and stored. replay: no verdict is requested. auto: missing verdicts are requested
    and stored.

    Raises RunError if `path` cannot be written to, is not a cassette, is damaged or of another schema; with `replay`
    also if it does not exist.
    """
    if mode == "off":
        return None
    _check_file(path, needed=mode == "replay")
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    # Read-only for a replay, so that it works in a place that cannot be written to.
    connection = connect(path, "ro" if mode == "replay" else "rwc")
    try:
        with database_errors(path):
            if mode != "replay":
                _create_tables(connection)
            # Before the journal mode, which would be written into a database that is no cassette.
            _check_version(connection, path)
            check_schema(connection, path, _TABLES)
            if mode != "replay":
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute(f"PRAGMA wal_autocheckpoint = {JOURNAL_PAGES}")
    except BaseException:
        connection.close()
        raise
    return CassetteFile(path, connection, always_asks=mode == "record", replays_only=mode == "replay")


class CassetteFile:
    """Implements protocols.Cassette. All methods must be called from one thread; storage faults raise RunError."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, always_asks: bool, replays_only: bool) -> None:
        self.path = path
        self._connection = connection
        self._always_asks = always_asks
        self._replays_only = replays_only

    def get(self, address: str) -> Verdict | None:
        if self._always_asks:
            return None
        with database_errors(self.path):
            rows = self._connection.execute("SELECT verdict FROM verdicts WHERE address = ?", (address,)).fetchall()
        if rows:
            with damage_reported(self.path):
                return from_json(Verdict, rows[0][0])
        if self._replays_only:
            raise CoachError(
                f"{self.path} holds no verdict on this: the evidence, the rubric, the model or an option of the coach "
                "is another one than when it was recorded. Set coach.cassette.mode=auto to ask for what is missing"
            )
        return None

    def put(self, address: str, verdict: Verdict) -> None:
        if verdict.status == "failed":
            raise ValueError(
                f"{self.path}: the verdict at {address} failed ({verdict.error}), and a failure is not kept, so that "
                "the request is made again"
            )
        with database_errors(self.path):
            row = (address, to_json(verdict).decode())
            self._connection.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?)", row)

    def close(self) -> None:
        """Merge the journal into the file, unless another process still uses it, and close it."""
        try:
            if not self._replays_only:
                fold_journal(self._connection)
        finally:
            self._connection.close()


def _check_file(path: Path, *, needed: bool) -> None:
    if not has_file(path.parent, path.name):
        if needed:
            raise RunError(f"there is no cassette at {path}: set coach.cassette.path, or record one with mode=record")
        return
    with open_file(path.parent, path.name) as file:
        start = file.read(len(_MAGIC))
    if start and start != _MAGIC:
        raise RunError(f"{path} is no cassette: it is not a database. Name another file as coach.cassette.path")


def _create_tables(connection: sqlite3.Connection) -> None:
    # A database that is not empty stays as it is. IMMEDIATE takes the lock before looking, so that of two processes
    # which open a new file at once only one creates the tables.
    connection.execute("BEGIN IMMEDIATE")
    if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        connection.execute(_TABLES)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {CASSETTE_SCHEMA}")
    connection.execute("COMMIT")


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    ((kind,),) = connection.execute("PRAGMA application_id")
    if kind != _APPLICATION_ID:
        raise RunError(f"{path} is a database, but no cassette: name another file as coach.cassette.path")
    ((schema,),) = connection.execute("PRAGMA user_version")
    if schema != CASSETTE_SCHEMA:
        raise RunError(
            f"{path} has schema {schema}, and this version of Mappa reads schema {CASSETTE_SCHEMA} alone: use the "
            "version that wrote it"
        )
