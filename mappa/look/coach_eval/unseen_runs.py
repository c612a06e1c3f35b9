"""What a coach cannot be certified on: questions whose labels it was fitted on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mappa.look.coach_eval.labelled_runs import LabelledRuns
from mappa.rollout.named_coach import NamedCoach
from mappa_core import ConfigError

SEEN = "with a question that a coach was fitted on"


def count_overlap(labelled: LabelledRuns, coaches: Sequence[NamedCoach]) -> Mapping[str, int]:
    """How many of the runs are of questions that a coach was fitted on, by its name; without those that saw none."""
    counts = {}
    for judge in coaches:
        seen = set(judge.coach.fitted_on)
        counts[judge.name] = sum(run.task.question_hash in seen for run in labelled.runs)
    return {name: count for name, count in counts.items() if count}


def leave_out_seen(labelled: LabelledRuns, coaches: Sequence[NamedCoach]) -> LabelledRuns:
    """Leave out the runs of questions that one of the coaches was fitted on, and count them.

    Raises:
        ConfigError: no run is left.
    """
    for judge in coaches:
        seen = set(judge.coach.fitted_on)
        kept = tuple(run for run in labelled.runs if run.task.question_hash not in seen)
        if not kept:
            raise ConfigError(
                f"--unseen: {judge.name} was fitted on every question here: fit it on a part of them, or certify it on "
                "other runs"
            )
        left_out = Counter(labelled.left_out) + Counter({SEEN: len(labelled.runs) - len(kept)})
        labelled = replace(labelled, runs=kept, left_out=left_out)
    return labelled
