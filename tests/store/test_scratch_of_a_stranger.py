"""A run whose id is a path."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mappa.store.folder import RunFolder
from mappa_core import RunError


def test_the_id_of_a_run_that_is_a_path_makes_no_file(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "runs", "one", plugin="mathchat", recipe="tiny", config="seed: 0\n") as folder:
        run = folder.path
    with closing(sqlite3.connect(run / "run.db", isolation_level=None)) as database:
        database.execute("UPDATE meta SET value = '../out' WHERE name = 'run'")
    (tmp_path / "out.db").write_text("kept")
    with pytest.raises(RunError, match=r"the id of its run is '\.\./out'"):
        RunFolder.open(run, scratch=tmp_path / "scratch")
    assert (tmp_path / "out.db").read_text() == "kept"
