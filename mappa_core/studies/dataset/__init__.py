"""Exports a run's actions and verdicts as a data set for fine-tuning elsewhere."""

from mappa_core.studies.dataset.export import export_dataset
from mappa_core.studies.dataset.request import ExportRequest, ExportResult
from mappa_core.studies.dataset.select import Filters

__all__ = ["ExportRequest", "ExportResult", "Filters", "export_dataset"]
