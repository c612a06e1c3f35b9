"""Request and result of an export."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mappa.look.dataset.examples import (
    ActionExamples,
    CorrectionExamples,
    CorrectionPairs,
    DatasetForm,
    ExampleMaker,
    ExampleSource,
    LabelledExamples,
    PromptFormatter,
    SiblingPairs,
)
from mappa.look.dataset.select import Filters
from mappa_core import MAX_SCORE, ConfigError

SOURCES_BY_FORM: Mapping[DatasetForm, tuple[ExampleSource, ...]] = {
    "sft": ("actions", "corrections"),
    "dpo": ("siblings", "corrections"),
    "kto": ("actions",),
}
"""The possible sources of each form, the default first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRequest:
    """An export request. `source` None is the default of the form; `gap` (points) is for siblings, `threshold` (points)
    for `kto`: an action with at least this score is good."""

    form: DatasetForm
    filters: Filters
    source: ExampleSource | None = None
    gap: float | None = None
    threshold: float | None = None

    @property
    def resolved_source(self) -> ExampleSource:
        """The source of the examples, with the default filled in."""
        return self.source or SOURCES_BY_FORM[self.form][0]

    def example_maker(self, formatter: PromptFormatter) -> ExampleMaker:
        """The maker of the examples. Raises ConfigError if the request is inconsistent or incomplete."""
        self._check()
        if self.form == "kto":
            return LabelledExamples(formatter, _require_number(self.threshold))
        if self.resolved_source == "siblings":
            return SiblingPairs(formatter, _require_number(self.gap))
        if self.form == "dpo":
            return CorrectionPairs(formatter)
        return ActionExamples(formatter) if self.resolved_source == "actions" else CorrectionExamples(formatter)

    def _check(self) -> None:
        filters, siblings = self.filters, self.resolved_source == "siblings"
        given = {"--min-score": filters.min_score, "--max-score": filters.max_score, "--threshold": self.threshold}
        for option, score in given.items():
            if score is not None and math.isnan(score):
                raise ConfigError(f"{option} {score}: it must be 0 to {MAX_SCORE:g} points")
        if filters.min_outcome is not None and math.isnan(filters.min_outcome):
            raise ConfigError(f"--min-outcome {filters.min_outcome}: it must be a number")
        if self.resolved_source not in SOURCES_BY_FORM[self.form]:
            known = " or ".join(SOURCES_BY_FORM[self.form])
            raise ConfigError(f"--source {self.resolved_source}: {self.form} is made of {known}")
        if self.form == "sft" and self.resolved_source == "actions" and filters.min_score is None:
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
class ExportResult:
    """The result of an export: the number of examples and the file's name by agent, of those that have examples, and
    the number of left-out actions by agent and reason. `unknown_tools` counts the actions with a tool whose schema is
    not known, by its name."""

    folder: Path
    examples: Mapping[str, int]
    files: Mapping[str, str]
    left_out: Mapping[str, Mapping[str, int]]
    unknown_tools: Mapping[str, int]


def _require_number(number: float | None) -> float:
    assert number is not None  # `_check` made sure
    return number
