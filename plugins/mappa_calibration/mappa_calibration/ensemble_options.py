"""Options of the coach `ensemble`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from mappa_core import ConfigError, Use

CombineMethod = Literal["mean", "median", "trimmed_mean", "min", "weighted", "calibrated"]


@dataclass
class EnsembleOptions:
    members: list[Use] = field(default_factory=list)
    """Coaches that judge every action; at least two."""
    combine: CombineMethod = "median"
    """`trimmed_mean`: without the highest and the lowest fifth, at least one each."""
    weights: list[float] = field(default_factory=list)
    """One per member, for `weighted`."""
    calibration: str | None = None
    """File that `mappa coach calibrate` wrote for these members, for `calibrated`."""
    abstain_below: float = 0.0
    """Probability of the likeliest label below which a calibrated verdict abstains."""
    metric: str = "correct"
    """The workflow's metric; the agreement of calibrated verdicts with it is watched while the run trains."""
    at_least: int = 1
    """Minimum number of members with a score; with fewer the verdict has no score."""
    max_spread: float | None = None
    """Points between the highest and the lowest score above which the members disagree; None: never."""
    escalate_to: Use | None = None
    """Coach that decides if the members disagree; None: the verdict abstains."""

    def check(self) -> None:
        count = len(self.members)
        if count < 2:
            raise ConfigError(f"members: an ensemble takes at least two coaches, and these are {count}")
        for place, member in enumerate(self.members):
            if member in self.members[:place]:
                same = f"{self.members.index(member)} and {place} are the same {member.use}, asked the same"
                raise ConfigError(f"members: {same}: give each a model, a rubric or a seed of its own")
        for combine, key in (("weighted", "weights"), ("calibrated", "calibration")):
            if (self.combine == combine) != bool(getattr(self, key)):
                raise ConfigError(f"{key}: combine={combine} needs it, and nothing else takes it: set both or neither")
        if self.weights and (len(self.weights) != count or not all(0 < weight < math.inf for weight in self.weights)):
            raise ConfigError(f"weights: must be a number above 0 for each of {count} members, not {self.weights}")
        if not 0 <= self.abstain_below <= 1:
            raise ConfigError(f"abstain_below: must be a share from 0 to 1, not {self.abstain_below!r}")
        if self.max_spread is not None and not 0 <= self.max_spread < math.inf:
            raise ConfigError(f"max_spread: must be at least 0 and finite, not {self.max_spread!r}")
        if not 1 <= self.at_least <= count:
            raise ConfigError(f"at_least: must lie between 1 and the {count} members, not {self.at_least}")
        if self.escalate_to is not None and self.max_spread is None:
            raise ConfigError("escalate_to: is never asked without max_spread: set how far members may be apart")
