"""Offsets: the points by which scores of every stratum are too high, fitted jointly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mappa_calibration.actions import LENGTH, Float64
from mappa_calibration.comparison import Comparison, design, log_tokens

StratumName = tuple[str, str]  # (stratifier, stratum)
_SUMS = ("products", "moments", "actions")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OffsetModel:
    """Regression of one agent's excess points on S strata, of all stratifiers together, as sufficient statistics. In
    every iteration excess and membership are residualized on the groups of the comparison; sums of their products
    decay."""

    names: tuple[StratumName, ...] = ()
    products: Float64 = field(default_factory=lambda: np.zeros((0, 0)))  # (S, S) membership by membership
    moments: Float64 = field(default_factory=lambda: np.zeros(0))  # (S,) membership by excess
    actions: Float64 = field(default_factory=lambda: np.zeros(0))  # (S,) how many there were
    log_length: float = 0.0  # Sum of the binary logarithms of their tokens.
    count: float = 0.0  # Of all actions.

    def with_comparison(self, found: Comparison, strata: Sequence[str], decay: float) -> OffsetModel:
        """Return the model after another iteration; what was before weighs `decay` of it."""
        new, columns = design(found.actions, strata)
        names = (*self.names, *(name for name in new if name not in self.names))
        more = (0, len(names) - len(self.names))
        membership = np.zeros((len(found.excess), len(names)))
        membership[:, [names.index(name) for name in new]] = columns
        rest = found.within(membership)
        return OffsetModel(
            names=names,
            products=decay * np.pad(self.products, (more, more)) + rest.T @ rest,
            moments=decay * np.pad(self.moments, more) + rest.T @ found.within(found.excess),
            actions=decay * np.pad(self.actions, more) + membership.sum(axis=0),
            log_length=decay * self.log_length + float(log_tokens(found.actions).sum()),
            count=decay * self.count + len(found.excess),
        )

    def fit(self, shrink: float) -> dict[StratumName, float]:
        """Fit the points by which the scores of every stratum are too high; weighted by actions, the offsets of a
        stratifier average to zero. The fit is joint, so that strata that often occur together are not corrected twice.
        `shrink` is the ridge strength in pseudo-actions: the fit is Henderson's best linear unbiased prediction of
        random offsets if the noise has `shrink` times their variance. That of `length` is points per doubling."""
        ridge = shrink * np.eye(len(self.names))
        # Not `solve`: the strata of a stratifier add up to a constant, and without a ridge the matrix is singular.
        offsets, *_ = np.linalg.lstsq(self.products + ridge, self.moments, rcond=None)
        fit = dict(zip(self.names, offsets.tolist(), strict=True))
        weight = dict(zip(self.names, self.actions.tolist(), strict=True))
        means = {LENGTH: 0.0}
        for stratifier in {name[0] for name in self.names} - {LENGTH}:
            own = [name for name in self.names if name[0] == stratifier]
            means[stratifier] = sum(weight[name] * fit[name] for name in own) / sum(weight[name] for name in own)
        return {name: fit[name] - means[name[0]] for name in self.names}

    @property
    def mean_log_length(self) -> float:
        """Mean of the binary logarithms of the actions' tokens."""
        return self.log_length / self.count

    def state_dict(self) -> dict[str, Any]:
        sums = {key: getattr(self, key).tolist() for key in _SUMS}
        return {"names": list(map(list, self.names)), **sums, "log_length": self.log_length, "count": self.count}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> OffsetModel:
        names = tuple((stratifier, stratum) for stratifier, stratum in state["names"])
        sums: dict[str, Any] = {key: np.array(state[key], dtype=np.float64) for key in _SUMS}
        sums["products"] = sums["products"].reshape(len(names), len(names))
        found = cls(names=names, log_length=state["log_length"], count=state["count"])
        return replace(found, **sums)
