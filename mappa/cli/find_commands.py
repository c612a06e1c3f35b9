"""Finds the commands of other packages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib.metadata import EntryPoint

from mappa_core.plugins import sort_entry_points

COMMAND_GROUP = "mappa.commands"  # `mappa NAME` runs the click command that an entry point names.


def find_commands(block: Collection[str] = ()) -> Mapping[str, EntryPoint]:
    """Commands of packages that are not blocked, not imported. Raises PluginError if two packages offer one."""
    return sort_entry_points(COMMAND_GROUP, "command", block=block)
