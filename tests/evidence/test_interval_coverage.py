"""The simulation of coverage: its truth is the truth, and what it prints of a few cells is near what is promised."""

from __future__ import annotations

import numpy as np
import pytest
from interval_coverage import CASES, Case, cell, row, runs, simulated, truth_of


def test_the_truth_is_that_of_very_many_clusters_and_seeds():
    random = np.random.default_rng(0)
    from scipy.special import expit, logit

    shares = np.clip(random.beta(0.1 * 17 / 3, 0.9 * 17 / 3, 400_000), 1e-12, 1 - 1e-12)
    base, seeds = logit(shares), 0.3 * random.normal(size=400_000)
    others = 0.3 * random.normal(size=400_000)
    gained = expit(base + 1.0 + 0.3 * random.normal(size=400_000) + seeds) - expit(base + others)
    assert truth_of(Case(what="compare", share=0.1, gain=1.0, seeds=5)) == pytest.approx(gained.mean(), abs=2e-3)
    assert truth_of(Case(what="eval", share=0.9)) == 0.9
    assert truth_of(Case(what="compare", share=0.5, gain=0.0)) == pytest.approx(0.0, abs=1e-3)


def test_runs_of_a_setting_differ_by_seed_and_problems_by_cluster():
    random = np.random.default_rng(0)
    numbers = np.repeat(np.arange(200), 20)
    made = runs(random, random.normal(0, 1.5, 200), numbers, 40)
    assert made.mean(axis=1).std() == pytest.approx(0.3 * 0.16, rel=0.4)
    within = made[0].reshape(200, 20)
    assert within.mean(axis=1).std() > 3 * (within.std(axis=1) / np.sqrt(20)).mean()


@pytest.mark.parametrize(
    ("case", "clusters"), [(CASES[1], 8), (CASES[1], 30), (CASES[4], 8), (CASES[7], 30), (CASES[10], 8)]
)
def test_intervals_hold_the_truth_about_as_often_as_they_say(case, clusters):
    found = cell(case, clusters, 250)
    assert 0.90 <= found.covered <= 0.99  # 250 simulations are good to 1.4 points; Student's alone is at 88 of 100
    assert found.covered + found.below + found.above == pytest.approx(1.0)
    assert len(row(found)) == 11


def test_a_cell_is_the_same_whenever_it_is_made():
    assert cell(CASES[0], 4, 20).covered == cell(CASES[0], 4, 20).covered
    one = simulated(CASES[3], np.random.default_rng(1), 8)
    assert one.low < one.mean < one.high
