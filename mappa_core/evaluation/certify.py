"""Certify coaches: ask them about actions whose truth is known, and say what their scores are worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mappa_core.evaluation.asking import Asking, ask
from mappa_core.evaluation.certificate import (
    Actions,
    CoachCertificate,
    EnsembleCertificate,
    certificate_of,
    ensemble_of,
    scores_of,
)
from mappa_core.evaluation.labelled import Labelled, Labels
from mappa_core.records import Verdict
from mappa_core.rollout.team import Judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Coaches on the same labelled actions, each of which was judged `repeats` times by each.

    `right` is the share of actions whose label is above 0.5; `truth_shown` are the agents whose coach saw the truth;
    `left_out` counts trajectories without an outcome by reason. `ensemble` is None of a single coach.
    """

    actions: int
    trajectories: int
    right: float
    repeats: int
    truth_shown: tuple[str, ...]
    left_out: Mapping[str, int]
    coaches: tuple[CoachCertificate, ...]
    ensemble: EnsembleCertificate | None


async def certify(
    judges: Sequence[Judge],
    labels: Labels,
    asking: Asking,
    *,
    repeats: int = 1,
    judged: Callable[[Verdict], None] | None = None,
) -> Certificate:
    """Ask every coach about every labelled action `repeats` times, one coach after another so that none waits for
    another, and sum up. Nothing is taken from a cassette: a verdict that is looked up has neither noise nor latency.

    Args:
        judged: called with every verdict.
    """
    trajectories = _by_trajectory(labels)
    actions = Actions.of([action for one in trajectories for action in one])
    shown = [[action.scene for action in one] for one in trajectories]

    def keep(verdict: Verdict) -> Verdict:
        if judged is not None:
            judged(verdict)
        return verdict

    async def once(judge: Judge) -> list[Verdict]:
        verdicts = await ask(judge, shown, asking, review=judge.coach.by_trajectory, keep=keep)
        return [verdict for one in verdicts for verdict in one]

    verdicts = {judge.name: [await once(judge) for _ in range(repeats)] for judge in judges}
    scores = {name: scores_of(given) for name, given in verdicts.items()}
    return Certificate(
        actions=len(actions.label),
        trajectories=len(trajectories),
        right=float(actions.right.mean()),
        repeats=repeats,
        truth_shown=labels.truth_shown,
        left_out=labels.left_out,
        coaches=tuple(
            certificate_of(judge.name, actions, verdicts[judge.name], judge.coach.providers) for judge in judges
        ),
        ensemble=ensemble_of(scores, actions) if len(judges) > 1 else None,
    )


def _by_trajectory(labels: Labels) -> list[list[Labelled]]:
    """The actions of each trajectory together, in the order of the first."""
    found: dict[str, list[Labelled]] = {}
    for action in labels.actions:
        found.setdefault(action.trajectory, []).append(action)
    return list(found.values())
