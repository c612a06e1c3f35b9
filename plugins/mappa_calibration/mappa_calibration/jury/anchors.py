"""Labelled actions with what every member of a jury said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mappa.judging import LabelledRun
from mappa_calibration.actions import Bool, Float64, Int64
from mappa_core import MAX_SCORE, ConfigError, Verdict

LABELS = (-1, 0, 1)
"""Wrong, neither, right: what 0, 5 and 10 points stand for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Anchors:
    """The n actions of labelled runs, run after run in order, and the `points` (n, m) that m members gave, NaN where
    missing. `labels` (n,) are -1, 0 or 1, NaN where nobody labelled the action. `run`, `question` and `stratum` (n,)
    are indices; runs of one question are no independent evidence. `strata` are names by index, `questions` hashes."""

    members: tuple[str, ...]
    points: Float64
    labels: Float64
    run: Int64
    question: Int64
    stratum: Int64
    strata: tuple[str, ...]
    questions: tuple[str, ...]

    @classmethod
    def from_verdicts(cls, runs: Sequence[LabelledRun], verdicts: Mapping[str, Sequence[Sequence[Verdict]]]) -> Anchors:
        """Collect the verdicts of each member on the actions of each run.

        Raises:
            ConfigError: a member gave no score at all.
        """
        points = np.array(
            [
                [np.nan if verdict.score is None else verdict.score for of_run in given for verdict in of_run]
                for given in verdicts.values()
            ],
            dtype=np.float64,
        ).T
        for name, given in zip(verdicts, points.T, strict=True):
            if np.isnan(given).all():
                raise ConfigError(f"{name} gave no score on any of {len(given):,} actions: leave it out")
        sizes = [len(run.scenes) for run in runs]
        questions = [run.task.question_hash for run in runs]
        strata = [run.stratum for run in runs]
        names, question = np.unique(questions, return_inverse=True)
        levels, stratum = np.unique(strata, return_inverse=True)
        return cls(
            members=tuple(verdicts),
            points=points,
            labels=np.array([run.qualities.get(place, np.nan) for run in runs for place in range(len(run.scenes))]),
            run=np.repeat(np.arange(len(runs)), sizes),
            question=np.repeat(question, sizes),
            stratum=np.repeat(stratum, sizes),
            strata=tuple(map(str, levels)),
            questions=tuple(map(str, names)),
        )

    @cached_property
    def labelled(self) -> Bool:
        """Mask (n,) of labelled actions."""
        return ~np.isnan(self.labels)

    @cached_property
    def votes(self) -> Float64:
        """The label (n, m) that each score stands for, NaN where missing: its third of the scale."""
        return label_points(self.points)

    def select_members(self, places: Sequence[int]) -> Anchors:
        """The same actions with these members only."""
        return Anchors(
            members=tuple(self.members[place] for place in places),
            points=self.points[:, list(places)],
            labels=self.labels,
            run=self.run,
            question=self.question,
            stratum=self.stratum,
            strata=self.strata,
            questions=self.questions,
        )


def label_points(points: Float64) -> Float64:
    """The labels -1, 0 and 1 that points stand for, NaN for NaN: above two thirds right, below one third wrong."""
    third = MAX_SCORE / 3
    return np.where(np.isnan(points), np.nan, 1.0 * (points > 2 * third) - 1.0 * (points < third))
