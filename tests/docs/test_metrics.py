"""The page on metrics lists what runs log: every name of it, and no other."""

import re
from dataclasses import replace

import numpy as np
import pytest

from mappa.runs import Evaluation
from mappa.store.agent_columns import AgentSummary
from mappa.store.iteration_report import (
    CoachFigures,
    CounterfactualFigures,
    IterationReport,
    OutcomeFigures,
    Staleness,
    VerdictCount,
)
from mappa_core import Usage
from mappa_core.coach import DriftReport, Gap, Interval

WHOLE = Interval(mean=1.0, low=0.0, high=2.0)
COUNT = VerdictCount(usage=Usage(calls=1, prompt_tokens=1, completion_tokens=1, cached_tokens=1, usd=0.5))
OUTCOMES = OutcomeFigures(accuracy=0.5, figures={"fair": 0.5})
GAP = Gap(
    phase="live",
    agent="coder",
    stratifier="task",
    stratum="easy",
    against="hard",
    actions=(1, 1),
    points=WHOLE,
    growth=WHOLE,
)
REPORT = IterationReport(
    iteration=1,
    outcomes=OUTCOMES,
    strata={"easy": OUTCOMES},
    replaced=1,
    staleness=Staleness(mean=0.5, max=1.0),
    agents={"coder": AgentSummary(score=5.0, tool_success=0.5, turns=1.0, length=9.0)},
    coach=CoachFigures(total=COUNT, by_agent={"coder": COUNT}, by_coach={"judge": COUNT}),
    drift=DriftReport(gaps=(GAP,)),
    corrections={"used": 1},
    counterfactuals=CounterfactualFigures(rollouts=1, lost=0, overflowed=0, settled=1, missing={"lost": 1}),
    seconds={"collect": 1.0},
)
EVALUATION = Evaluation(
    iteration=0,
    metric="correct",
    problems=("a", "b", "c", "d"),
    values=np.array([[1.0], [0.0], [1.0], [0.0]]),
    figures={"fair": np.array([[1.0], [0.0], [1.0], [0.0]])},
    strata=("easy", "easy", "hard", "hard"),
    failures={},
    part="all",
)


def test_no_name_is_there_twice_and_none_reads_like_another(metric_names, documented_metric):
    assert len(metric_names) == len(set(metric_names)) > 100
    for name in metric_names:
        # Names of a run's own are in lower case here, as capitals are what stands for them.
        assert documented_metric(re.sub("[A-Z]+", lambda word: word[0].lower(), name)) == name


def test_the_page_lists_what_is_logged_and_nothing_else(metric_names, documented_metric):
    selection = replace(EVALUATION, part="selection")
    logged = {*REPORT.metrics(), *EVALUATION.metrics(), *selection.metrics()}
    assert {name for name in logged if documented_metric(name) is None} == set()
    # Figures of a policy are those of its engine and its loss.
    listed = {name for name in metric_names if not name.startswith("policy/")}
    assert listed - {documented_metric(name) for name in logged} == set()


@pytest.mark.parametrize(
    "name, meant",
    [
        ("stratum/fractions/easy/figure/f1", "stratum/STRATUM/figure/FIGURE"),
        ("drift/live/coder/task/excel/gap_low", "drift/PHASE/AGENT/STRATIFIER/STRATUM/gap_low"),
        ("coach/agent/solver/usd", "coach/agent/AGENT/usd"),
        ("policy/solver/clip_share_low", "policy/POLICY/clip_share_low"),
        ("eval/accuracy_high", "eval/accuracy_high"),
    ],
)
def test_a_name_of_a_run_is_told_apart(name, meant, documented_metric):
    assert documented_metric(name) == meant


@pytest.mark.parametrize("name", ["acuracy", "policy/solver/losss", "eval/", "seconds/", "accuracy/x"])
def test_what_is_not_in_the_set_is_nothing(name, documented_metric):
    assert documented_metric(name) is None
