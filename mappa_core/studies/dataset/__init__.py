"""Exports a run's actions and verdicts as a data set for fine-tuning elsewhere."""

from mappa_core.studies.dataset.choosing import Filters
from mappa_core.studies.dataset.exporting import export_dataset
from mappa_core.studies.dataset.order import ExportRequest, ExportResult

__all__ = ["ExportRequest", "ExportResult", "Filters", "export_dataset"]
