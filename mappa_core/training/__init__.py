"""The training loop: collect, judge, shape, estimate, update, publish, checkpoint."""

from mappa_core.training.run import Run, TrainResult

__all__ = ["Run", "TrainResult"]
