"""Loss reduction: how much each token counts in the loss of an optimiser step."""

from __future__ import annotations

import numpy as np

from mappa_core import ConfigError
from mappa_core.engine import Experience, TrainSection
from mappa_engine.arrays import Float64, Int64


class LossReduction:
    """The mean loss of a step as a sum over its tokens, independent of how they are split into micro-batches and ranks.

    With losses l of the tokens t of rows r, weights w of rows and n_r tokens in a row, `train.mean` gives

        token     sum_r w_r sum_t l_rt       / sum_r w_r n_r     every token counts the same (DAPO, arXiv:2503.14476)
        sequence  sum_r w_r sum_t l_rt / n_r / sum_r w_r         every action counts the same (GRPO, arXiv:2402.03300)
        fixed     sum_r w_r sum_t l_rt       / sum_r w_r / L     L is `train.mean_length` (Dr. GRPO, arXiv:2503.20783)

    where sums are over all rows of the step. `token` and `sequence` divide by lengths that the policy itself chose, so
    their gradient is proportional to that of the expected reward only if reward does not depend on length. `fixed`
    divides by no length, but still by the number of rows, which the policy also influences if it decides how often it
    acts.
    """

    def __init__(self, experience: Experience, train: TrainSection) -> None:
        self._experience, self._kind = experience, train.mean
        if train.mean == "fixed" and train.mean_length is None:
            raise ConfigError(
                "train.mean=fixed divides by train.mean_length, which is not set; sampling.max_tokens is the usual one"
            )
        self._length = train.mean_length
        weight = experience.weight.astype(np.float64)
        # An action without tokens has no loss to scale; its length is raised only so that nothing is divided by 0.
        self.scale: Float64 = weight / np.maximum(experience.lengths, 1) if train.mean == "sequence" else weight
        """(R,) factor of the losses of a row's tokens in the sum."""

    def divisor(self, rows: Int64) -> float:
        """Return the divisor of the sum over `rows`."""
        weight = self._experience.weight[rows]
        if self._kind == "token":
            return float((weight * self._experience.lengths[rows]).sum(dtype=np.float64))
        return float(weight.sum(dtype=np.float64)) * (self._length if self._length and self._kind == "fixed" else 1)
