"""Runs of strangers: what in the folder is a link, a special file, too large, or a database with a program in it ends a
command that reads with an error of the input in one line. Nothing waits, and nothing outside is read or written."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from mappa.cli import main
from mappa.look.demo import unpack_demo
from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa.runs import RunReader
from mappa.store.checkpoint import Checkpoints
from mappa.store.folder import RunFolder
from mappa_core import RunError

SECRET = "the-text-that-lies-elsewhere"
PAGES = ("", "trajectories", "newer", "trajectory", "prompt", "coach", "policies")
DEADLINE_S = 120
"""What a command that waits for ever is ended after; nothing is measured."""
Change = Callable[[Path, Path], None]


def link(name: str, run: Path, outside: Path) -> None:
    remove(run / name)
    (run / name).symlink_to(outside / "secret")


def link_folder(name: str, run: Path, outside: Path) -> None:
    remove(run / name)
    (run / name).symlink_to(outside)


def fifo(name: str, run: Path, outside: Path) -> None:
    remove(run / name)
    os.mkfifo(run / name)


def folder(name: str, run: Path, outside: Path) -> None:
    remove(run / name)
    (run / name).mkdir()


def listen(name: str, run: Path, outside: Path) -> None:
    remove(run / name)
    here = Path.cwd()
    os.chdir(run)  # A name of a socket may have a hundred bytes.
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(name)
    finally:
        os.chdir(here)


def huge(name: str, run: Path, outside: Path) -> None:
    with (run / name).open("ab") as file:
        file.truncate(1 << 40)


def garbage(name: str, run: Path, outside: Path) -> None:
    remove(run / name)
    (run / name).write_bytes(bytes(range(256)) * 9)


def nested(name: str, run: Path, outside: Path) -> None:
    remove(run / name)
    (run / name).write_text("[" * 100_000)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sql(script: str, run: Path, outside: Path) -> None:
    with closing(sqlite3.connect(run / "run.db", isolation_level=None)) as database:
        database.executescript(script)


def journal(run: Path, outside: Path) -> None:
    """A journal whose transaction spans another file, which SQLite deletes once it has undone it."""
    name = os.fsencode(outside / "secret")
    ending = len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + bytes.fromhex("d9d505f920a163d7")
    head = bytes.fromhex("d9d505f920a163d7") + bytes(4) + bytes(4) + (1).to_bytes(4, "big")
    page = (run / "run.db").stat().st_size // 4096
    head = head[:16] + page.to_bytes(4, "big") + (512).to_bytes(4, "big") + (4096).to_bytes(4, "big")
    (run / "run.db-journal").write_bytes(head.ljust(512, b"\0") + (0).to_bytes(4, "big") + name + ending)


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT "
COLUMNS = ["number", "id", "split", "iteration", "sample", "task_id", "stratum", "task", "finished", "outcome", "error",
           "seconds"]  # fmt: skip
VIEW = f"CREATE VIEW {{0}} AS {ENDLESS}{', '.join(f'x AS {name}' for name in COLUMNS)} FROM n WHERE x < 0;"
NAMES = ("run.db", "config.yaml", "summary.json", "run.lock", "run.db-wal", "run.db-shm", "run.db-journal")
HOSTILE: Mapping[str, Change] = {
    **{f"{change.__name__} {name}": partial(change, name) for change in (link, fifo, folder, listen) for name in NAMES},
    **{f"huge {name}": partial(huge, name) for name in ("config.yaml", "summary.json", "run.lock")},
    **{f"garbage {name}": partial(garbage, name) for name in NAMES},
    **{f"nested {name}": partial(nested, name) for name in ("config.yaml", "summary.json")},
    **{
        f"{change.__name__} {name}": partial(change, name)
        for name in ("files", "checkpoints", "checkpoints/000002", "skipped", "cassettes")
        for change in (link_folder, fifo)
    },
    **{
        f"{change.__name__} {name}": partial(change, name)
        for change in (link, fifo, huge, garbage, nested)
        for name in ("checkpoints/000002/manifest.json", "checkpoints/best.json")
    },
    "an endless view": partial(sql, f"DROP TABLE trajectories; {VIEW.format('trajectories')}"),
    "an endless view of steps": partial(
        sql, f"DROP TABLE steps; CREATE VIEW steps AS {ENDLESS}x AS id, x AS trajectory FROM n WHERE x < 0;"
    ),
    "an endless view of meta": partial(
        sql,
        f"PRAGMA user_version = 7; DROP TABLE meta; CREATE VIEW meta AS {ENDLESS}'mappa' AS name, x AS value FROM n "
        "WHERE x < 0;",
    ),
    "one view more": partial(sql, VIEW.format("more")),
    "a trigger": partial(
        sql, "CREATE TRIGGER t AFTER UPDATE ON meta BEGIN DELETE FROM blobs; DELETE FROM steps; END;"
    ),
    "a computed column": partial(sql, "ALTER TABLE events ADD COLUMN more AS (abs(time)) VIRTUAL;"),
    "a virtual table": partial(sql, "DROP TABLE blobs; CREATE VIRTUAL TABLE blobs USING fts5(address, data);"),
    "an index on an expression": partial(sql, "CREATE INDEX more ON events (abs(time));"),
    "a table as others": partial(
        sql, "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = 'CREATE VIEW meta AS SELECT 1' "
        "WHERE name = 'meta';"
    ),
    "a journal of two files": journal,
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with all that a run may hold."""
    run = unpack_demo(tmp_path_factory.mktemp("whole"))
    for name in ("files", "skipped", "cassettes"):
        (run / name).mkdir()
    checkpoints = Checkpoints(run / "checkpoints")
    for iteration in (1, 2):
        with checkpoints.new_checkpoint(iteration, seed=0, coach={}, estimator={}) as aside:
            (aside / "weights").write_bytes(b"some")
    return run


@pytest.fixture
def strange(whole: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the run, and a folder outside of it."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text(f"{SECRET}\n")
    shutil.copytree(whole, tmp_path / "runs" / "run")
    return tmp_path / "runs" / "run", outside


def commands(run: Path, identity: str) -> tuple[list[str], ...]:
    page = run.parent.parent / "page.html"
    return (
        ["runs", "list", "--root", str(run.parent)],
        ["runs", "show", str(run)],
        ["runs", "trace", str(run), identity],
        ["observe", str(run)],
        ["report", str(run), "--out", str(page)],
        ["report", str(run)],
        ["compare", "--arm", f"one={run}", "--arm", f"other={run}"],
        ["export", str(run), "--to", "sft", "--min-score", "5", "--out", str(run.parent.parent / "data")],
        ["export", f"{run}@last", "--out", str(run.parent.parent / "model")],
        ["export", f"{run}@best", "--out", str(run.parent.parent / "model")],
        ["plan", "--plugin", "mathchat", "--from", str(run)],
        ["train", "--resume", str(run), "--dry-run"],
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_run(
    run: Path, outside: Path, identity: str, capsys: pytest.CaptureFixture[str], *, first: int = 0, every: int = 1
) -> int:
    """Read a run by all commands and pages, or by `every` so many from the `first` on; returns how many refused it."""
    before, refused = contents(outside), 0
    capsys.readouterr()
    for arguments in commands(run, identity)[first % every :: every]:
        code, printed = main(arguments), capsys.readouterr()
        assert code in (0, 2), (arguments, printed.err)
        if code == 2:
            refused += 1
            assert "Traceback" not in printed.err
            assert printed.err.startswith(("Error: ", "Warning: ")), (arguments, printed.err)
        assert SECRET not in printed.out + printed.err, arguments
        for name in ("data", "model"):
            shutil.rmtree(run.parent.parent / name, ignore_errors=True)
    client = TestClient(create_app(RunFolders([run.parent]), token="a-token"), base_url="http://127.0.0.1")
    client.get("/?token=a-token")
    for page in PAGES[first % every :: every]:
        answer = client.get(f"/runs/run/{page}", params={"id": identity, "after": 0, "step": f"{identity}/000"})
        assert answer.status_code in (200, 400, 404, 409), answer.text
        assert SECRET not in answer.text
        refused += answer.status_code != 200
    assert contents(outside) == before
    return refused


@pytest.fixture(scope="module")
def identity(whole: Path) -> str:
    with RunReader(whole) as reader:
        return next(iter(reader.trajectories)).id


def test_a_run_that_nobody_touched_is_read(strange, identity, capsys):
    run, outside = strange
    # Its checkpoints hold no policies to export, and none is the best.
    assert check_run(run, outside, identity, capsys) == 2


@pytest.mark.parametrize(("number", "change"), enumerate(HOSTILE))
def test_a_run_of_a_stranger_is_read_or_refused(strange, identity, capsys, number, change):
    run, outside = strange
    HOSTILE[change](run, outside)
    check_run(run, outside, identity, capsys, first=number, every=4)


@pytest.mark.soak
@pytest.mark.parametrize("change", HOSTILE)
def test_a_run_of_a_stranger_is_read_or_refused_by_every_command(strange, identity, capsys, change):
    run, outside = strange
    HOSTILE[change](run, outside)
    check_run(run, outside, identity, capsys)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("an endless view", "it has a view 'trajectories'"),
        ("a trigger", "it has a trigger 't'"),
        ("a computed column", "it has a table 'events' of another form"),
        ("link run.db", "run.db is a symbolic link, and has to be a regular file"),
        ("fifo run.db-wal", "run.db-wal is a FIFO"),
        ("a journal of two files", "run.db-journal names another file, which SQLite would delete"),
    ],
)
def test_a_refusal_says_what_is_strange(strange, change, says):
    run, outside = strange
    HOSTILE[change](run, outside)
    for opened in (RunReader, RunFolder.open):
        with pytest.raises(RunError, match=says):
            opened(run)
    assert (outside / "secret").read_text() == f"{SECRET}\n"


@pytest.mark.parametrize("change", ["link run.lock", "fifo run.lock", "link_folder checkpoints", "folder run.lock"])
def test_a_writer_refuses_what_it_would_write_through(strange, change):
    run, outside = strange
    HOSTILE[change](run, outside)
    with pytest.raises(RunError, match=r"run\.lock is|checkpoints does not lie|checkpoints"):
        RunFolder.open(run)
    assert contents(outside) == {"secret": f"{SECRET}\n".encode()}


def test_a_lock_that_is_another_file_too_is_not_written(strange):
    run, outside = strange
    (run / "run.lock").unlink(missing_ok=True)
    os.link(outside / "secret", run / "run.lock")
    with pytest.raises(RunError, match="several names"):
        RunFolder.open(run)
    assert (outside / "secret").read_text() == f"{SECRET}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_query_that_does_not_end_is_ended_by_a_signal(strange, number, tmp_path):
    run, _ = strange
    program = f"""
import sys
from mappa.runs import RunReader
def endless(self, split=None, iteration=None):
    print("begun", flush=True)
    return self.query({(ENDLESS + "count(*) FROM n")!r})
RunReader.counts = endless
from mappa.cli import main
sys.exit(main(["runs", "show", sys.argv[1]]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(run)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number], errors
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize("change", ["an endless view", "fifo summary.json", "fifo config.yaml", "fifo run.db"])
def test_nothing_of_a_run_keeps_a_process_waiting(strange, identity, change):
    run, outside = strange
    HOSTILE[change](run, outside)
    for arguments in (["runs", "show", str(run)], ["report", str(run)], ["observe", str(run)]):
        done = subprocess.run(
            [sys.executable, "-m", "mappa", *arguments], capture_output=True, text=True, timeout=DEADLINE_S
        )
        assert done.returncode in (0, 2) and "Traceback" not in done.stderr


def test_labels_that_are_a_fifo_are_refused(strange, tmp_path):
    os.mkfifo(tmp_path / "labels.jsonl")
    done = subprocess.run(
        [sys.executable, "-m", "mappa", "coach", "eval", "--coach", "rules", "--file", str(tmp_path / "labels.jsonl")],
        capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize("change", ["link summary.json", "fifo summary.json", "an endless view", "link run.db"])
def test_an_ordinary_user_is_refused_alike(whole, change):
    # Everything is imported before, as the interpreter may lie where only root may read.
    program = (
        "import os, sys\nfrom mappa.cli import main\nassert main(['report', sys.argv[1], '--out', sys.argv[3]]) == 0\n"
        "os.setgid(65534); os.setuid(65534)\nsys.exit(main(['report', sys.argv[2]]))"
    )
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        run, outside = Path(place, "run"), Path(place, "outside")
        outside.mkdir()
        (outside / "secret").write_text(SECRET)
        (outside / "secret").chmod(0o600)
        shutil.copytree(whole, run)
        HOSTILE[change](run, outside)
        for path in (run, *run.rglob("*")):
            os.chown(path, 65534, 65534, follow_symlinks=False)
        done = subprocess.run(
            [sys.executable, "-c", program, str(whole), str(run), str(Path(place, "page.html"))],
            capture_output=True, text=True, timeout=DEADLINE_S,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert done.stderr.startswith("Error: ") and SECRET not in done.stderr
        assert not (run / "report.html").exists()
