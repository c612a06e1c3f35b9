"""The training loop: collect, judge, shape, estimate, update, publish, checkpoint."""

from mappa.training.run import Run, TrainResult

__all__ = ["Run", "TrainResult"]
