"""What a score is held against: second judgements, and outcomes at the price at which points buy them."""

import json

import numpy as np
import pytest

from mappa_calibration.actions import ActionColumns
from mappa_calibration.comparison import Price, compare_references, compare_siblings, demean, find_siblings


def columns(points, outcome, prompt, *, reference=None, plan=None, tokens=None):
    n = len(points)
    return ActionColumns(
        agent=np.full(n, "solver", dtype=object),
        points=np.asarray(points, float),
        reference=np.full(n, np.nan) if reference is None else np.asarray(reference, float),
        outcome=np.asarray(outcome, float),
        prompt=np.asarray(prompt),
        cluster=np.asarray(prompt) % 256,
        tokens=np.full(n, np.nan) if tokens is None else np.asarray(tokens, float),
        strata={"plan": np.full(n, "a", dtype=object) if plan is None else np.asarray(plan, dtype=object)},
    )


def test_only_actions_of_one_prompt_with_known_outcomes_are_siblings():
    found = find_siblings(columns([1, 2, 3, 4, 5], [1, 0, 1, np.nan, 1], [0, 0, 1, 2, 2]))
    assert found.points.tolist() == [1, 2]


def test_what_both_judgements_say_cancels():
    found = compare_references(columns([7, 3, 9], [1, 0, 1], [0, 1, 2], reference=[5.5, np.nan, 9]))
    assert found.excess.tolist() == [1.5, 0.0] and found.outcome.tolist() == [0, 0]
    assert compare_references(columns([7], [1], [0])) is None


def pairs(count, *, slope=0.1, noise=0.0, seed=0):
    """Pairs of siblings whose chance of success rises by `slope` a point of merit; scores with and without noise."""
    rng = np.random.default_rng(seed)
    merit = rng.choice([2.0, 8.0], 2 * count)
    outcome = rng.random(2 * count) < slope * merit
    twice = merit + noise * rng.normal(size=(2, 2 * count))
    return columns(twice[0], outcome, np.arange(count).repeat(2), reference=twice[1])


def test_the_price_of_an_outcome_is_the_inverse_of_what_a_point_buys():
    found = Price().with_actions(pairs(4000), ["plan"], 1.0).points
    assert found.value == pytest.approx(10.0, abs=4 * found.standard_error) and found.standard_error < 0.4


def test_noise_of_the_coach_does_not_raise_the_price():
    """Errors in variables: without the second judgement the slope is flattened by 4 / (9 + 4)."""
    actions = pairs(6000, noise=2.0)
    price = Price().with_actions(actions, ["plan"], 1.0)
    assert price.noise == pytest.approx(4.0, rel=0.05)
    assert price.points.value == pytest.approx(10.0, abs=4 * price.points.standard_error)
    alone = columns(actions.points, actions.outcome, actions.prompt)
    assert Price().with_actions(alone, ["plan"], 1.0).points.value == pytest.approx(10 * 13 / 9, abs=1.0)


def test_the_price_is_unknown_until_points_clearly_buy_outcome():
    assert Price().with_actions(pairs(10), ["plan"], 1.0).points is None
    assert compare_siblings(pairs(10), Price(), ["plan"]) is None
    against = pairs(4000, slope=0.1)
    against = columns(10 - against.points, against.outcome, against.prompt)
    assert Price().with_actions(against, ["plan"], 1.0).points is None


def test_excess_is_points_less_outcome_at_its_price():
    price = Price().with_actions(pairs(4000), ["plan"], 1.0)
    found = compare_siblings(columns([8, 2], [1, 0], [0, 0]), price, ["plan"])
    assert found.excess.tolist() == pytest.approx([8 - price.points.value, 2])
    assert found.price_error == price.points.standard_error


def test_a_preference_is_no_part_of_the_price():
    actions = pairs(4000)
    plan = np.random.default_rng(1).choice(["a", "b"], 8000)
    liked = columns(actions.points + 1.5 * (plan == "a"), actions.outcome, actions.prompt, plan=plan)
    found = Price().with_actions(liked, ["plan"], 1.0).points
    assert found.value == pytest.approx(10.0, abs=4 * found.standard_error)


def test_the_price_survives_json():
    price = Price().with_actions(pairs(300, noise=1.0), ["plan"], 0.9)
    again = Price.from_state(json.loads(json.dumps(price.state_dict())))
    assert again.points == price.points and again.noise == price.noise


def test_means_are_taken_off_within_groups():
    found = demean(np.array([[1.0, 0], [3, 0], [5, 2]]), np.array([7, 7, 9]))
    assert found.tolist() == [[-1, 0], [1, 0], [0, 0]]
