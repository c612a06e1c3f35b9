"""Exports a run's actions and verdicts as a data set for fine-tuning elsewhere."""

from mappa_analysis.dataset.export import export_dataset
from mappa_analysis.dataset.request import ExportRequest, ExportResult
from mappa_analysis.dataset.select import Filters

__all__ = ["ExportRequest", "ExportResult", "Filters", "export_dataset"]
