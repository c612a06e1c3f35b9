"""Which names of plugins are those of files and modules."""

from __future__ import annotations

import sys
from types import ModuleType

from mappa.config.plugin_files import names_file


def test_a_module_that_was_not_imported_is_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "team_of_a_file", ModuleType("team_of_a_file"))
    assert names_file("team_of_a_file") and names_file("__main__") and not names_file("no_such_team")
