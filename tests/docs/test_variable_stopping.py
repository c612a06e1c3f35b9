"""The table of what estimators do where an agent ends its task when it likes: its figures are exact."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from mappa.look.conformance import expected_gradient, policy_gradient
from mappa.look.conformance.estimator_contract import REWARD_KINDS
from mappa.look.conformance.standard_processes import STOPPING
from mappa.testing import load_plugins
from mappa_core import Advantages

REGISTRY = load_plugins(only=("engine",))
PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
TABLE = PAGE.split("| estimator and its options |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
ROWS = {line.split("|")[1].strip(): [cell.strip() for cell in line.split("|")[2:5]] for line in TABLE}
ROUNDING = 1e-6
"""Of advantages in float32."""
SUMMING = ("gae", "gigpo")
"""Estimators that add up rewards themselves: what is their agent's return is not made by a shaper."""
GOING_ON = STOPPING.parameters.index(("solver", (1,), 6))


def built(row):
    """The estimator that a row of the table names, without a penalty: `name`, then `option: value`, …"""
    name, *given = re.findall(r"`([^`]+)`", row)
    options = REGISTRY.offer("estimators", name).options
    values = dict(one.split(": ") for one in given)
    parsed = {key: value if value.isalpha() else float(value) for key, value in values.items()}
    if name == "gdpo":
        parsed["weights"] = {"reward": 1.0}
    if hasattr(options(), "kl_coef"):
        parsed["kl_coef"] = 0.0
    return name, REGISTRY.build("estimators", name, options(**parsed))


def measured(row):
    """What the table says of an estimator: (share of its gradient that is bias, push towards going on) by rewards.

    The share is of the length that is left beside the exact gradient, whatever the scale.
    """
    name, estimator = built(row)
    found = []
    for kind, (shapers, objective) in REWARD_KINDS.items():
        own = name in SUMMING and kind == "returns"
        gradient = expected_gradient(STOPPING, estimator, shapers=() if own else shapers)
        exact = policy_gradient(STOPPING, objective)
        direction = exact / np.linalg.norm(exact)
        length = np.linalg.norm(gradient)
        beside = np.linalg.norm(gradient - gradient @ direction * direction) / length
        found.append((beside, (gradient[GOING_ON] - gradient @ direction * direction[GOING_ON]) / length))
    return found


def share_of(row):
    """The share that an action keeps among n siblings, of estimators that are exact but for it."""
    name, _ = built(row)
    return (lambda n: float(n > 1)) if name == "rloo" else (lambda n: (n - 1) / n)


def cell(beside, push, exact):
    if beside < ROUNDING:
        return "exact"
    text = f"{beside:.2f}" if exact is None else f"{beside:.2f} ({push:+.2f})"
    return text.replace("+0.00", "0").replace("-0.00", "0")


@pytest.mark.parametrize("row", ROWS)
def test_every_figure_of_the_table_is_what_the_batches_say(row):
    name, estimator = built(row)
    found = measured(row)
    own = "-" if name in SUMMING else cell(*found[0], None)
    told = [own, *(cell(*one, True) for one in found[1:])]
    assert [one.removeprefix("thinned ") for one in ROWS[row]] == told
    # A thinned gradient is exact decision by decision, but for a share that hangs on the number of siblings.
    for (kind, (shapers, objective)), said in zip(REWARD_KINDS.items(), ROWS[row], strict=True):
        if said.startswith("thinned"):
            gradient = expected_gradient(STOPPING, estimator, shapers=shapers)
            kept = policy_gradient(STOPPING, objective, share=share_of(row))
            np.testing.assert_allclose(gradient, kept, atol=ROUNDING, err_msg=kind)


def test_every_estimator_that_is_offered_has_a_row():
    plugins = REGISTRY.plugins
    offered = {*plugins["core"].offers["estimators"], *plugins["engine"].offers["estimators"]}
    # `function` is what somebody writes, and `distill` what its `rewards` are.
    assert {re.findall(r"`([^`]+)`", row)[0] for row in ROWS} == offered - {"function", "distill"}


def summed_turn_baselines(experience, state):
    """Each turn's reward less the mean of its turn, and these summed from the action on, with means that are known."""
    means = np.array([4.0, 3.0, 2.0])
    left = experience.reward - means[experience.turn]
    advantages = [
        left[(experience.trajectory == experience.trajectory[row]) & (experience.turn >= experience.turn[row])].sum()
        for row in range(len(left))
    ]
    return Advantages(advantages=np.repeat(np.array(advantages, np.float32), experience.lengths)), state


def test_a_baseline_of_every_turn_that_was_played_is_a_fine_for_going_on():
    """A trajectory that goes on pays the means of the turns that it reaches, one that ends does not. Going on leads to
    the second turn always and to the third in a half: 1/2 (1 - 1/2) (3 + 2/2), where the gradient is 0."""
    found = expected_gradient(STOPPING, summed_turn_baselines)
    exact = policy_gradient(STOPPING, "return")
    assert exact[GOING_ON] == 0.0
    assert found[GOING_ON] == pytest.approx(-0.25 * (3.0 + 0.5 * 2.0), abs=ROUNDING)
    assert f"**{found[GOING_ON]:.2f}**" in PAGE
    assert math.isclose(found[GOING_ON], -found[STOPPING.parameters.index(("solver", (1,), 5))], abs_tol=ROUNDING)
