"""The estimator `maxrl`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mappa_core import ConfigError
from mappa_core.engine import Advantages, Experience


@dataclass
class MaxRLOptions:
    """MaxRL: reward over the mean reward of its group, less 1."""


class MaxRL:
    """Maximum Likelihood Reinforcement Learning (Tajwar et al. 2026, arXiv:2602.02710): `A = (R - mean) / mean` over
    the actions of one agent, task and turn, 0 where the mean is 0, on every token of the row.

    For rewards of 0 and 1 that are 1 with probability p, and n siblings, the expected gradient is that of the order
    n - 1 of the expansion `log p = -sum_k (1 - p)^k / k`, `grad p * sum_{k < n} (1 - p)^(k - 1)`: of log p itself with
    many siblings, of p with two. (Taken off at a mean of 0, too, the baseline would add an order, and noise.) So tasks
    that seldom succeed weigh more than by REINFORCE. Other rewards of at least 0 weigh by their share of the group's.
    """

    def __init__(self, options: MaxRLOptions) -> None:
        pass

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        active = experience.weight > 0
        reward = np.where(active, experience.reward, 0.0).astype(np.float64)
        if (reward < 0.0).any():
            raise ConfigError(
                f"estimator maxrl: a reward is {reward.min():g}; it takes rewards as shares of a group's, so they "
                "must be at least 0 (shapers: [{use: scale}] or [{use: outcome}])"
            )
        groups = experience.group.max(initial=-1) + 1
        counts = np.bincount(experience.group, active, minlength=groups)
        mean = (np.bincount(experience.group, reward, minlength=groups) / np.maximum(counts, 1.0))[experience.group]
        relative = np.divide(reward - mean, mean, out=np.zeros_like(mean), where=active & (mean > 0.0))
        return Advantages(advantages=np.repeat(relative, experience.lengths).astype(np.float32)), state
