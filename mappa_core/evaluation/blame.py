"""Hold a coach's blame against what would have come of it: does another action in place of the blamed one help?

The *gain* of an action is what its replacement adds to the outcome: its counterfactual credit with the sign turned. In
a trajectory where any gain is above 0 the actions of the largest gain are the *guilty* ones. Every interval is of 95 %,
from draws of whole tasks (or clusters of them): siblings stand in for each other, so that their credits are not
independent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mappa_core.evaluation.agreement import Estimate, difference, estimate, ratio, spearman
from mappa_core.evaluation.asking import Asking, ask
from mappa_core.evaluation.certificate import Counts, counts_of
from mappa_core.evaluation.labelled import Labelled, Labels
from mappa_core.records import NOBODY, Verdict
from mappa_core.rollout.team import Judge

TINY = 1e-9
"""A gain that is smaller is rounding."""
NOT_ACTED = "blamed before it acted"
NO_CREDIT = "blamed action without a credit"
NO_SCORE = "no score in the trajectory"
NO_BLAME = "nobody blamed in the trajectory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """How often a coach picks a guilty one, over `trajectories` where somebody is guilty and it picks: the share of its
    picks, that of picks at random, and the one less the other."""

    trajectories: int
    agreement: Estimate | None
    chance: Estimate | None
    beyond: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blaming:
    """One coach. `spearman` is the correlation of ranks of score and credit; `lowest` picks the actions that it scored
    lowest, `blamed` the agents that it blames. Of the `blamed_actions` (the last one of a blamed agent, when it was
    blamed) `raises` is the share whose replacement raises the outcome, `gain` the mean gain and `beyond` that gain less
    the mean of the actions that it does not blame. `unsettled` counts what could not be compared, by reason."""

    name: str
    counts: Counts
    spearman: Estimate | None
    lowest: Pick
    blamed: Pick
    blamed_actions: int
    raises: Estimate | None
    gain: Estimate | None
    beyond: Estimate | None
    unsettled: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameCertificate:
    """Coaches on the same `actions`, each of which has a credit. Somebody is guilty in `guilty` of the `trajectories`.
    `left_out` counts trajectories without an outcome and actions without a credit, by reason."""

    actions: int
    trajectories: int
    guilty: int
    truth_shown: tuple[str, ...]
    left_out: Mapping[str, int]
    coaches: tuple[Blaming, ...]


async def certify_blame(
    judges: Sequence[Judge], labels: Labels, asking: Asking, *, judged: Callable[[Verdict], None] | None = None
) -> BlameCertificate:
    """Ask every coach about every action, whose label is its credit, one coach after another, and compare.

    Args:
        judged: called with every verdict.
    """
    rows: dict[str, list[Labelled]] = {}
    for action in labels.actions:
        rows.setdefault(action.trajectory, []).append(action)
    shown = [[action.scene for action in one] for one in rows.values()]

    def keep(verdict: Verdict) -> Verdict:
        if judged is not None:
            judged(verdict)
        return verdict

    found = []
    for judge in judges:
        given = await ask(judge, shown, asking, review=judge.coach.by_trajectory, keep=keep)
        found.append(blaming_of(judge.name, list(rows.values()), given))
    return BlameCertificate(
        actions=len(labels.actions),
        trajectories=len(rows),
        guilty=sum(bool(_guilty(one)) for one in rows.values()),
        truth_shown=labels.truth_shown,
        left_out=labels.left_out,
        coaches=tuple(found),
    )


def blaming_of(name: str, trajectories: Sequence[Sequence[Labelled]], verdicts: Sequence[Sequence[Verdict]]) -> Blaming:
    """What the verdicts of one coach, in the order of the actions of `trajectories`, come to."""
    unsettled = Counter[str]()
    lowest, blamed = list[tuple[str, float, float]](), list[tuple[str, float, float]]()
    rows: list[tuple[str, float, bool]] = []
    scored: list[tuple[str, float, float]] = []
    for actions, given in zip(trajectories, verdicts, strict=True):
        task = _cluster(actions[0])
        scored += [(task, v.score, a.label) for a, v in zip(actions, given, strict=True) if v.score is not None]
        targets = _blamed_actions(actions, given, unsettled)
        rows += [(task, -one.label, one.scene.step.id in targets) for one in actions]
        if guilty := _guilty(actions):
            _pick_lowest(task, actions, given, guilty, lowest, unsettled)
            _pick_blamed(task, actions, given, guilty, blamed, unsettled)
    clusters = [task for task, _, _ in rows]
    gain = np.array([one for _, one, _ in rows])
    is_blamed = np.array([one for _, _, one in rows], dtype=np.float64)
    of_blamed, of_others = ratio(gain * is_blamed, is_blamed), ratio(gain * (1 - is_blamed), 1 - is_blamed)
    tasks, scores, labels = _columns(scored)
    return Blaming(
        name=name,
        counts=counts_of([verdict for given in verdicts for verdict in given]),
        spearman=estimate(spearman(scores, labels), tasks),
        lowest=_picked(lowest),
        blamed=_picked(blamed),
        blamed_actions=int(is_blamed.sum()),
        raises=estimate(ratio((gain > TINY) * is_blamed, is_blamed), clusters),
        gain=estimate(of_blamed, clusters),
        beyond=estimate(difference(of_blamed, of_others), clusters),
        unsettled=unsettled,
    )


def _guilty(actions: Sequence[Labelled]) -> frozenset[str]:
    """The steps of the largest gain; none where no replacement raises the outcome."""
    most = max(-one.label for one in actions)
    return frozenset(one.scene.step.id for one in actions if most > TINY and -one.label > most - TINY)


def _blamed_actions(actions: Sequence[Labelled], given: Sequence[Verdict], unsettled: Counter[str]) -> frozenset[str]:
    """The steps that are blamed and have a credit."""
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


def _pick_lowest(
    task: str,
    actions: Sequence[Labelled],
    given: Sequence[Verdict],
    guilty: frozenset[str],
    picks: list[tuple[str, float, float]],
    unsettled: Counter[str],
) -> None:
    """Add the share of the lowest-scored actions that are guilty, and that of all scored ones."""
    scores = {a.scene.step.id: v.score for a, v in zip(actions, given, strict=True) if v.score is not None}
    if not scores:
        unsettled[NO_SCORE] += 1
        return
    least = min(scores.values())
    lowest = [step for step, score in scores.items() if score <= least]
    picks.append((task, _share(lowest, guilty), _share(scores, guilty)))


def _pick_blamed(
    task: str,
    actions: Sequence[Labelled],
    given: Sequence[Verdict],
    guilty: frozenset[str],
    picks: list[tuple[str, float, float]],
    unsettled: Counter[str],
) -> None:
    """Add the share of the blames that name an agent of a guilty action, and that of all agents."""
    agent_of = {one.scene.step.id: one.scene.step.agent for one in actions}
    at_fault = frozenset(agent_of[step] for step in guilty)
    named = [verdict.blame for verdict in given if verdict.blame is not None and verdict.blame != NOBODY]
    if not named:
        unsettled[NO_BLAME] += 1
        return
    picks.append((task, _share(named, at_fault), _share(set(agent_of.values()), at_fault)))


def _share(names: Sequence[str] | Mapping[str, float] | set[str], chosen: frozenset[str]) -> float:
    return sum(name in chosen for name in names) / len(names)


def _picked(picks: Sequence[tuple[str, float, float]]) -> Pick:
    tasks, right, chance = _columns(picks)
    each = np.ones(len(picks))
    agreement, at_random = ratio(right, each), ratio(chance, each)
    return Pick(
        trajectories=len(picks),
        agreement=estimate(agreement, tasks),
        chance=estimate(at_random, tasks),
        beyond=estimate(difference(agreement, at_random), tasks),
    )


def _columns(rows: Sequence[tuple[str, float, float]]) -> tuple[list[str], list[float], list[float]]:
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def _cluster(action: Labelled) -> str:
    task = action.scene.task
    return f"task {task.id}" if task.cluster is None else f"cluster {task.cluster}"
