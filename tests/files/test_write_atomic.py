"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from mappa_core import RunError
from mappa_core.files import write_atomic


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("folder", "folder: cannot be written: Is a directory: a folder stands in its place"),
        ("nowhere/file", "cannot be written: No such file or directory: its folder is missing"),
    ],
)
def test_place_that_cannot_be_written_is_an_error_that_leaves_nothing(tmp_path: Path, place: str, reason: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match=reason):
        write_atomic(tmp_path / place, "text")
    assert [path.name for path in tmp_path.rglob("*")] == ["folder"]
