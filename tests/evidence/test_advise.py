"""The study of advice: its regret by hand, and its stored figures from their cells."""

import json
from pathlib import Path

import advise
import msgspec
import pytest

RESULTS = Path(__file__).parents[2] / "docs" / "evidence" / "results"
STORED = {team: json.loads((RESULTS / f"advise_{team}.json").read_text()) for team in advise.TEAMS}


def cells_of(team):
    return [msgspec.convert(cell, advise.Advised) for cell in STORED[team]["cells"]]


def advised(fix, gains, **fields):
    known = {"seed": 0, "agent": "a", "choice": fix, "right": False, "rollouts": 1, "trials": {}, "seconds": 0.0}
    return advise.Advised(fix=fix, gains=gains, **known | fields)


def test_the_best_fix_is_chosen_on_one_half_and_measured_on_the_other():
    gains = {"nothing": (0.0, 0.0), "prompt": (0.3, 0.1), "model": (0.1, 0.2)}
    # The prompt is best on the first half and gains 0.1 on the other, the model the other way round and gains 0.1.
    assert advised("nothing", gains).regret == pytest.approx(0.1)
    assert advised("prompt", gains).regret == pytest.approx((0.1 - 0.1 + 0.1 - 0.3) / 2)
    assert advised("nothing", gains).hindsight == pytest.approx(0.2)
    assert advised("model", gains).hindsight == pytest.approx(0.05)
    assert advised("nothing", {}).regret is None and advised("nothing", {}).hindsight is None


def test_figures_are_means_over_the_seeds_that_played_new_tasks():
    gains = {"nothing": (0.0, 0.0), "prompt": (0.1, 0.1)}
    found = [advised("nothing", gains), advised("prompt", gains, right=True), advised("prompt", {}, right=True)]
    figures = advise.summarize(found)
    assert (figures.right, figures.fix_recommended, figures.choices) == (2, 2, {"nothing": 1, "prompt": 2})
    assert figures.regret_points.mean == pytest.approx(5.0) and figures.regret_points.low < 0
    assert advise.summarize([found[2]]).regret_points is None


@pytest.mark.parametrize("team", advise.TEAMS)
def test_stored_figures_are_those_of_their_cells(team):
    found = cells_of(team)
    assert STORED[team]["simulation"] == f"advise_{team}" and STORED[team]["changed"] is False
    figures, then = advise.summarize(found), msgspec.convert(STORED[team]["figures"], advise.Figures)
    assert (figures.right, figures.fix_recommended, figures.choices) == (then.right, then.fix_recommended, then.choices)
    for mine, stored in (
        (figures.regret_points, then.regret_points),
        (figures.hindsight_points, then.hindsight_points),
    ):
        assert (mine.mean, mine.low, mine.high) == pytest.approx((stored.mean, stored.low, stored.high), abs=1e-9)
    assert [one.seed for one in found] == list(range(len(found))) and sum(bool(one.gains) for one in found) == 5
    assert all(one.fix in one.gains for one in found if one.gains)


def test_what_is_claimed_at_the_head_of_the_study_holds_in_what_is_stored():
    found = {team: advise.summarize(cells_of(team)) for team in advise.TEAMS}
    assert sum(one.regret_points.mean <= 2 and one.hindsight_points.mean <= 2 for one in found.values()) >= 4
    counts = {team: len(cells_of(team)) for team in advise.TEAMS}
    assert all(found[team].right >= 0.9 * counts[team] for team in ("prompt", "model"))
    helpless = ("tool", "nothing")
    assert sum(found[team].fix_recommended for team in helpless) <= 0.05 * sum(counts[team] for team in helpless)
