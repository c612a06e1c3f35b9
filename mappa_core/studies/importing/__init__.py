"""Logs of other frameworks made into runs: messages as OpenAI's API writes them, spans as OpenTelemetry does."""

from mappa_core.studies.importing.importing import Imported, import_file
from mappa_core.studies.importing.mapping import Format, Mapped

__all__ = ["Format", "Imported", "Mapped", "import_file"]
