"""Imports logs of other frameworks as runs: messages of OpenAI's chat API, or OpenTelemetry spans."""

from mappa_analysis.importing.import_run import ImportResult, import_file
from mappa_analysis.importing.log_mapping import Format, LogMapping

__all__ = ["Format", "ImportResult", "LogMapping", "import_file"]
