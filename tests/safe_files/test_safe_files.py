"""Files below a folder of a stranger: by descriptors, no link, regular files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mappa_core.safe_files import (
    UnsafeFileError,
    find_regular,
    open_own,
    open_regular,
    replace_file,
    split_name,
)


@pytest.mark.parametrize("name", ["", "/", "/etc/passwd", "..", "a/../b", "a//b", "./a", "a/", "a\0b"])
def test_a_path_that_is_not_plain_leads_out(name: str) -> None:
    with pytest.raises(UnsafeFileError, match="leads out of its folder"):
        split_name(name)


def test_what_is_no_regular_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    for name, kind in [("link", "a symbolic link"), ("folder", "a folder"), ("fifo", "a FIFO")]:
        for opened in (open_regular, find_regular, open_own):
            with pytest.raises(UnsafeFileError, match=f"is {kind}, and has to be a regular file"):
                opened(tmp_path, name)
    with open_regular(tmp_path, "file") as source:
        assert source.read() == b"content"
    assert find_regular(tmp_path, "nothing") is None and find_regular(tmp_path, "nowhere/nothing") is None


def test_a_link_on_the_way_is_not_followed_and_the_folder_that_the_user_named_is(tmp_path: Path) -> None:
    (tmp_path / "run" / "inside").mkdir(parents=True)
    (tmp_path / "run" / "inside" / "file").write_text("content")
    (tmp_path / "run" / "way").symlink_to("inside")
    (tmp_path / "latest").symlink_to("run")
    with open_regular(tmp_path / "latest", "inside/file") as source:
        assert source.read() == b"content"
    for act in (open_regular, find_regular, open_own, lambda root, name: replace_file(root, name, b"other")):
        with pytest.raises(UnsafeFileError, match="does not lie in a folder: 'way' is a symbolic link"):
            act(tmp_path / "latest", "way/file")
        with pytest.raises(UnsafeFileError, match="does not lie in a folder: 'inside/file' is no regular file"):
            act(tmp_path / "latest", "inside/file/more")
    assert (tmp_path / "run" / "inside" / "file").read_text() == "content"


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UnsafeFileError, match="has 1,099,511,627,776 bytes, and may have 10"):
        open_regular(tmp_path, "file", max_bytes=10)


def test_a_link_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("kept")
    (tmp_path / "link").symlink_to("elsewhere")
    replace_file(tmp_path, "link", b"new")
    replace_file(tmp_path, "made/on/the/way", b"new", make=True)
    assert (tmp_path / "elsewhere").read_text() == "kept"
    assert not (tmp_path / "link").is_symlink() and (tmp_path / "link").read_text() == "new"
    assert (tmp_path / "made" / "on" / "the" / "way").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "link", "made"]


def test_a_file_of_several_names_is_not_written_in_place(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("kept")
    os.link(tmp_path / "elsewhere", tmp_path / "log")
    with pytest.raises(UnsafeFileError, match="several names"):
        open_own(tmp_path, "log")
