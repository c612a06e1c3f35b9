"""Verdicts on a file: what is found again, what is asked for, and what is left when a process is killed."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from mappa.store.cassette import CassetteFile, open_cassette
from mappa_core import CoachError, RunError, Usage, Verdict

FULL = Verdict(
    status="scored",
    score=6.1,
    reasoning="@adds ä \ud83d " + "so " * 300,
    blame="solver",
    correction="1 + 1",
    members=(Verdict.scored(7, "a"), Verdict.abstained("no text")),
    usage=Usage(calls=2, prompt_tokens=812, completion_tokens=40, cached_tokens=None, usd=0.00031),
    question="q" * 64,
    template_hash="t" * 64,
    model="model-2026-01",
    seed=7,
    raw_reply='{"choices": []}',
)


def opened(mode: str, path: Path) -> CassetteFile:
    cassette = open_cassette(mode, path)
    assert cassette is not None
    return cassette


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A cassette with one verdict."""
    path = tmp_path / "kept" / "cassette.db"
    cassette = opened("auto", path)
    cassette.put("a", FULL)
    cassette.close()
    return path


def test_a_verdict_comes_back_as_it_was(path: Path) -> None:
    cassette = opened("auto", path)
    assert cassette.get("a") == FULL
    cassette.close()


def test_puts_go_to_a_journal(path: Path) -> None:
    """Without one every put would wait for the disk."""
    cassette = opened("auto", path)
    cassette.put("b", FULL)
    assert path.with_name("cassette.db-wal").stat().st_size > 0
    cassette.close()


def test_off_is_no_cassette(tmp_path: Path) -> None:
    assert open_cassette("off", tmp_path / "cassette.db") is None
    assert list(tmp_path.iterdir()) == []


def test_mode_auto_misses_an_unknown_question(path: Path) -> None:
    cassette = opened("auto", path)
    assert cassette.get("b") is None
    cassette.close()


def test_mode_record_misses_every_question_and_keeps_the_new_verdict(path: Path) -> None:
    cassette = opened("record", path)
    assert cassette.get("a") is None
    cassette.put("a", Verdict.scored(2, "another"))
    cassette.close()
    again = opened("auto", path)
    assert again.get("a") == Verdict.scored(2, "another")
    again.close()


def test_mode_replay_without_a_verdict_is_an_error_with_advice(path: Path) -> None:
    cassette = opened("replay", path)
    assert cassette.get("a") == FULL
    said = r"cassette\.db holds no verdict on this: .*Set coach\.cassette\.mode=auto to ask"
    with pytest.raises(CoachError, match=said):
        cassette.get("b")
    cassette.close()


def test_replay_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"there is no cassette at .*none.db: set coach.cassette.path"):
        open_cassette("replay", tmp_path / "none.db")
    assert list(tmp_path.iterdir()) == []


def test_a_closed_cassette_is_one_file_and_replays_where_nobody_may_write(path: Path) -> None:
    assert [file.name for file in path.parent.iterdir()] == ["cassette.db"]
    before = path.read_bytes()
    path.chmod(0o444)
    path.parent.chmod(0o555)
    try:
        cassette = opened("replay", path)
        assert cassette.get("a") == FULL
        cassette.close()
        assert [file.name for file in path.parent.iterdir()] == ["cassette.db"]
    finally:
        path.parent.chmod(0o755)
    assert path.read_bytes() == before


def test_a_failed_verdict_is_not_kept(path: Path) -> None:
    cassette = opened("auto", path)
    with pytest.raises(ValueError, match=r"failed .* is not kept"):
        cassette.put("b", Verdict.failed("timeout"))
    assert cassette.get("b") is None
    cassette.close()


def test_several_processes_may_use_one_cassette(path: Path) -> None:
    one, other, third = opened("auto", path), opened("record", path), opened("replay", path)
    one.put("b", Verdict.scored(1, "one"))
    other.put("c", Verdict.scored(2, "other"))
    assert (one.get("c"), third.get("b")) == (Verdict.scored(2, "other"), Verdict.scored(1, "one"))
    one.close()
    other.put("d", Verdict.scored(3, "late"))
    assert third.get("d") == Verdict.scored(3, "late")
    third.close()
    other.close()
    assert [file.name for file in path.parent.iterdir()] == ["cassette.db"]


@pytest.mark.parametrize("mode", ["auto", "record", "replay"])
@pytest.mark.parametrize(
    "content", [b"not a database at all", b"SQLite format 3\0" + b"\xff" * 200], ids=["text", "torn"]
)
def test_file_that_is_no_database_is_not_changed(tmp_path: Path, mode: str, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"notes.txt"):
        open_cassette(mode, path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("mode", ["auto", "record", "replay"])
def test_database_of_another_program_is_not_changed(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "run.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE verdicts (address, verdict)")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(RunError, match=r"run.db is a database, but no cassette"):
        open_cassette(mode, path)
    assert path.read_bytes() == before


def test_a_cassette_of_another_schema_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    with pytest.raises(RunError, match="schema 2, and this version of Mappa reads schema 1"):
        open_cassette("auto", path)


def test_damaged_verdict_is_an_error_that_says_so(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("""UPDATE verdicts SET verdict = '{"status": "guessed"}'""")
    connection.close()
    cassette = opened("auto", path)
    with pytest.raises(RunError, match=r"cassette.db is damaged"):
        cassette.get("a")
    cassette.close()


def test_damaged_database_page_is_an_error_that_says_so(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    cassette = opened("auto", path)
    with pytest.raises(RunError, match="it is damaged"):
        cassette.get("a")
    cassette.close()


def test_cassette_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file"):
        open_cassette("auto", tmp_path / "file" / "cassette.db")


WRITE = """
import sys
from pathlib import Path
from mappa_core.records import Verdict
from mappa.store.cassette import open_cassette

cassette = open_cassette("auto", Path(sys.argv[1]))
for number in range(100_000):
    cassette.put(f"{sys.argv[2]}{number}", Verdict.scored(number % 11, f"because {number} " * 50))
    print(number, flush=True)
"""


def writer(path: Path, name: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WRITE, str(path), name], stdout=subprocess.PIPE, text=True)


def test_kill_loses_no_stored_verdict(tmp_path: Path) -> None:
    path = tmp_path / "cassette.db"
    acknowledged: dict[str, int] = {}
    with writer(path, "a") as one, writer(path, "b") as other:
        for name, process in (("a", one), ("b", other)):
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(100)]
            process.kill()
            lines += [line for line in process.stdout if line.endswith("\n")]
            acknowledged[name] = int(lines[-1])
    assert one.returncode == other.returncode == -signal.SIGKILL
    cassette = opened("auto", path)
    for name, last in acknowledged.items():
        assert last >= 99
        for number in range(last + 1):
            verdict = cassette.get(f"{name}{number}")
            assert verdict is not None
            assert verdict.score == number % 11
        assert cassette.get(f"{name}{last + 2}") is None
    cassette.close()
