"""An archive of a stranger, and records that name paths in it and beside it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from mappa_core import ToolError, ToolLimits
from mappa_core.sandbox import FileChange
from mappa_core.tools.file_archive import archived_path, copy_archive, open_content, store_content
from mappa_core.tools.scratch import ScratchRunner

CONTENT = b"content"
SHA = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    (tmp_path / "given").write_bytes(CONTENT)
    with (tmp_path / "given").open("rb") as source:
        assert store_content(tmp_path / "files", source) == SHA
    return tmp_path / "files"


def bench(archive: Path) -> ScratchRunner:
    return ScratchRunner({}, {"python": ToolLimits()}, {"python": 0}, archive)


@pytest.mark.parametrize(
    "sha256", ["", "ab", "../../etc/passwd", "/etc/passwd", SHA.upper(), SHA + "0", f"{SHA[:-1]}/"]
)
def test_a_hash_that_is_none_names_no_file(archive, sha256):
    with pytest.raises(ToolError, match="is no hash of a content"):
        archived_path(archive, sha256)


@pytest.mark.parametrize("place", ["files", "files/{0}", "files/{0}/{1}"])
def test_nothing_of_an_archive_is_followed(archive, tmp_path, place):
    (tmp_path / "secret").mkdir()
    path = tmp_path / place.format(SHA[:2], SHA)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(OSError, match="symbolic link"):
        open_content(archive, SHA)
    copy_archive(archive, tmp_path / "copy")
    assert not any(entry.is_file() for entry in (tmp_path / "copy").rglob("*"))


def test_a_copy_of_an_archive_holds_contents_alone(archive, tmp_path):
    (archive / "link").symlink_to("/etc/passwd")
    os.mkfifo(archive / "fifo")
    (archive / "other").write_text("no content")
    copy_archive(archive, tmp_path / "copy")
    files = [path for path in (tmp_path / "copy").rglob("*") if not path.is_dir()]
    assert files == [archived_path(tmp_path / "copy", SHA)] and files[0].read_bytes() == CONTENT


@pytest.mark.parametrize("path", ["absolute", "../out", "a/../../out", "", ".", "a//b", "link/out", "a\0b"])
def test_a_recorded_path_makes_no_file_outside_of_the_bench(archive, tmp_path, path):
    files = {str(tmp_path / "out") if path == "absolute" else path: archived_path(archive, SHA)}
    work = tmp_path / "bench" / "work"
    work.mkdir(parents=True)
    (work / "link").symlink_to(tmp_path)
    with pytest.raises(ToolError, match=r"leads out of its folder|does not lie in a folder"):
        bench(archive)._workspace(work, {}, files)
    assert not (tmp_path / "out").exists()


def test_a_damaged_content_is_not_laid_out(archive, tmp_path):
    archived_path(archive, SHA).write_bytes(b"other")
    with pytest.raises(ToolError, match="is damaged"):
        bench(archive)._workspace(tmp_path / "work", {}, {"a": archived_path(archive, SHA)})


def test_a_file_of_the_archive_is_laid_out_by_its_recorded_name(archive, tmp_path):
    contents = bench(archive)._contents([FileChange(path="a/b", kind="created", size=7, sha256=SHA)])
    workspace = bench(archive)._workspace(tmp_path / "work", {}, contents)
    assert workspace.files == ("a/b",) and (workspace.path / "a" / "b").read_bytes() == CONTENT
