"""What a coach says of a labelled run, taken from its verdicts on the actions: who failed, where, how good each was.

- *Decisive step*: the first of the ranking. A coach ranks by `Verdict.suspicion`; one that gives none ranks by the
  lowest score, of equals the earlier action. No step is picked where all scores are equal, as they favour none, or
  where that verdict blames nobody.
- *Guilty agent*: whom the verdict on the decisive step blames, else who acted there.
- *Accusation*: the lowest verdict that blames somebody, or whose agent it gives fewer than half of the points. A coach
  that accuses nobody says that it cannot tell, which is no wrong answer.
- *Value* of an action: 1 above two thirds of the points, -1 below one third, else 0, so that 10, 5 and 0 points are the
  values 1, 0 and -1.
- *First error*: the first labelled action with the value -1. It is settled unless a verdict before it is missing.

A missing verdict is no answer, which is counted apart from a wrong one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mappa.look.coach_eval.labelled_runs import LabelledRun
from mappa_core import MAX_SCORE, NOBODY, Verdict

TASKS = (
    "guilty agent", "guilty agent, by all labellers", "decisive step", "decisive step, by all labellers",
    "within one step", "first three", "accused agent", "accused step", "kind of failure", "step labels", "first error",
)  # fmt: skip
"""What is asked of a coach about a run. Where several people labelled it, an answer that one of them gave is right; by
all labellers it is only where all gave it."""
_TINY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What a coach says of a run. `agent` may be `nobody`; `ranking` are positions, most suspicious first; `accused` is
    the position of the accusation, `accused_agent` whom it blames and `category` the kind of failure. `values` are by
    position, `missing` counts actions without a score. `has_pick` and `settled` say whether there is an answer about
    guilt and about the first error; `confidence` that the accused step is at fault is 0-1, from its score."""

    agent: str | None
    position: int | None
    ranking: tuple[int, ...]
    accused: int | None
    accused_agent: str | None
    category: str | None
    has_pick: bool
    values: Mapping[int, float]
    first_error: int | None
    settled: bool
    missing: int
    confidence: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """How right an answer about a run is, 0-1 for each thing that is right; None where it was not answered, or where
    the run has no such label. `agent_by_all` and `step_by_all` are of runs that several people labelled."""

    agent: float | None
    step: float | None
    near: float | None
    values: tuple[float | None, ...]
    first_error: float | None
    three: float | None = None
    accused_agent: float | None = None
    accused_step: float | None = None
    category: float | None = None
    agent_by_all: float | None = None
    step_by_all: float | None = None


def value_of_score(score: float) -> float:
    """The value (1, 0, -1) of points from 0 to 10."""
    if score > 2 * MAX_SCORE / 3:
        return 1.0
    return -1.0 if score < MAX_SCORE / 3 else 0.0


def attribute(run: LabelledRun, verdicts: Sequence[Verdict]) -> Attribution:
    """Take the answer of a coach from its verdicts on the actions of a run, in their order."""
    scores = {position: one.score for position, one in enumerate(verdicts) if one.score is not None}
    values = {position: value_of_score(score) for position, score in scores.items()}
    first_error, settled = _find_first_error(run, values)
    suspicions = {position: one.suspicion for position, one in enumerate(verdicts) if one.suspicion is not None}
    ranking = _rank(suspicions, scores)
    accused = _find_accused(verdicts)
    position = ranking[0] if ranking else None
    agent = NOBODY
    if position is not None:
        blame = verdicts[position].blame
        agent = run.steps[position].agent if blame is None else blame
        position = None if agent == NOBODY else position
    confident = position if not suspicions else accused
    lowest = None if confident is None else scores.get(confident)
    return Attribution(
        agent=agent if ranking or scores else None,
        position=position,
        ranking=ranking,
        accused=accused,
        accused_agent=None if accused is None else verdicts[accused].blame or run.steps[accused].agent,
        category=None if accused is None else verdicts[accused].category,
        has_pick=bool(ranking or scores),
        values=values,
        first_error=first_error,
        settled=settled,
        missing=len(verdicts) - len(scores),
        confidence=None if lowest is None else 1 - lowest / MAX_SCORE,
    )


def _rank(suspicions: Mapping[int, float], scores: Mapping[int, float]) -> tuple[int, ...]:
    """Positions, the most suspicious first; none where all are scored alike."""
    if suspicions:
        return tuple(sorted(suspicions, key=lambda position: -suspicions[position]))
    if len(scores) > 1 and max(scores.values()) - min(scores.values()) < _TINY:
        return ()
    return tuple(sorted(scores, key=scores.__getitem__))


def _find_accused(verdicts: Sequence[Verdict]) -> int | None:
    """The position of the lowest verdict that accuses somebody; one without a score comes after those with."""
    accusing = [position for position, one in enumerate(verdicts) if _accuses(one)]
    scored = {position: one.score for position, one in enumerate(verdicts) if one.score is not None}
    own = [position for position in accusing if position in scored]
    return min(own, key=scored.__getitem__, default=accusing[0] if accusing else None)


def _accuses(verdict: Verdict) -> bool:
    if verdict.blame is None:
        return verdict.score is not None and verdict.score < MAX_SCORE / 2
    return verdict.blame != NOBODY


def grade(run: LabelledRun, said: Attribution) -> Grade:
    """Hold an answer against the labels of its run."""
    guilt, labelled = run.guilt, run.qualities
    agent = step = near = three = agent_by_all = step_by_all = accused_agent = accused_step = category = None
    if guilt is not None and said.has_pick:
        agent = float(said.agent in guilt.agents) if guilt.agents else None
        step, near = grade_position(guilt.positions, said.position) if guilt.positions else (None, None)
        three = float(not guilt.positions.isdisjoint(said.ranking[:3])) if guilt.positions else None
        if run.is_labelled_again:
            each = run.guilt_by_labeller.values()
            agent_by_all = float(all(said.agent in one.agents for one in each))
            step_by_all = float(all(said.position in one.positions for one in each))
    if guilt is not None and said.accused is not None:
        accused_agent = float(said.accused_agent in guilt.agents) if guilt.agents else None
        accused_step = float(said.accused in guilt.positions) if guilt.positions else None
    if run.categories and said.category is not None:
        category = float(said.category in run.categories)
    values = [
        float(said.values[position] == value) if position in said.values else None
        for position, value in labelled.items()
    ]
    right = float(said.first_error == run.first_error) if labelled and said.settled else None
    return Grade(
        agent=agent,
        step=step,
        near=near,
        values=tuple(values),
        first_error=right,
        three=three,
        accused_agent=accused_agent,
        accused_step=accused_step,
        category=category,
        agent_by_all=agent_by_all,
        step_by_all=step_by_all,
    )


def grade_position(guilty: frozenset[int], position: int | None) -> tuple[float, float]:
    """Whether a position is a decisive one, and whether it is one or the next to it."""
    if position is None:
        return 0.0, 0.0
    return float(position in guilty), float(any(abs(position - one) <= 1 for one in guilty))


def _find_first_error(run: LabelledRun, values: Mapping[int, float]) -> tuple[int | None, bool]:
    """The first labelled action with the value -1, and whether no missing one precedes it."""
    for position in sorted(run.qualities):
        if position not in values:
            return None, False
        if values[position] < 0:
            return position, True
    return None, True
