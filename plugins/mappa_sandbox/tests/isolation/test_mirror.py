"""A folder is made like another, and what is alike already stays as it is."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mappa_core.safe_walk import FolderCursor
from mappa_sandbox.isolation.mirror import mirror


@pytest.fixture
def folders(tmp_path) -> tuple[Path, Path]:
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    return tmp_path / "source", tmp_path / "target"


def copy(source: Path, target: Path, owner: int | None = None) -> None:
    with FolderCursor(source) as theirs, FolderCursor(target) as ours:
        mirror(theirs, ours, owner)


def content(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in folder.rglob("*"):
        name, mode = str(path.relative_to(folder)), path.lstat().st_mode
        if stat.S_ISLNK(mode):
            found[name] = os.readlink(path)
        elif stat.S_ISREG(mode):
            found[name] = (stat.S_IMODE(mode), path.stat().st_mtime_ns, path.read_bytes())
        else:
            found[name] = (stat.S_IFMT(mode), stat.S_IMODE(mode))
    return found


def fill(folder: Path) -> None:
    (folder / "a/b/c").mkdir(parents=True)
    (folder / "a/b/file").write_bytes(os.urandom(3 << 20))
    (folder / "a/empty").touch()
    (folder / "script").write_text("x")
    (folder / "script").chmod(0o751)
    (folder / "closed").mkdir(mode=0o700)
    os.utime(folder / "script", ns=(1, 123_456_789))
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "loop").symlink_to(".")
    os.mkfifo(folder / "pipe")


def test_all_kinds_of_entries_are_copied(folders):
    source, target = folders
    fill(source)
    copy(source, target)
    assert content(target) == content(source)


def test_what_is_alike_is_not_touched(folders):
    source, target = folders
    fill(source)
    copy(source, target)
    before = {path: (path.lstat().st_ino, path.lstat().st_ctime_ns) for path in target.rglob("*")}
    copy(source, target)
    (source / "a/b/file").write_bytes(b"new")
    copy(source, target)
    after = {path: (path.lstat().st_ino, path.lstat().st_ctime_ns) for path in target.rglob("*")}
    changed = {str(path.relative_to(target)) for path in before if before[path] != after[path]}
    assert changed == {"a/b/file", "a/b"}  # of a folder, the time of its last entry


def test_a_change_that_keeps_size_and_time_is_seen(folders):
    source, target = folders
    (source / "f").write_text("one")
    copy(source, target)
    times = (source / "f").stat()
    (source / "f").write_text("two")
    os.utime(source / "f", ns=(times.st_atime_ns, times.st_mtime_ns))
    copy(source, target)
    assert (target / "f").read_text() == "two"


def test_everything_else_is_removed_and_kinds_are_replaced(folders):
    source, target = folders
    fill(target)
    for name in ("link", "loop", "script"):
        (source / name).mkdir()
    (source / "a").write_text("a file")
    (source / "pipe").symlink_to("nowhere")
    copy(source, target)
    assert content(target) == content(source)


def test_nothing_is_written_or_read_through_a_link(folders, tmp_path):
    source, target = folders
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("outside")
    (source / "to").mkdir()
    (source / "to/file").write_text("inside")
    (source / "out").symlink_to(outside)
    (target / "to").symlink_to(outside)
    (target / "out").mkdir()
    copy(source, target)
    assert (outside / "file").read_text() == "outside" and content(target) == content(source)


def test_a_second_name_of_a_file_is_no_way_to_change_it(folders, tmp_path):
    source, target = folders
    (tmp_path / "kept").write_text("one")
    os.link(tmp_path / "kept", target / "f")
    (source / "f").write_text("two")
    copy(source, target)
    assert (tmp_path / "kept").read_text() == "one"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_comes_back_is_no_program_of_root(folders):
    source, target = folders
    (source / "f").write_text("x")
    (source / "f").chmod(0o6755)
    copy(source, target, owner=4321)
    status = (target / "f").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (4321, 4321, 0o755)


def test_folders_deeper_than_any_path_are_copied(folders):
    source, target = folders
    here = os.open(source, os.O_RDONLY)
    for _ in range(100):
        os.mkdir("d" * 50, dir_fd=here)
        below = os.open("d" * 50, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    copy(source, target)
    copy(target, source)


TREES = st.recursive(
    st.binary(max_size=8) | st.just(None),
    lambda inner: st.dictionaries(st.sampled_from(["a", "b", "\n", "ü", "-"]), inner, max_size=4),
    max_leaves=12,
)


def plant(folder: Path, tree: object) -> None:
    for name, inside in tree.items() if isinstance(tree, dict) else ():
        path = folder / name
        if isinstance(inside, dict):
            path.mkdir()
            plant(path, inside)
        elif inside is None:
            path.symlink_to("a")
        else:
            path.write_bytes(inside)


@given(TREES, TREES)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_folder_becomes_like_any_other(tmp_path_factory, one_tree, other_tree):
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("target")
    plant(source, one_tree)
    plant(target, other_tree)
    copy(source, target)
    assert content(target) == content(source)
