"""The command `mappa`: one file a command, imported when it is asked for."""

from mappa_core.cli.main import main

__all__ = ["main"]
