"""Evaluation of a coach's blame against counterfactual credit: does replacing the blamed action help?

The *gain* of an action is the change of the outcome by its replacement: the negative of its counterfactual credit. In a
trajectory with any gain above 0 the actions of the largest gain are *guilty*. All intervals are 95 % and by task (or
cluster of tasks), as siblings replace each other and their credits are not independent: of shares those of
`share_interval`, of all else a bootstrap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mappa.evaluation.heldout import task_cluster
from mappa.evaluation.statistics import share_interval
from mappa.look.coach_eval.batch_judge import JudgingLimits, judge_actions, judge_in_turn
from mappa.look.coach_eval.bootstrap import Estimate, estimate, paired_difference, ratio, spearman
from mappa.look.coach_eval.labelled_actions import LabelledAction, LabelledSet
from mappa.look.coach_eval.metrics import VerdictCounts, count_statuses
from mappa.rollout.named_coach import NamedCoach
from mappa_core import NOBODY, Verdict

_TINY = 1e-9
"""Smaller gains are rounding errors."""
NOT_ACTED = "blamed before it acted"
NO_CREDIT = "blamed action without a credit"
NO_SCORE = "no score in the trajectory"
NO_BLAME = "nobody blamed in the trajectory"


@dataclass(frozen=True, slots=True, kw_only=True)
class PickRate:
    """How often a coach picks a guilty action or agent, over the `trajectories` with a guilty action and a pick: the
    share of its picks, that of random picks, and their difference."""

    trajectories: int
    agreement: Estimate | None
    chance: Estimate | None
    beyond: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameMetrics:
    """Metrics of one coach. `spearman` is the rank correlation of score and credit; `lowest` picks the actions with the
    lowest score, `blamed` the blamed agents. Of the `blamed_actions` (a blamed agent's last action before the blame)
    `raises` is the share whose replacement raises the outcome, `gain` the mean gain, and `beyond` that gain minus the
    mean gain of the other actions. `unsettled` counts what could not be compared, by reason."""

    name: str
    counts: VerdictCounts
    spearman: Estimate | None
    lowest: PickRate
    blamed: PickRate
    blamed_actions: int
    raises: Estimate | None
    gain: Estimate | None
    beyond: Estimate | None
    unsettled: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameEvaluation:
    """Coaches on the same `actions`, each with a credit. `guilty` of the `trajectories` have a guilty action.
    `left_out` counts trajectories without an outcome and actions without a credit, by reason."""

    actions: int
    trajectories: int
    guilty: int
    truth_shown: tuple[str, ...]
    left_out: Mapping[str, int]
    coaches: tuple[BlameMetrics, ...]


async def evaluate_blame(
    judges: Sequence[NamedCoach],
    labels: LabelledSet,
    limits: JudgingLimits,
    *,
    on_verdict: Callable[[Verdict], None] | None = None,
) -> BlameEvaluation:
    """Judge every action, labelled with its credit, by every coach, one coach after another, and compare.

    Args:
        on_verdict: called with every verdict.
    """
    rows: dict[str, list[LabelledAction]] = {}
    for action in labels.actions:
        rows.setdefault(action.trajectory, []).append(action)
    shown = [[action.scene for action in one] for one in rows.values()]

    def record(verdict: Verdict) -> Verdict:
        if on_verdict is not None:
            on_verdict(verdict)
        return verdict

    async def judge_once(judge: NamedCoach) -> list[list[Verdict]]:
        return await judge_actions(judge, shown, limits, review=judge.coach.by_trajectory, finalize=record)

    given = await judge_in_turn(judges, map(judge_once, judges))
    found = [
        compute_blame_metrics(judge.name, list(rows.values()), verdicts)
        for judge, verdicts in zip(judges, given, strict=True)
    ]
    return BlameEvaluation(
        actions=len(labels.actions),
        trajectories=len(rows),
        guilty=sum(bool(_guilty(one)) for one in rows.values()),
        truth_shown=labels.truth_shown,
        left_out=labels.left_out,
        coaches=tuple(found),
    )


def compute_blame_metrics(
    name: str, trajectories: Sequence[Sequence[LabelledAction]], verdicts: Sequence[Sequence[Verdict]]
) -> BlameMetrics:
    """Compute the metrics of one coach from its verdicts, in the order of the actions of `trajectories`."""
    unsettled = Counter[str]()
    lowest, blamed = list[tuple[str, float, float]](), list[tuple[str, float, float]]()
    rows: list[tuple[str, float, bool]] = []
    scored: list[tuple[str, float, float]] = []
    for actions, given in zip(trajectories, verdicts, strict=True):
        task = task_cluster(actions[0].scene.task)
        scored += [(task, v.score, a.label) for a, v in zip(actions, given, strict=True) if v.score is not None]
        targets = _blamed_actions(actions, given, unsettled)
        rows += [(task, -one.label, one.scene.step.id in targets) for one in actions]
        if guilty := _guilty(actions):
            _add_lowest_pick(task, actions, given, guilty, lowest, unsettled)
            _add_blame_pick(task, actions, given, blamed, unsettled)
    clusters = [task for task, _, _ in rows]
    gain = np.array([one for _, one, _ in rows])
    is_blamed = np.array([one for _, _, one in rows], dtype=np.float64)
    blamed_rows = np.flatnonzero(is_blamed)
    of_blamed, of_others = ratio(gain * is_blamed, is_blamed), ratio(gain * (1 - is_blamed), 1 - is_blamed)
    tasks, scores, labels = _columns(scored)
    return BlameMetrics(
        name=name,
        counts=count_statuses([verdict for given in verdicts for verdict in given]),
        spearman=estimate(spearman(scores, labels), tasks),
        lowest=_pick_rate(lowest),
        blamed=_pick_rate(blamed),
        blamed_actions=int(is_blamed.sum()),
        raises=_estimate_share(gain[blamed_rows] > _TINY, [clusters[row] for row in blamed_rows]),
        gain=estimate(of_blamed, clusters),
        beyond=estimate(paired_difference(of_blamed, of_others), clusters),
        unsettled=unsettled,
    )


def _guilty(actions: Sequence[LabelledAction]) -> frozenset[str]:
    """Return the steps of the largest gain; none if no replacement raises the outcome."""
    max_gain = max(-one.label for one in actions)
    return frozenset(one.scene.step.id for one in actions if max_gain > _TINY and -one.label > max_gain - _TINY)


def guilty_agents(actions: Sequence[LabelledAction]) -> frozenset[str]:
    """Return the agents of the guilty actions of one trajectory; none if no replacement raises the outcome."""
    guilty = _guilty(actions)
    return frozenset(one.scene.step.agent for one in actions if one.scene.step.id in guilty)


def _blamed_actions(
    actions: Sequence[LabelledAction], given: Sequence[Verdict], unsettled: Counter[str]
) -> frozenset[str]:
    """Return the blamed steps that have a credit."""
    credited = {one.scene.step.id for one in actions}
    found, without = set[str](), set[str]()
    for action, verdict in zip(actions, given, strict=True):
        if verdict.blame is None or verdict.blame == NOBODY:
            continue
        scene = action.scene
        own = [step.id for step in (*scene.earlier, scene.step) if step.agent == verdict.blame]
        if not own:
            unsettled[NOT_ACTED] += 1
        else:
            (found if own[-1] in credited else without).add(own[-1])
    if without:
        unsettled[NO_CREDIT] += len(without)
    return frozenset(found)


def _add_lowest_pick(
    task: str,
    actions: Sequence[LabelledAction],
    given: Sequence[Verdict],
    guilty: frozenset[str],
    picks: list[tuple[str, float, float]],
    unsettled: Counter[str],
) -> None:
    """Add the guilty share of the lowest-scored actions, and that of all scored actions."""
    scores = {a.scene.step.id: v.score for a, v in zip(actions, given, strict=True) if v.score is not None}
    if not scores:
        unsettled[NO_SCORE] += 1
        return
    lowest_score = min(scores.values())
    lowest = [step for step, score in scores.items() if score <= lowest_score]
    picks.append((task, _share(lowest, guilty), _share(scores, guilty)))


def _add_blame_pick(
    task: str,
    actions: Sequence[LabelledAction],
    given: Sequence[Verdict],
    picks: list[tuple[str, float, float]],
    unsettled: Counter[str],
) -> None:
    """Add the share of blames that name an agent of a guilty action, and the share of such agents among all."""
    at_fault = guilty_agents(actions)
    agents = {one.scene.step.agent for one in actions}
    named = [verdict.blame for verdict in given if verdict.blame is not None and verdict.blame != NOBODY]
    if not named:
        unsettled[NO_BLAME] += 1
        return
    picks.append((task, _share(named, at_fault), _share(agents, at_fault)))


def _share(names: Sequence[str] | Mapping[str, float] | set[str], chosen: frozenset[str]) -> float:
    return sum(name in chosen for name in names) / len(names)


def _pick_rate(picks: Sequence[tuple[str, float, float]]) -> PickRate:
    tasks, right, chance = _columns(picks)
    each = np.ones(len(picks))
    agreement, at_random = ratio(right, each), ratio(chance, each)
    return PickRate(
        trajectories=len(picks),
        agreement=_estimate_share(right, tasks),
        chance=_estimate_share(chance, tasks),
        beyond=estimate(paired_difference(agreement, at_random), tasks),
    )


def _estimate_share(shares: ArrayLike, tasks: Sequence[str]) -> Estimate | None:
    """Estimate a mean of shares (n,), also where all are alike: a coach that was right every time has an interval."""
    if not len(tasks):
        return None
    found = share_interval(shares, tasks)
    return Estimate(value=found.mean, low=found.low, high=found.high)


def _columns(rows: Sequence[tuple[str, float, float]]) -> tuple[list[str], list[float], list[float]]:
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
