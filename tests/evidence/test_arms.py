"""Seeds put together."""

from pathlib import Path

import numpy as np
import pytest
from arms import figures

from mappa.runs import Evaluation
from mappa.statistics import paired_gain
from mappa.store.summary import EvalSummary, Summary
from mappa.training import TrainResult


def evaluation(iteration, *values):
    return Evaluation(
        iteration=iteration,
        metric="correct",
        problems=tuple(map(str, range(len(values)))),
        strata=("all",) * len(values),
        values=np.array(values, float)[:, None],
        failures={},
    )


def trained(before, after):
    first, last = evaluation(0, *before), evaluation(9, *after)
    own = EvalSummary(metric="correct", n=4, before=first.interval, after=last.interval, gain=last.gain_over(first))
    summary = Summary(plugin="p", recipe="r", recipe_hash="", seed=0, status="done", eval=own)
    return TrainResult(folder=Path(), summary=summary, evaluations=(first, evaluation(5, 1, 1, 1, 1), last))


def test_a_single_run_shows_what_it_printed_itself():
    run = trained([0, 0, 1, 0], [1, 0, 1, 1])
    own = run.summary.eval
    shown = figures([run])
    assert (shown.before, shown.after, shown.gain) == (own.before, own.after, own.gain)
    assert (shown.before.low, shown.before.high) == pytest.approx((0.0456, 0.6994), abs=1e-4)  # Wilson: 1 of 4


def test_seeds_that_agree_make_the_interval_no_narrower():
    one = trained([0, 0, 1, 0], [1, 0, 1, 1])
    pooled = figures([one, one, one]).gain
    alone = paired_gain([0, 0, 1, 0], [1, 0, 1, 1])
    assert (pooled.mean, pooled.low, pooled.high) == pytest.approx((alone.mean, alone.low, alone.high))


def test_a_lost_problem_is_left_out_of_its_seed_alone():
    pooled = figures([trained([0, 0, 0, 0], [1, 1, 0, np.nan]), trained([0, 0, 0, 0], [1, 1, 0, 0])])
    assert pooled.gain.mean == pytest.approx(4 / 7)
    assert pooled.before.mean == 0
