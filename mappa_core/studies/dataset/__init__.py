"""A run's actions and their verdicts as data for fine-tuning elsewhere."""

from mappa_core.studies.dataset.choosing import Filters
from mappa_core.studies.dataset.exporting import export_dataset
from mappa_core.studies.dataset.order import Exported, Order

__all__ = ["Exported", "Filters", "Order", "export_dataset"]
