"""Imports logs of other frameworks as runs, with the labels that people gave them."""

from mappa.look.importing.import_result import ImportResult
from mappa.look.importing.import_run import import_logs
from mappa.look.importing.log_mapping import Format, LogMapping

__all__ = ["Format", "ImportResult", "LogMapping", "import_logs"]
