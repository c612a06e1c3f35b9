"""Figures of two public sets by the arithmetic that their authors published, whatever one thinks of it.

Who&When (`Automated_FA/evaluate.py`): an answer is right if its text contains the label's, so that step 12 is right
where step 1 was meant; runs without an answer are wrong. AgentProcessBench (`eval/compare.py`): steps without a verdict
are wrong, and a run without a -1 among its verdicts counts as one that was found free of errors, also where it has no
verdict at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from mappa.look.coach_eval.attribution import Attribution
from mappa.look.coach_eval.labelled_runs import Benchmark, LabelledRun
from mappa.look.importing.trajectories import MESSAGE_NUMBERS

_NO_ERROR = -1
"""The first error of a run without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFigure:
    """A figure by the published rule: of each stratum, over all its entries, and the mean of the strata; shares 0-1."""

    name: str
    by_stratum: Mapping[str, float]
    all: float
    mean_of_strata: float


def compute_published(
    benchmark: Benchmark, runs: Sequence[LabelledRun], answers: Sequence[Attribution]
) -> tuple[PublishedFigure, ...]:
    """Compute the published figures of a coach, from what it says of each run."""
    pairs = list(zip(runs, answers, strict=True))
    if benchmark == "who-and-when":
        agents = [(run.stratum, _agent_is_contained(run, one), 1) for run, one in pairs]
        steps = [(run.stratum, _step_is_contained(run, one), 1) for run, one in pairs]
        return _average("agent accuracy", agents), _average("step accuracy", steps)
    steps = [(run.stratum, _matching_steps(run, one), len(run.qualities)) for run, one in pairs]
    errors = [(run.stratum, _first_errors_agree(run, one), 1) for run, one in pairs]
    return _average("step accuracy", steps), _average("first error", errors)


def _average(name: str, rows: Sequence[tuple[str, int, int]]) -> PublishedFigure:
    """Average rows of stratum, number right, and number of entries."""
    strata = dict.fromkeys(stratum for stratum, _, _ in rows)
    shares = {
        chosen: sum(right for one, right, _ in rows if one == chosen) / sum(n for one, _, n in rows if one == chosen)
        for chosen in strata
    }
    return PublishedFigure(
        name=name,
        by_stratum=shares,
        all=sum(right for _, right, _ in rows) / sum(n for _, _, n in rows),
        mean_of_strata=fmean(shares.values()),
    )


def _agent_is_contained(run: LabelledRun, said: Attribution) -> int:
    named = re.search(r"\w+", said.agent or "")
    return int(run.guilt is not None and named is not None and any(one in named[0] for one in run.guilt.agents))


def _step_is_contained(run: LabelledRun, said: Attribution) -> int:
    if run.guilt is None or said.position is None:
        return 0
    number = str(_message_number(run, said.position))
    return int(any(str(_message_number(run, one)) in number for one in run.guilt.positions))


def _message_number(run: LabelledRun, position: int) -> int:
    numbers = run.task.meta.get(MESSAGE_NUMBERS)
    return int(numbers[position]) if isinstance(numbers, Sequence) else position


def _matching_steps(run: LabelledRun, said: Attribution) -> int:
    return sum(said.values.get(position) == value for position, value in run.qualities.items())


def _first_errors_agree(run: LabelledRun, said: Attribution) -> int:
    found = min((position for position, value in said.values.items() if value < 0), default=_NO_ERROR)
    return int(found == (_NO_ERROR if run.first_error is None else run.first_error))
