"""Answers that need no coach: what every figure of one has to be compared with.

Each gives, for every run, the expected grade: random choice is no draw but the mean over all choices. Answers that are
common in other runs are counted over runs of the same stratum with another question, so that none sees its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from mappa.look.coach_eval.attribution import Grade, grade_position
from mappa.look.coach_eval.labelled_runs import LabelledRun

T = TypeVar("T", bound=Hashable)
FIRST, LAST, COMMON, RANDOM = "first speaker", "last speaker", "most common answer", "random choice"
CONSTANTS: Mapping[str, float] = {"always +1": 1.0, "always 0": 0.0, "always -1": -1.0}


def grade_naive_answers(runs: Sequence[LabelledRun]) -> dict[str, list[Grade]]:
    """The grades of every naive answer, by its name, in the order of the runs."""
    found = {
        FIRST: [_grade_position(run, 0) for run in runs],
        LAST: [_grade_position(run, len(run.scenes) - 1) for run in runs],
        COMMON: _grade_most_common(runs),
        RANDOM: [_grade_random(run) for run in runs],
    }
    return found | {name: [_grade_constant(run, value) for run in runs] for name, value in CONSTANTS.items()}


def _grade_position(run: LabelledRun, position: int) -> Grade:
    """Grade the answer that one action is at fault: who acted, the step itself, and as the first error."""
    guilt, labelled = run.guilt, run.qualities
    agent = step = near = None
    if guilt is not None:
        agent = float(run.steps[position].agent in guilt.agents) if guilt.agents else None
        step, near = grade_position(guilt.positions, position) if guilt.positions else (None, None)
    nearest = min(labelled, key=lambda one: abs(one - position), default=None)
    values = tuple(float(value == (-1.0 if one == nearest else 1.0)) for one, value in labelled.items())
    return Grade(
        agent=agent,
        step=step,
        near=near,
        values=values,
        first_error=float(run.first_error == nearest) if labelled else None,
    )


def _grade_constant(run: LabelledRun, value: float) -> Grade:
    """Grade the same value for every action. It picks nobody, so it has no answer about guilt."""
    labelled = run.qualities
    first = min(labelled, default=None) if value < 0 else None
    return Grade(
        agent=None,
        step=None,
        near=None,
        values=tuple(float(one == value) for one in labelled.values()),
        first_error=float(run.first_error == first) if labelled else None,
    )


def _grade_random(run: LabelledRun) -> Grade:
    """The mean grade over all agents of the run, over all its actions, over the three values, and over all labelled
    actions and none as the first error."""
    guilt, labelled, count = run.guilt, run.qualities, len(run.scenes)
    agent = step = near = None
    if guilt is not None:
        agents = {one.agent for one in run.steps}
        agent = len(agents & guilt.agents) / len(agents) if guilt.agents else None
        if guilt.positions:
            step, near = (float(one) for one in np.mean([grade_position(guilt.positions, p) for p in range(count)], 0))
    return Grade(
        agent=agent,
        step=step,
        near=near,
        values=(1 / 3,) * len(labelled),
        first_error=1 / (len(labelled) + 1) if labelled else None,
    )


def _grade_most_common(runs: Sequence[LabelledRun]) -> list[Grade]:
    """Grade what the labels of the other runs say most often: the agent (of those that act in the run), the position,
    the value of a step, and the position of the first error among the labelled actions, or none."""
    agents = _leave_one_out(runs, lambda run: run.guilt.agents if run.guilt else ())
    positions = _leave_one_out(runs, lambda run: run.guilt.positions if run.guilt else ())
    values = _leave_one_out(runs, lambda run: run.qualities.values())
    errors = _leave_one_out(runs, lambda run: (_error_rank(run),) if run.qualities else ())
    found = []
    for place, run in enumerate(runs):
        guilt, labelled = run.guilt, run.qualities
        agent = step = near = None
        if guilt is not None:
            acted = {one.agent for one in run.steps}
            named = _most_common({name: times for name, times in agents[place].items() if name in acted})
            agent = float(named in guilt.agents) if guilt.agents else None
            if guilt.positions:
                inside = {one: times for one, times in positions[place].items() if one < len(run.scenes)}
                step, near = grade_position(guilt.positions, _most_common(inside))
        value = _most_common(values[place])
        found.append(
            Grade(
                agent=agent,
                step=step,
                near=near,
                values=tuple(float(one == value) for one in labelled.values()),
                first_error=float(_error_rank(run) == _most_common(errors[place])) if labelled else None,
            )
        )
    return found


def _error_rank(run: LabelledRun) -> int:
    """The number of labelled actions before the first error; -1 without one."""
    return -1 if run.first_error is None else sorted(run.qualities).index(run.first_error)


def _leave_one_out(runs: Sequence[LabelledRun], answers: Callable[[LabelledRun], Iterable[T]]) -> list[Mapping[T, int]]:
    """For every run, how often each answer is that of a run of its stratum with another question."""
    of_all: dict[str, Counter[T]] = {}
    of_question: dict[tuple[str, str], Counter[T]] = {}
    for run in runs:
        given = list(answers(run))
        of_all.setdefault(run.stratum, Counter()).update(given)
        of_question.setdefault((run.stratum, run.cluster), Counter()).update(given)
    return [of_all[run.stratum] - of_question[run.stratum, run.cluster] for run in runs]


def _most_common(times: Mapping[T, int]) -> T | None:
    """The most frequent answer, of equally frequent ones the first in order; None without any."""
    return min(times, key=lambda one: (-times[one], one), default=None)
