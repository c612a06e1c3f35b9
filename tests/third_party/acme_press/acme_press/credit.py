"""Credit: a length penalty, and a baseline from the previous iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mappa_core import Advantages, Experience, NoOptions, Rewards, Trajectory


@dataclass
class BriefOptions:
    free: int = 16
    """Characters that cost nothing."""
    price: float = 0.01
    """What each further character costs."""


class Brief:
    """`r - price * max(0, characters - free)`."""

    def __init__(self, options: BriefOptions) -> None:
        self._options = options

    def __call__(self, trajectory: Trajectory, rewards: Rewards) -> Rewards:
        over = [max(0, len(step.completion.text) - self._options.free) for step in trajectory.steps]
        pairs = zip(rewards, over, strict=True)
        return tuple(None if reward is None else reward - self._options.price * more for reward, more in pairs)


class Remembered:
    """Advantages: rewards minus the mean reward of the previous iteration."""

    def __init__(self, options: NoOptions) -> None:
        pass

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        counts = experience.weight > 0
        before = state["before"] if state else 0.0
        worth = np.where(counts, experience.reward - before, 0.0).astype(np.float32)
        now = {"before": float(experience.reward[counts].mean())} if counts.any() else state
        return Advantages(advantages=worth[experience.row_of_token]), now
