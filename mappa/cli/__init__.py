"""The command line `mappa`: one module per command, imported on first use."""

from mappa.cli.main import main

__all__ = ["main"]
