"""Options of the coach `bias_corrected`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from mappa_core import ConfigError, Use

AlarmResponse = Literal["warn", "correct", "pause"]


@dataclass
class AlarmOptions:
    """Alarms on the coach's score gaps between strata: `warn`, `correct` or `pause` (stop with a checkpoint). A resumed
    run may change them."""

    level: AlarmResponse = "warn"
    """Response to a gap that was not acknowledged."""
    widening: AlarmResponse = "warn"
    """Response to a growing gap, acknowledged or not."""
    acknowledged: list[str] = field(default_factory=list)
    """Known and accepted gaps, as `AGENT/STRATIFIER`."""
    min_gap: float = 0.25
    """Points below which a gap, or its growth, raises no alarm even if it is significant."""

    def check(self) -> None:
        if not 0 <= self.min_gap < math.inf:
            raise ConfigError(f"min_gap: must be at least 0 and finite, not {self.min_gap!r}")


@dataclass
class BiasOptions:
    coach: Use = field(default_factory=Use)
    """The coach whose verdicts are watched and corrected."""
    strata: list[str] = field(default_factory=lambda: ["task"])
    """Stratifiers by which its bias is estimated: `task` and those of the workflow."""
    metric: str = "correct"
    """The workflow's metric, which says how a trajectory came out."""
    correct: bool = True
    """Correct from the first iteration that has data to estimate the bias from; false: watch, and correct once an alarm
    says so."""
    decay: float = 0.9
    """Weight of an iteration relative to the next one."""
    shrink: float = 20.0
    """Ridge strength in pseudo-actions: halves the estimated gap between two strata with that many actions each."""
    max_points: float = 3.0
    """Maximum correction of a score in points."""
    alarms: AlarmOptions = field(default_factory=AlarmOptions)

    def check(self) -> None:
        if not 0 < self.decay <= 1:
            raise ConfigError(f"decay: must be above 0 and at most 1, not {self.decay!r}")
        if not 0 <= self.shrink < math.inf:
            raise ConfigError(f"shrink: must be at least 0 and finite, not {self.shrink!r}")
        if not 0 < self.max_points < math.inf:
            raise ConfigError(f"max_points: must be above 0 and finite, not {self.max_points!r}")
        for name in self.alarms.acknowledged:
            if name.rpartition("/")[2] not in self.strata:
                where = f"AGENT/STRATIFIER with a stratifier of strata, which has {', '.join(self.strata)}"
                raise ConfigError(f"alarms.acknowledged: {name!r} is not {where}")
