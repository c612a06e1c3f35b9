"""What is asked of an export, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mappa_core.errors import ConfigError
from mappa_core.studies.dataset.choosing import Filters
from mappa_core.studies.dataset.examples import (
    Actions,
    CorrectedPairs,
    Corrections,
    Form,
    Labels,
    Make,
    SiblingPairs,
    Sight,
    Source,
)

SOURCES: Mapping[Form, tuple[Source, ...]] = {
    "sft": ("actions", "corrections"),
    "dpo": ("siblings", "corrections"),
    "kto": ("actions",),
}
"""What each form can be made of, the usual first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What is wanted. `source` None is the usual one of the form; `gap` (points) is for siblings, `threshold` (points)
    for `kto`: from it on an action is a good one."""

    form: Form
    filters: Filters
    source: Source | None = None
    gap: float | None = None
    threshold: float | None = None

    @property
    def of(self) -> Source:
        """What the examples are made of."""
        return self.source or SOURCES[self.form][0]

    def maker(self, sight: Sight) -> Make:
        """What makes the examples. Raises ConfigError where the order contradicts itself or leaves something open."""
        self._check()
        if self.form == "kto":
            return Labels(sight, _given(self.threshold))
        if self.of == "siblings":
            return SiblingPairs(sight, _given(self.gap))
        if self.form == "dpo":
            return CorrectedPairs(sight)
        return Actions(sight) if self.of == "actions" else Corrections(sight)

    def _check(self) -> None:
        filters, siblings = self.filters, self.of == "siblings"
        if self.of not in SOURCES[self.form]:
            raise ConfigError(f"--source {self.of}: {self.form} is made of {' or '.join(SOURCES[self.form])}")
        if self.form == "sft" and self.of == "actions" and filters.min_score is None:
            raise ConfigError("--to sft: say from which score on an action is worth imitating, as in --min-score 8")
        if (self.form == "kto") != (self.threshold is not None):
            raise ConfigError("--threshold is for --to kto, and needed there: the score from which an action is good")
        if siblings != (self.gap is not None):
            raise ConfigError("--gap is for pairs of siblings, and needed there: by how many points the worse is worse")
        if self.gap is not None and not self.gap > 0.0:
            raise ConfigError(f"--gap {self.gap:g}: it must be above 0 points")
        if siblings and (filters.min_score is not None or filters.max_score is not None or filters.blame):
            raise ConfigError("--min-score, --max-score and --blame say nothing of pairs of siblings; use --gap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written: examples by agent, and by agent how many actions were left out, by reason."""

    folder: Path
    examples: Mapping[str, int]
    left_out: Mapping[str, Mapping[str, int]]


def _given(number: float | None) -> float:
    assert number is not None  # the order was checked
    return number
