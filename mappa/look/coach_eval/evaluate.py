"""Evaluation of coaches on labelled actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mappa.look.coach_eval.batch_judge import JudgingLimits, judge_actions, judge_in_turn
from mappa.look.coach_eval.labelled_actions import LabelledAction, LabelledSet
from mappa.look.coach_eval.metrics import (
    CoachMetrics,
    EnsembleMetrics,
    LabelledColumns,
    compute_coach_metrics,
    compute_ensemble_metrics,
    score_matrix,
)
from mappa.rollout.named_coach import NamedCoach
from mappa_core import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachEvaluation:
    """Evaluation of coaches on the same labelled actions, each judged `repeats` times by every coach.

    `right` is the share of actions whose label is above 0.5; `truth_shown` are the agents whose coach saw the truth;
    `left_out` counts trajectories and actions without an outcome by reason. `ensemble` is None for a single coach.
    """

    actions: int
    trajectories: int
    right: float
    repeats: int
    truth_shown: tuple[str, ...]
    left_out: Mapping[str, int]
    coaches: tuple[CoachMetrics, ...]
    ensemble: EnsembleMetrics | None


async def evaluate_coaches(
    judges: Sequence[Sequence[NamedCoach]],
    labels: LabelledSet,
    limits: JudgingLimits,
    *,
    on_verdict: Callable[[Verdict], None] | None = None,
) -> CoachEvaluation:
    """Judge every labelled action by every coach, one coach after another so that none delays another, and compute
    their metrics.

    Args:
        judges: every coach as often as it is to judge; one that keeps its verdicts is another object each time.
        on_verdict: called with every verdict.
    """
    trajectories = _by_trajectory(labels)
    actions = LabelledColumns.from_actions([action for one in trajectories for action in one])
    shown = [[action.scene for action in one] for one in trajectories]

    def record(verdict: Verdict) -> Verdict:
        if on_verdict is not None:
            on_verdict(verdict)
        return verdict

    async def once(judge: NamedCoach) -> list[Verdict]:
        verdicts = await judge_actions(judge, shown, limits, review=judge.coach.by_trajectory, finalize=record)
        return [verdict for one in verdicts for verdict in one]

    every = [judge for repeats in judges for judge in repeats]
    given = iter(await judge_in_turn(every, map(once, every)))
    verdicts = {repeats[0].name: [next(given) for _ in repeats] for repeats in judges}
    scores = {name: score_matrix(given) for name, given in verdicts.items()}
    return CoachEvaluation(
        actions=len(actions.label),
        trajectories=len(trajectories),
        right=float(actions.right.mean()),
        repeats=max(map(len, judges)),
        truth_shown=labels.truth_shown,
        left_out=labels.left_out,
        coaches=tuple(
            compute_coach_metrics(judge.name, actions, verdicts[judge.name], judge.coach.providers)
            for judge, *_ in judges
        ),
        ensemble=compute_ensemble_metrics(scores, actions) if len(judges) > 1 else None,
    )


def _by_trajectory(labels: LabelledSet) -> list[list[LabelledAction]]:
    """Group the actions by trajectory, in order of first occurrence."""
    found: dict[str, list[LabelledAction]] = {}
    for action in labels.actions:
        found.setdefault(action.trajectory, []).append(action)
    return list(found.values())
