"""Options of the coach `bias_corrected`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from mappa_calibration.actions import AGENT, LENGTH
from mappa_core import ConfigError, Use

AlarmResponse = Literal["warn", "pause"]
Method = Literal["blind", "second", "siblings"]


@dataclass
class AlarmOptions:
    """Alarms on the coach's score gaps between strata: `warn`, or `pause` (stop with a checkpoint). A resumed run may
    change them."""

    level: AlarmResponse = "warn"
    """Response to a gap that was not acknowledged."""
    widening: AlarmResponse = "warn"
    """Response to a growing gap, acknowledged or not."""
    acknowledged: list[str] = field(default_factory=list)
    """Known and accepted gaps, as `AGENT/STRATIFIER`: no level alarm."""
    min_gap: float = 0.25
    """Points below which a gap, or its growth, raises no alarm even if it is significant."""

    def check(self) -> None:
        if not 0 <= self.min_gap < math.inf:
            raise ConfigError(f"min_gap: must be at least 0 and finite, not {self.min_gap!r}")


@dataclass
class BiasOptions:
    coach: Use = field(default_factory=Use)
    """The coach whose verdicts are watched and corrected."""
    strata: list[str] = field(default_factory=lambda: [AGENT, LENGTH])
    """Stratifiers by which its preferences are estimated: `agent`, `length`, `task` (the task's own stratum) and those
    of the workflow."""
    words: dict[str, list[str]] = field(default_factory=dict)
    """By stratifier, words that are hidden when actions are judged again, so that liking them shows."""
    second: Use | None = None
    """A coach of another kind with the same scale, which judges again; its preferences and errors must be others."""
    share: float = 0.25
    """Share of the actions that are judged twice, if that tells a preference of `strata`."""
    initial_share: float = 1.0
    """Share that is judged twice, where `share` is less, until each preference that second judgements identify is shown
    or known to within `alarms.min_gap` points, and for ten iterations at most after its stratum was first seen."""
    correct: bool = True
    """Take off a preference once it is shown; false: only watch."""
    decay: float = 0.97
    """Weight of an iteration relative to the next one."""
    shrink: float = 5.0
    """Ridge strength of the correction in pseudo-actions."""
    max_points: float = 3.0
    """Maximum correction of a score in points."""
    alarms: AlarmOptions = field(default_factory=AlarmOptions)

    def method(self, stratifier: str) -> Method:
        """What actions are compared with by `stratifier`. Siblings show a difference; the others, a preference."""
        if self.second is not None:
            return "second"
        return "blind" if stratifier == AGENT or stratifier in self.words else "siblings"

    @property
    def identified(self) -> list[str]:
        """The stratifiers by which second judgements tell a preference from merit."""
        return [stratifier for stratifier in self.strata if self.method(stratifier) != "siblings"]

    def check(self) -> None:
        if not 0 < self.decay <= 1:
            raise ConfigError(f"decay: must be above 0 and at most 1, not {self.decay!r}")
        for name in ("share", "initial_share"):
            if not 0 <= (share := getattr(self, name)) <= 1:
                raise ConfigError(f"{name}: must be from 0 to 1, not {share!r}")
        if not 0 <= self.shrink < math.inf:
            raise ConfigError(f"shrink: must be at least 0 and finite, not {self.shrink!r}")
        if not 0 < self.max_points < math.inf:
            raise ConfigError(f"max_points: must be above 0 and finite, not {self.max_points!r}")
        if not self.strata or len(set(self.strata)) < len(self.strata):
            raise ConfigError(f"strata: must name stratifiers, each once, not {self.strata}")
        if self.second is not None and self.second == self.coach:
            raise ConfigError("second: is the coach itself, which likes the same; name a coach of another kind")
        if self.share == 0 and (told := self.identified):
            raise ConfigError(f"share: must be above 0, as a preference by {told[0]} is found by judging actions twice")
        for name in set(self.words) - set(self.strata):
            raise ConfigError(f"words: {name!r} is not among strata, which has {', '.join(self.strata)}")
        if AGENT in self.words or LENGTH in self.words:
            raise ConfigError(
                f"words: leave out {AGENT}, whose names are hidden anyway, and {LENGTH}, which no word shows"
            )
        for name in self.alarms.acknowledged:
            if name.rpartition("/")[2] not in self.strata or "/" not in name:
                where = f"AGENT/STRATIFIER with a stratifier of strata, which has {', '.join(self.strata)}"
                raise ConfigError(f"alarms.acknowledged: {name!r} is not {where}")
