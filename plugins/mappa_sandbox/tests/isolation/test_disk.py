"""The folder of a program, however it was left."""

import os
import stat
import time
from pathlib import Path

import pytest

from mappa_core.safe_walk import FolderCursor, remove_tree, walk
from mappa_sandbox.isolation import disk

MANY = 1_000_000


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "folder").mkdir()
    yield tmp_path / "folder"
    remove_tree(tmp_path / "folder")


def deep(folder: Path, levels: int) -> None:
    """Folders in folders, made as a program makes them whose path is longer than any call takes."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d" * 50, dir_fd=here)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def test_measures_files_in_all_folders(folder):
    (folder / "a").write_bytes(bytes(5000))
    (folder / "b/c").mkdir(parents=True)
    (folder / "b/c/d").write_bytes(bytes(3000))
    contents = disk.measure([str(folder)], MANY)
    assert contents.entries == 4 and not contents.inaccessible
    assert 8000 <= contents.bytes <= 8000 + 2 * 4096


def test_a_sparse_file_counts_with_its_whole_length(folder):
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    assert disk.measure([str(folder)], MANY).bytes == 1 << 30


def test_links_are_entries_and_are_not_followed(folder, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/big").write_bytes(bytes(100_000))
    (folder / "link").symlink_to(tmp_path / "outside")
    (folder / "loop").symlink_to(folder)
    contents = disk.measure([str(folder)], MANY)
    assert contents.entries == 2 and contents.bytes < 20_000


def test_counting_stops_beyond_what_is_allowed(folder):
    for number in range(20):
        (folder / str(number)).touch()
    assert disk.measure([str(folder)], 5).entries == 6


@pytest.mark.parametrize(("levels", "within_reach"), [(1, True), (50, True), (70, False), (300, False)])
def test_entries_too_deep_for_a_path_are_reported(folder, levels, within_reach):
    deep(folder, levels)
    contents = disk.measure([str(folder)], MANY)
    assert contents.inaccessible != within_reach
    assert not within_reach or contents.entries == levels + 1
    disk.make_readable(str(folder))


@pytest.mark.skipif(os.geteuid() == 0, reason="root enters every folder")
def test_folders_that_cannot_be_entered_are_reported(folder):
    (folder / "shut").mkdir(mode=0)
    assert disk.measure([str(folder)], MANY).inaccessible
    disk.make_readable(str(folder))
    assert not disk.measure([str(folder)], MANY).inaccessible


@pytest.mark.parametrize("replace", [lambda path: None, lambda path: path.touch(), lambda path: path.symlink_to("/")])
def test_a_folder_that_vanishes_while_it_is_looked_at_is_not_out_of_reach(folder, monkeypatch, replace):
    """As those of `tempfile` do, all the time."""
    for name in ("a", "b", "c"):
        (folder / name).mkdir()
    enter = FolderCursor.enter

    def enter_late(cursor: FolderCursor, name: str) -> None:
        (folder / name).rmdir()
        replace(folder / name)
        enter(cursor, name)

    monkeypatch.setattr(FolderCursor, "enter", enter_late)
    usage = disk.measure([str(folder)], MANY)
    assert not usage.inaccessible and usage.entries == 3


def test_what_vanishes_with_its_folder_is_left_out(folder):
    (folder / "gone/inner").mkdir(parents=True)
    (folder / "kept").touch()
    seen = []
    for entry in walk(folder):
        seen.append((entry.path, entry.inaccessible))
        if entry.path == "gone":
            remove_tree(folder / "gone")
    assert sorted(seen) == [("gone", False), ("kept", False)]


def test_unreadable_entries_are_made_readable(folder):
    (folder / "closed/inside").mkdir(parents=True)
    (folder / "closed/inside/file").write_text("x")
    for path in ("closed/inside/file", "closed/inside", "closed"):
        (folder / path).chmod(0)
    disk.make_readable(str(folder))
    modes = [stat.S_IMODE((folder / path).stat().st_mode) for path in ("closed", "closed/inside", "closed/inside/file")]
    assert modes == [0o700, 0o700, 0o600]


def test_making_readable_does_not_follow_links(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o500)
    (folder / "link").symlink_to(outside)
    disk.make_readable(str(folder))
    assert stat.S_IMODE(outside.stat().st_mode) == 0o500


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_change_of_owner_covers_a_folder_and_its_content_alone(folder, tmp_path):
    outside = tmp_path / "outside"
    outside.touch()
    (folder / "a/b").mkdir(parents=True)
    (folder / "a/b/c").touch()
    (folder / "a/link").symlink_to(outside)
    disk.change_owner(str(folder), 4321)
    owners = {path.lstat().st_uid for path in (folder, *folder.rglob("*"))}
    assert owners == {4321} and outside.stat().st_uid == 0


def test_the_newest_entries_are_removed_until_the_rest_fits(folder):
    for number in range(6):
        (folder / f"f{number}").write_bytes(bytes(100_000))
        time.sleep(0.02)  # for the clock of the file system
    (folder / "f0").write_bytes(bytes(100_000))
    disk.trim(str(folder), 350_000, MANY)
    assert sorted(path.name for path in folder.iterdir()) == ["f1", "f2", "f3"]
    disk.trim(str(folder), MANY, 2)
    assert sorted(path.name for path in folder.iterdir()) == ["f1", "f2"]


def test_a_folder_is_removed_after_its_content(folder):
    (folder / "kept").touch()
    time.sleep(0.02)
    (folder / "d/e").mkdir(parents=True)
    time.sleep(0.02)
    (folder / "d").chmod(0o755)
    disk.trim(str(folder), MANY, 2)
    assert sorted(path.name for path in folder.rglob("*")) == ["d", "kept"]


def test_folders_and_unreachable_entries_are_trimmed_too(folder):
    (folder / "kept").touch()
    time.sleep(0.02)
    for number in range(30):
        (folder / f"d{number}/e").mkdir(parents=True)
    disk.trim(str(folder), MANY, 1)
    assert [path.name for path in folder.iterdir()] == ["kept"]
    deep(folder, 300)
    disk.trim(str(folder), MANY, MANY)
    assert [path.name for path in folder.iterdir()] == ["kept"]
    assert not disk.measure([str(folder)], MANY).inaccessible


def test_a_folder_that_was_removed_or_shut_is_there_again(folder):
    folder.rmdir()
    disk.make_readable(str(folder))
    folder.chmod(0)
    disk.make_readable(str(folder))
    (folder / "new").touch()
