"""SQLite databases that a stranger may have made: opened as regular files, with the schema that their owner expects and
nothing else in it, and with queries that a signal ends."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

from mappa_core.errors import RunError
from mappa_core.files import has_file, open_file

MAX_VALUE_BYTES = 256 << 20
"""Size of one value, and of one row."""
_SIDE_FILES = ("-wal", "-shm", "-journal")
_SUPER_JOURNAL = bytes.fromhex("d9d505f920a163d7")
"""Last bytes of a journal that names another file (https://www.sqlite.org/fileformat2.html, section 3)."""
_STEPS = 100_000
"""Steps of SQLite's machine between two looks at signals: milliseconds."""
_ADVICE = {
    sqlite3.SQLITE_FULL: "there is no space left; free some or choose another folder with run.root",
    sqlite3.SQLITE_IOERR: "the disk failed or a limit on the size of files was reached",
    sqlite3.SQLITE_READONLY: "it cannot be written to; check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened; check the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "permission is denied",
    sqlite3.SQLITE_BUSY: "another program holds it; end that program",
    sqlite3.SQLITE_CORRUPT: "it is damaged",
    sqlite3.SQLITE_NOTADB: "it is not a database; is this a run folder?",
    sqlite3.SQLITE_TOOBIG: f"a value in it is larger than {MAX_VALUE_BYTES:,} bytes",
    sqlite3.SQLITE_NOMEM: "a value in it does not fit into memory",
}
_DAMAGE = re.compile(
    "^(Could not decode to UTF-8|malformed JSON|no such (table|column)|JSON path error|malformed database schema)"
)
_SchemaRow = tuple[str, str, str, str | None]
_interruptions: list[BaseException] = []
"""What the handler of a signal raised during a query, in the main thread, as handlers run nowhere else."""


def connect(path: Path, mode: Literal["ro", "rw", "rwc"], *, timeout_s: float = 30.0) -> sqlite3.Connection:
    """Connect to a database; `mode` is that of SQLite's URIs. Waits up to `timeout_s` for another writer. Raises
    RunError if it, or a journal beside it, is no regular file, or a journal names another file."""
    _check_files(path)
    with database_errors(path):
        # isolation_level None: Python begins no transactions of its own.
        connection = sqlite3.connect(_uri(path, mode), uri=True, isolation_level=None, timeout=timeout_s)
    _restrict(connection, attached=0)
    if mode == "ro":
        connection.execute("PRAGMA query_only = ON")
    return connection


def connect_temporary() -> sqlite3.Connection:
    """Make a temporary database, of which SQLite keeps in memory what fits its cache, for any thread, one at a time;
    another one may be attached to it."""
    connection = sqlite3.connect("", uri=True, isolation_level=None, check_same_thread=False)
    _restrict(connection, attached=1)
    return connection


def attach(connection: sqlite3.Connection, path: Path, name: str) -> None:
    """Attach a database for reading, with its files checked as by `connect`."""
    _check_files(path)
    connection.execute(f"ATTACH ? AS {name}", (_uri(path, "ro"),))


def _uri(path: Path, mode: str) -> str:
    return f"{path.absolute().as_uri()}?mode={mode}"


def _restrict(connection: sqlite3.Connection, *, attached: int) -> None:
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, attached)
    watch = _watch_signals()
    next(watch)
    connection.set_progress_handler(watch.__next__, _STEPS)
    # Nothing in the schema may call a function with effects, and damaged pages are found before they mislead.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")


def _check_files(path: Path) -> None:
    for name in (path.name, *(f"{path.name}{ending}" for ending in _SIDE_FILES)):
        if has_file(path.parent, name) and name.endswith("-journal"):
            # SQLite deletes the file that such a journal names; only a transaction over several databases writes one.
            with open_file(path.parent, name) as journal:
                size = journal.seek(0, os.SEEK_END)
                journal.seek(max(0, size - len(_SUPER_JOURNAL)))
                if journal.read() == _SUPER_JOURNAL:
                    raise RunError(f"{path.with_name(name)} names another file, which SQLite would delete: remove it")


def _watch_signals() -> Generator[int, None, None]:
    """Called during a query, so that Python runs the handlers of signals. What they raise would be lost in SQLite: a
    generator goes on inside its `try`, where a function could be left before it."""
    while True:
        try:
            yield 0
        except GeneratorExit:
            return
        except BaseException as error:  # noqa: BLE001 - raised again by `database_errors`
            _interruptions.append(error)
            yield 1


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Convert faults (space, permission, damage, impossible values) to RunError, and raise what a signal raised during
    a query; other errors of SQLite propagate."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if "closed database" in str(error):
            raise RunError(f"{path} is closed: read it inside the `with` that opens it") from error
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_INTERRUPT and _interruptions:
            raise _interruptions.pop() from None
        # What a damaged text or page leads to has no code of its own. The lowest byte of a code is the primary one; the
        # others say more about it (https://www.sqlite.org/rescode.html).
        advice = _ADVICE.get(sqlite3.SQLITE_CORRUPT if _DAMAGE.search(str(error)) else code)
        if advice is None:
            raise
        raise RunError(f"{path}: {error}: {advice}") from error
    except UnicodeDecodeError as error:  # From SQLite's own message, which quotes a damaged text.
        raise RunError(f"{path}: {error}: {_ADVICE[sqlite3.SQLITE_CORRUPT]}") from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise RunError(f"{path} can hold no such value: {error}") from error


def check_schema(connection: sqlite3.Connection, path: Path, script: str, *, database: str = "main") -> None:
    """Check that a database holds what `script` creates, word for word, and nothing else: a view, a trigger or a
    computed column would run what a stranger wrote. Raises RunError."""
    expected = _schema_of(script)
    with database_errors(path):
        # One more than expected is enough to find a difference.
        query = f"SELECT type, name, tbl_name, sql FROM {database}.sqlite_schema ORDER BY rowid LIMIT ?"
        found = [_normalise(row) for row in connection.execute(query, (len(expected) + 1,))]
    strange = next((row for row in found if row not in expected), None)
    if strange is not None:
        raise RunError(
            f"{path} is no database that Mappa wrote: it has a {str(strange[0])[:20]} {str(strange[1])[:80]!r} of "
            "another form; do not use it if a stranger made it"
        )
    if len(found) != len(expected):
        name = next((row[1] for row in expected if row not in found), found[-1][1] if found else "")
        what = f"lacks the table or index {name!r}" if len(found) < len(expected) else f"has {name!r} twice"
        raise RunError(f"{path} is no database that Mappa wrote: it {what}")


@cache
def _schema_of(script: str) -> tuple[_SchemaRow, ...]:
    """The schema of a database after `script`."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(script)
        rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY rowid")
        return tuple(map(_normalise, rows))


def _normalise(row: tuple[object, ...]) -> _SchemaRow:
    kind, name, table, sql = (None if value is None else " ".join(str(value).split()) for value in row)
    return str(kind), str(name), str(table), sql
