"""What a coach says of a labelled run, taken from its verdicts on the actions: who failed, where, how good each was.

- *Decisive step*: the first of the actions with the lowest score. No step is picked where all scores are equal, as they
  favour none, or where that verdict blames nobody.
- *Guilty agent*: whom the verdict on the decisive step blames, else who acted there.
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
    "within one step", "step labels", "first error",
)  # fmt: skip
"""What is asked of a coach about a run. Where several people labelled it, an answer that one of them gave is right; by
all labellers it is only where all gave it."""
_TINY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What a coach says of a run. `agent` may be `nobody`; `values` are by position, `missing` counts actions without a
    score. `has_pick` and `settled` say whether there is an answer about guilt and about the first error; `confidence`
    that the picked step is at fault is 0-1, from its score."""

    agent: str | None
    position: int | None
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
    lowest = min(scores.values(), default=None)
    no_pick = lowest is None or (len(scores) > 1 and max(scores.values()) - lowest < _TINY)
    position = None if no_pick else next(place for place, score in scores.items() if score == lowest)
    agent = NOBODY
    if position is not None:
        blame = verdicts[position].blame
        agent = run.steps[position].agent if blame is None else blame
        position = None if agent == NOBODY else position
    return Attribution(
        agent=agent if scores else None,
        position=position,
        has_pick=bool(scores),
        values=values,
        first_error=first_error,
        settled=settled,
        missing=len(verdicts) - len(scores),
        confidence=None if position is None or lowest is None else 1 - lowest / MAX_SCORE,
    )


def grade(run: LabelledRun, said: Attribution) -> Grade:
    """Hold an answer against the labels of its run."""
    guilt, labelled = run.guilt, run.qualities
    agent = step = near = agent_by_all = step_by_all = None
    if guilt is not None and said.has_pick:
        agent = float(said.agent in guilt.agents) if guilt.agents else None
        step, near = grade_position(guilt.positions, said.position) if guilt.positions else (None, None)
        if run.is_labelled_again:
            each = run.guilt_by_labeller.values()
            agent_by_all = float(all(said.agent in one.agents for one in each))
            step_by_all = float(all(said.position in one.positions for one in each))
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
