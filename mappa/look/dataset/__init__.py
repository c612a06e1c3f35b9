"""Exports a run's actions and verdicts as a data set for fine-tuning elsewhere."""

from mappa.look.dataset.export import export_dataset
from mappa.look.dataset.request import ExportRequest, ExportResult
from mappa.look.dataset.select import Filters

__all__ = ["ExportRequest", "ExportResult", "Filters", "export_dataset"]
