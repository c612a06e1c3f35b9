"""A run's actions and their verdicts as data for fine-tuning elsewhere."""

from mappa_core.studies.dataset.choosing import Filters
from mappa_core.studies.dataset.exporting import Exported, Order, export_dataset

__all__ = ["Exported", "Filters", "Order", "export_dataset"]
