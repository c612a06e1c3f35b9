"""Marks: who made a file, by a key that no stranger has."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mappa.store import marks
from mappa.store.folder import CONFIG, RunFolder
from mappa.store.marks import is_trusted, remember_trust, write_mark
from mappa_core import RunError

TEXT = "recipe: p/r\nseed: 0\n"


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch) -> Path:
    """A state folder of this test; `mappa/run-key` in it is the key."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "mappa"


@pytest.fixture
def config(tmp_path) -> Path:
    (tmp_path / CONFIG).write_text(TEXT)
    return tmp_path / CONFIG


def test_a_marked_file_is_trusted_until_its_text_changes_and_wherever_it_lies(config, tmp_path):
    assert not is_trusted(config, TEXT)
    write_mark(config, TEXT)
    assert is_trusted(config, TEXT) and not is_trusted(config, f"{TEXT}train: {{}}\n")
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for name in (CONFIG, "config.mark"):
        (tmp_path / name).rename(moved / name)
    assert is_trusted(moved / CONFIG, TEXT)


def test_the_key_is_private_and_made_once(config, state):
    write_mark(config, TEXT)
    key = state / "run-key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and len(key.read_bytes()) == 32
    assert stat.S_IMODE(state.stat().st_mode) == 0o700 and [path.name for path in state.iterdir()] == ["run-key"]
    before = key.read_bytes()
    write_mark(config, TEXT)
    assert key.read_bytes() == before


def test_processes_that_begin_at_once_take_the_same_key(tmp_path):
    program = (
        "import sys; from pathlib import Path; from mappa.store.marks import write_mark; "
        "sys.stdin.read(1); write_mark(Path(sys.argv[1]), 'x')"
    )
    files = [tmp_path / f"{number}.yaml" for number in range(8)]
    started = [subprocess.Popen([sys.executable, "-c", program, str(file)], stdin=subprocess.PIPE) for file in files]
    for process in started:
        process.communicate(b"g")
    assert [process.returncode for process in started] == [0] * 8
    assert len({file.with_suffix(".mark").read_bytes() for file in files}) == 1
    assert all(is_trusted(file, "x") for file in files)


def test_a_mark_by_another_key_or_of_any_other_content_is_none(config, state, monkeypatch, tmp_path):
    write_mark(config, TEXT)
    mine = config.with_suffix(".mark").read_bytes()
    for forged in (b"", mine[:-1], mine + b"\n", b"0" * 64, mine.upper(), os.urandom(64)):
        config.with_suffix(".mark").write_bytes(forged)
        assert not is_trusted(config, TEXT), forged
    config.with_suffix(".mark").write_bytes(mine)
    assert is_trusted(config, TEXT)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
    assert not is_trusted(config, TEXT)
    write_mark(tmp_path / "own.yaml", TEXT)
    assert not is_trusted(config, TEXT)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o606])
def test_a_key_that_others_may_read_or_write_is_not_used(config, state, mode):
    write_mark(config, TEXT)
    (state / "run-key").chmod(mode)
    assert not is_trusted(config, TEXT)


def test_links_and_special_files_are_neither_mark_nor_key(config, state):
    write_mark(config, TEXT)
    mark, key = config.with_suffix(".mark"), state / "run-key"
    for path, aside in ((mark, mark.with_name("aside")), (key, key.with_name("aside"))):
        path.rename(aside)
        path.symlink_to(aside)
        assert not is_trusted(config, TEXT)
        path.unlink()
        os.mkfifo(path)
        assert not is_trusted(config, TEXT)
        path.unlink()
        aside.rename(path)
        assert is_trusted(config, TEXT)


def test_without_a_state_folder_that_can_be_written_files_are_not_marked(config, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    write_mark(config, TEXT)
    assert not config.with_suffix(".mark").exists() and not is_trusted(config, TEXT)
    with pytest.raises(RunError, match="cannot be made"):
        remember_trust(config, TEXT)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(marks.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError))
    write_mark(config, TEXT)
    assert not is_trusted(config, TEXT)
    with pytest.raises(RunError, match="no state folder"):
        remember_trust(config, TEXT)


def test_a_relative_state_folder_is_not_one_of_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", "state-of-a-stranger")
    write_mark(tmp_path / "x.yaml", TEXT)
    assert not (tmp_path / "state-of-a-stranger").exists()
    assert (tmp_path / "home/.local/state/mappa/run-key").is_file()


def test_trust_is_remembered_for_one_place_and_one_text(config, tmp_path):
    remember_trust(config, TEXT)
    assert is_trusted(config, TEXT) and not is_trusted(config, f"{TEXT}#")
    other = tmp_path / "other"
    other.mkdir()
    (other / CONFIG).write_text(TEXT)
    assert not is_trusted(other / CONFIG, TEXT)


def test_a_run_is_marked_when_it_is_made_and_when_its_config_changes(tmp_path):
    with RunFolder.create(tmp_path, "run", plugin="p", recipe="r", config=TEXT) as folder:
        config = folder.path / CONFIG
        assert is_trusted(config, TEXT)
        folder.write_config("seed: 4\n")
        assert is_trusted(config, "seed: 4\n") and not is_trusted(config, TEXT)


def test_a_run_works_where_it_cannot_be_marked(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    with RunFolder.create(tmp_path, "run", plugin="p", recipe="r", config=TEXT) as folder:
        assert not (folder.path / "config.mark").exists()
