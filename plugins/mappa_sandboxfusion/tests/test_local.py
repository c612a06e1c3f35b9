"""What a server says about files is not trusted."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import ToolError
from mappa_sandboxfusion.chunks import pack_chunks, read_chunks, split_file
from mappa_sandboxfusion.local import FileHashes, is_plain_name, linked_inputs, remove_files, scan_folder, write_file


@pytest.fixture
def source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.write_bytes(b"new")
    return source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    "name", ["", "/etc/x", "../x", "a/../x", "a//b", "a/", "./a", ".", "..", "a\0b", "x" * 5000, "\udcff"]
)
def test_a_name_that_leads_elsewhere_is_refused(folder: Path, source: Path, name: str) -> None:
    assert not is_plain_name(name)
    with pytest.raises(ToolError, match="does not lie in the workspace"):
        write_file(folder, name, source)


@given(st.lists(st.sampled_from(["a", "b", "..", ".", "", "ü", "c d", "\n"]), min_size=1).map("/".join))
def test_a_plain_name_stays_below_its_folder(name: str) -> None:
    inside = Path(os.path.normpath(Path("/work") / name))
    assert not is_plain_name(name) or (inside.is_relative_to("/work") and str(inside) == f"/work/{name}")


def test_a_file_replaces_whatever_stands_in_its_place(folder: Path, source: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("mine")
    away = tmp_path / "away"
    away.mkdir()
    (folder / "link").symlink_to(outside)
    (folder / "through").symlink_to(away)
    (folder / "file").write_text("old")
    (folder / "tree" / "deep").mkdir(parents=True)
    os.mkfifo(folder / "pipe")
    for name in ("link", "through/x", "file/x", "tree", "pipe", "a/b/c"):
        write_file(folder, name, source)
        assert (folder / name).read_bytes() == b"new"
        assert not (folder / name).is_symlink()
    assert outside.read_text() == "mine"
    assert list(away.iterdir()) == []


def test_removing_does_not_go_through_links(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").write_text("mine")
    (folder / "through").symlink_to(outside)
    remove_files(folder, ["through/x", "never/there", "nor"])
    assert (outside / "x").exists()
    remove_files(folder, ["through"])
    assert (outside / "x").exists() and not (folder / "through").is_symlink()


def test_only_regular_files_are_sent(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("1")
    (folder / "data.csv").symlink_to(tmp_path / "data.csv")
    (folder / "sub").mkdir()
    (folder / "sub" / "é").write_text("x")
    os.mkfifo(folder / "pipe")
    found = scan_folder(folder)
    assert {name: (file.size, file.sha256) for name, file in found.items()} == {
        "sub/é": (1, hashlib.sha256(b"x").hexdigest())
    }
    inputs = {"data.csv": tmp_path / "data.csv", "gone.csv": tmp_path / "data.csv"}
    assert list(linked_inputs(folder, inputs)) == ["data.csv"]


def test_a_file_of_a_task_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"gone\.csv of a task cannot be read"):
        FileHashes().of(tmp_path / "gone.csv")


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 20))
def test_files_arrive_whole_however_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], chunk: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    for index, size in enumerate(sizes):
        (folder / f"{index}").write_bytes(os.urandom(size))
    files = scan_folder(folder)
    parts = [part for name, file in files.items() for part in split_file("file", name, folder / name, file, chunk)]
    arrived: dict[str, bytes] = dict.fromkeys(files, b"")
    for batch in pack_chunks(parts, chunk):
        data = read_chunks(batch)
        assert len(data) <= chunk
        for part in batch:
            assert part.offset == len(arrived[part.name])
            arrived[part.name] += data[: part.size]
            data = data[part.size :]
    assert arrived == {name: (folder / name).read_bytes() for name in files}


def test_a_file_that_shrinks_while_it_is_sent_is_noticed(folder: Path) -> None:
    (folder / "x").write_bytes(b"12345")
    parts = list(split_file("file", "x", folder / "x", scan_folder(folder)["x"], 100))
    (folder / "x").write_bytes(b"1")
    with pytest.raises(ToolError, match="became shorter"):
        read_chunks(parts)
    (folder / "x").unlink()
    with pytest.raises(ToolError, match="cannot be read"):
        read_chunks(parts)
