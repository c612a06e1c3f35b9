"""Learning-rate schedule."""

from __future__ import annotations

import math

from mappa_core.engine import TrainSection


def learning_rate(train: TrainSection, progress: float, step: int, steps: int) -> float:
    """Return the learning rate of step `step` (from 0) of the `steps` in this iteration.

    `progress` in [0, 1) is the share of iterations done; each step advances it by its share of the iteration. Warm-up
    is linear and reaches the full rate at its last step; then `linear` and `cosine` decay from the full rate to
    `min_lr_share` of it at the end of the run.
    """
    done = progress * train.iterations + step / steps
    if done < train.warmup_iterations:
        # `progress` is rounded, so `done` may lie slightly before the end of the warm-up: hence the bound of 1.
        return train.learning_rate * min(1.0, (done + 1.0 / steps) / train.warmup_iterations)
    if train.schedule == "constant":
        return train.learning_rate
    share = (done - train.warmup_iterations) / (train.iterations - train.warmup_iterations)
    height = 1.0 - share if train.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * share))
    return train.learning_rate * (train.min_lr_share + (1.0 - train.min_lr_share) * height)
