"""Verdicts that say nothing of the action they are given to: two controls, offered as a plugin that no package holds.

`load(modules={"controls": control_offers})` adds it to a registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mappa.testing import FixedCoach
from mappa_core import Advantages, Coach, Estimator, Experience, Offer, hookimpl
from mappa_core.credit.estimators import (
    ReinforcePlusPlus,
    ReinforcePlusPlusOptions,
    Rloo,
    RlooOptions,
)

POINTS = 5.0


@dataclass
class PermutedOptions(ReinforcePlusPlusOptions):
    """REINFORCE++ over rewards that are permuted first."""

    seed: int = 0
    """Draws the permutations."""
    baseline: bool = False
    """Subtract the mean of the other siblings in place of whitening, as `rloo` does."""


class Permuted:
    """REINFORCE++ after the rewards of an iteration were permuted over all its actions that have one, whoever took
    them: the same rewards are given out, to actions that did not earn them. Every iteration has its own permutation.
    """

    def __init__(self, options: PermutedOptions) -> None:
        self._estimator = _build_estimator(options)
        self._seed = options.seed

    def __call__(self, experience: Experience, state: Mapping[str, Any]) -> tuple[Advantages, Mapping[str, Any]]:
        iteration = state["iteration"] if state else 0
        rows = np.flatnonzero(experience.weight > 0)
        reward = experience.reward.copy()
        reward[rows] = np.random.default_rng((self._seed, iteration)).permutation(reward[rows])
        advantages, _ = self._estimator(replace(experience, reward=reward), {})
        return advantages, {"iteration": iteration + 1}


def _build_estimator(options: PermutedOptions) -> Estimator:
    return Rloo(RlooOptions(kl_coef=options.kl_coef)) if options.baseline else ReinforcePlusPlus(options)


@hookimpl
def mappa_estimators() -> Iterable[Offer[Estimator]]:
    yield Offer("permuted", Permuted, PermutedOptions)


@hookimpl
def mappa_coaches() -> Iterable[Offer[Coach]]:
    yield Offer("constant", lambda options: FixedCoach(POINTS))
