"""The one loop: collect, coach, shape, estimate, update, publish, keep."""

from mappa_core.training.run import Run, Trained

__all__ = ["Run", "Trained"]
