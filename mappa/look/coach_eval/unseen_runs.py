"""What a coach may not be certified on: questions whose labels it was fitted on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from mappa.look.coach_eval.labelled_runs import LabelledRuns
from mappa.rollout.named_coach import NamedCoach
from mappa_core import ConfigError

SEEN = "with a question that a coach was fitted on"


def leave_out_seen(labelled: LabelledRuns, coaches: Sequence[NamedCoach], *, allow: bool) -> LabelledRuns:
    """Leave out the runs of questions that one of the coaches was fitted on, and count them; `allow` it, or raise.

    Raises:
        ConfigError: a run is of such a question and leaving out is not allowed, or no run is left.
    """
    for judge in coaches:
        seen = set(judge.coach.fitted_on)
        kept = tuple(run for run in labelled.runs if run.task.question_hash not in seen)
        count = len(labelled.runs) - len(kept)
        if count and not allow:
            raise ConfigError(
                f"{judge.name} was fitted on labels of {count:,} of these {len(labelled.runs):,} runs, or of others on "
                "these questions, so they certify nothing: leave them out with --unseen, or calibrate with --share 0.5"
            )
        if not kept:
            raise ConfigError(f"--unseen: {judge.name} was fitted on every question here: calibrate with --share 0.5")
        left_out = Counter(labelled.left_out) + Counter({SEEN: count})
        labelled = replace(labelled, runs=kept, left_out=left_out)
    return labelled
