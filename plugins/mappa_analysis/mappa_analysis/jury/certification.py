"""What a jury may not be certified on: questions whose labels it was fitted on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from mappa_analysis.coach_eval.labelled_runs import LabelledRuns
from mappa_analysis.jury.anchors import hash_question
from mappa_calibration import Calibration
from mappa_core import ConfigError

SEEN = "with a question that the jury was fitted on"


def find_calibrations(options: Sequence[object]) -> list[str]:
    """Paths of the calibrations in the options of coaches, at any depth."""
    return list(dict.fromkeys(_find_calibrations(list(options))))


def leave_out_seen(labelled: LabelledRuns, paths: Sequence[str], *, allow: bool) -> LabelledRuns:
    """Leave out the runs of questions that a calibration was fitted on, and count them; `allow` it, or raise.

    Raises:
        ConfigError: a run is of such a question and leaving out is not allowed, or no run is left.
    """
    for path in paths:
        seen = set(Calibration.read(path).fitted_on)
        kept = tuple(run for run in labelled.runs if hash_question(run.task) not in seen)
        count = len(labelled.runs) - len(kept)
        if count and not allow:
            raise ConfigError(
                f"{path} was fitted on labels of {count:,} of these {len(labelled.runs):,} runs, or of others on these "
                "questions, so they certify nothing: leave them out with --unseen, or calibrate with --share 0.5"
            )
        if not kept:
            raise ConfigError(f"--unseen: {path} was fitted on every question here: calibrate with --share 0.5")
        left_out = Counter(labelled.left_out) + Counter({SEEN: count})
        labelled = replace(labelled, runs=kept, left_out=left_out)
    return labelled


def _find_calibrations(options: Any) -> Iterator[str]:
    if isinstance(options, list):
        for one in options:
            yield from _find_calibrations(one)
    elif is_dataclass(options):
        for field in fields(options):
            value = getattr(options, field.name)
            if field.name == "calibration" and isinstance(value, str):
                yield value
            yield from _find_calibrations(value)
