"""What the author of an estimator writes to prove it."""

import numpy as np

from mappa.look.conformance import EstimatorContract
from mappa_core import Advantages


class Steady:
    """Rewards less the mean of earlier iterations: what is learned now has no part in its own baseline."""

    def __call__(self, experience, state):
        counts = experience.weight > 0
        if not counts.any():
            return Advantages(advantages=np.zeros(len(experience.tokens), np.float32)), state
        baseline = state["mean"] if state else 0.0
        worth = np.where(counts, experience.reward - baseline, 0.0).astype(np.float32)
        mean = float(experience.reward[counts].mean())
        return Advantages(advantages=worth[experience.row_of_token]), {"mean": 0.9 * baseline + 0.1 * mean}


class TestSteady(EstimatorContract):
    unbiased_for = "action"

    def estimator(self):
        return Steady()

    def state(self):
        return {"mean": 3.0}
