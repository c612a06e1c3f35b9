"""Stored runs with bytes, values, tables and settings changed at random: whatever reads them succeeds or ends with an
error of the input in one line, and writes nowhere else. `make soak` tries thousands and prints how many of each
kind."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from mappa.cli import main
from mappa.look.demo import unpack_demo
from mappa.runs import RunReader

SHORT, LONG = 12, 1_500
"""Runs of each kind."""
READS = 3
"""Commands that read each of them, drawn from all."""
VALUES = (
    None, 0, -1, 2**63 - 1, -(2**63), 1e308, float("inf"), "", "x", "\0", "{}", "[]", "null", "1e999", "NaN", b"",
    b"\xff\xfe", '{"path": "/etc/passwd"}', "../../outside", "@float:nan", "@str#" + "0" * 32,
    "@<f8#" + ",".join(["0" * 32] * 99), "@", "[" * 5_000, '{"a": ' * 2_000, "9" * 5_000, "\x1b[31m", "é" * 300,
    "@<O=AAAA", "@<i4=A", "@M8[Y]=AAAA",
)  # fmt: skip
SQL = (
    "DROP TABLE {0}",
    "ALTER TABLE {0} RENAME TO other",
    "ALTER TABLE {0} ADD COLUMN more",
    "CREATE VIEW more AS SELECT 1",
    "CREATE TRIGGER more AFTER INSERT ON {0} BEGIN DELETE FROM {0}; END",
    "CREATE INDEX more ON {0} (1)",
    "DELETE FROM {0}",
    "CREATE TABLE more (x)",
    "PRAGMA user_version = 2",
    "PRAGMA user_version = -1",
    "DROP TABLE {0}; CREATE VIEW {0} AS SELECT * FROM meta",
    "DROP TABLE {0}; CREATE TABLE {0} (x)",
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_demo(tmp_path_factory.mktemp("whole"))


def change_bytes(name: str, run: Path, random: Random) -> None:
    data = bytearray((run / name).read_bytes())
    for _ in range(random.choice((1, 4, 64, 1_000))):
        # The first page of a database says how all others are read.
        place = random.randrange(min(len(data), random.choice((100, 4096, len(data)))))
        data[place] = random.randrange(256)
    if random.random() < 0.2:
        del data[random.randrange(len(data)) :]
    (run / name).write_bytes(data)


def change_values(run: Path, random: Random) -> None:
    with closing(sqlite3.connect(run / "run.db", isolation_level=None)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        for _ in range(random.choice((1, 3, 20))):
            table = random.choice(tables)
            column = random.choice([row[1] for row in database.execute(f"PRAGMA table_info({table})")])
            key = "name" if table == "meta" else "rowid"
            rows = [row for (row,) in database.execute(f"SELECT {key} FROM {table}")]
            if not rows:
                continue
            try:
                query = f"UPDATE {table} SET {column} = ? WHERE {key} = ?"
                database.execute(query, (random.choice(VALUES), random.choice(rows)))
            except (sqlite3.IntegrityError, sqlite3.DataError):
                continue  # What the schema refuses no stranger can store either.


def change_texts(run: Path, random: Random) -> None:
    """Change a part of a JSON text in a row, as of a path of a file or a number."""
    with closing(sqlite3.connect(run / "run.db", isolation_level=None)) as database:
        table, column = random.choice(
            [("steps", "body"), ("verdicts", "body"), ("iterations", "report"), ("events", "body"),
             ("trajectories", "task"), ("trajectories", "outcome")]
        )  # fmt: skip
        rows = database.execute(f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL").fetchall()
        for row, text in random.sample(rows, min(len(rows), 5)):
            words = text.split(",")
            number = random.randrange(len(words))
            key, colon, _ = words[number].partition(":")
            value = random.choice(["null", "-1", "1e400", "[]", "{}", '"/etc/passwd"', '"@"', "true", '"\\ud800"', ""])
            words[number] = f"{key}{colon}{value}"
            database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (",".join(words), row))


def change_schema(run: Path, random: Random) -> None:
    with closing(sqlite3.connect(run / "run.db", isolation_level=None)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        database.executescript(random.choice(SQL).format(random.choice(tables)))


def change_settings(run: Path, random: Random) -> None:
    lines = (run / "config.yaml").read_text().splitlines()
    for _ in range(random.choice((1, 3, 10))):
        number = random.randrange(len(lines))
        key, colon, _ = lines[number].partition(": ")
        value = random.choice(
            ["null", "[]", "{}", "-1", "1e400", ".nan", "&a [*a]", "!!python/object/apply:os.system [x]",
             "'${oc.env:HOME}'", "/etc/passwd", "../../x", "'\\0'", "\x07", "9" * 400, "- - - -", "{a: {b: {c: 1}}}",
        "", "true"] )  # fmt: skip
        lines[number] = random.choice([f"{key}{colon or ': '}{value}", key, value, "  " + lines[number], ""])
    (run / "config.yaml").write_text("\n".join(lines), errors="replace")


def change_summary(run: Path, random: Random) -> None:
    text = (run / "summary.json").read_text()
    words = text.split(",")
    words[random.randrange(len(words))] = random.choice(
        ['"schema": 1', '"x": 1e999', "{}", "", '"eval": null', "[" * 9_000]
    )
    (run / "summary.json").write_text(",".join(words))


def change_places(run: Path, random: Random) -> None:
    name = random.choice(("files", "checkpoints", "run.lock", "report.html", "skipped", "run.db-wal", "run.db-journal"))
    kind = random.randrange(4)
    if kind == 0:
        (run / name).symlink_to(run.parent / "outside")
    elif kind == 1:
        os.mkfifo(run / name)
    elif kind == 2:
        (run / name).write_bytes(random.randbytes(5_000))
    else:
        (run / name / "000001").mkdir(parents=True)
        (run / name / "000001" / "manifest.json").write_bytes(random.randbytes(50))


KINDS: dict[str, Callable[[Path, Random], None]] = {
    "bytes of run.db": lambda run, random: change_bytes("run.db", run, random),
    "bytes of config.yaml": lambda run, random: change_bytes("config.yaml", run, random),
    "bytes of summary.json": lambda run, random: change_bytes("summary.json", run, random),
    "values of run.db": change_values,
    "texts of run.db": change_texts,
    "schema of run.db": change_schema,
    "settings": change_settings,
    "summary": change_summary,
    "files and folders": change_places,
}


def commands(run: Path, identity: str) -> list[list[str]]:
    out = run.parent / "out"
    return [
        ["runs", "list", "--root", str(run.parent)],
        ["runs", "list", "--root", str(run.parent), "--json"],
        ["runs", "show", str(run)],
        ["runs", "show", str(run), "--json"],
        ["runs", "trace", str(run), identity],
        ["runs", "trace", str(run), identity, "--json"],
        ["observe", str(run)],
        ["report", str(run), "--audit", "--out", str(run.parent / "page.html")],
        ["compare", "--arm", f"one={run}", "--arm", f"other={run}"],
        ["export", str(run), "--to", "sft", "--min-score", "5", "--out", str(out)],
        ["export", f"{run}@last", "--out", str(out)],
        ["plan", "--plugin", "mathchat", "--from", str(run)],
    ]


def check_kind(kind: str, whole: Path, place: Path, capsys: pytest.CaptureFixture[str], tries: int) -> Counter[int]:
    """Try a kind of change by seeds from 0; returns how often commands ended with each exit code."""
    with RunReader(whole) as reader:
        identity = next(iter(reader.trajectories)).id
    codes: Counter[int] = Counter()
    (place / "outside").mkdir()
    (place / "outside" / "kept").write_text("as it was")
    for seed in range(tries):
        random, run = Random(f"{kind} {seed}"), place / "run"
        shutil.copytree(whole, run)
        KINDS[kind](run, random)
        for arguments in random.sample(commands(run, identity), READS):
            capsys.readouterr()
            try:
                code = main(arguments)
            except Exception as error:
                raise AssertionError(f"{kind}, seed {seed}: {arguments}") from error
            printed = capsys.readouterr().err
            assert code in (0, 2), (kind, seed, arguments, printed)
            assert "Traceback" not in printed and (code == 0 or "Error: " in printed), (kind, seed, arguments, printed)
            codes[code] += 1
        assert {path.name for path in (place / "outside").iterdir()} == {"kept"}
        assert (place / "outside" / "kept").read_text() == "as it was"
        for left in (path for path in place.iterdir() if path.name != "outside"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    return codes


@pytest.mark.parametrize("kind", KINDS)
def test_no_change_of_a_run_is_more_than_an_error_of_the_input(kind, whole, tmp_path, capsys):
    assert sum(check_kind(kind, whole, tmp_path, capsys, SHORT).values()) == SHORT * READS


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("kind", KINDS)
def test_no_change_of_thousands_is_more_than_an_error_of_the_input(kind, whole, tmp_path, capsys):
    codes = check_kind(kind, whole, tmp_path, capsys, LONG)
    with capsys.disabled():
        print(f"\n{kind}: {LONG:,} runs, {sum(codes.values()):,} reads, {codes[0]:,} succeeded, {codes[2]:,} refused")
