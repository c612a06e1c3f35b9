"""What is learned from siblings and from second judgements, of a coach that errs alike whenever it judges an action."""

import json

import numpy as np
import pytest

from mappa_calibration.actions import ActionColumns
from mappa_calibration.bias_model import BiasModel
from mappa_calibration.options import AlarmOptions, BiasOptions
from mappa_core import Use

ITERATIONS, TASKS, SIBLINGS = 12, 16, 4


def iterations(*, per_doubling=2.0, reference=None):
    """Actions of which the longer ones get more points, by merit or not, with an error that the coach repeats."""
    rng = np.random.default_rng(0)
    for iteration in range(ITERATIONS):
        n = TASKS * SIBLINGS
        doublings, error = rng.integers(0, 2, n), rng.normal(size=n)
        yield {
            "live": ActionColumns(
                agent=np.full(n, "solver", dtype=object),
                points=4 + per_doubling * doublings + error,
                reference=np.full(n, np.nan) if reference is None else reference(doublings) + rng.normal(size=n),
                prompt=np.arange(TASKS).repeat(SIBLINGS),
                cluster=np.arange(iteration * TASKS, (iteration + 1) * TASKS).repeat(SIBLINGS) % 256,
                tokens=64.0 * 2**doublings,
            )
        }


def learn(options, actions):
    model = BiasModel(options)
    return model, [model.learn(columns, number) for number, columns in enumerate(actions)]


def bias_of_a_doubling(model):
    return model.bias("live", "solver", {}, 128.0) - model.bias("live", "solver", {}, 64.0)


def differences(reports):
    return [note for report in reports for note in report.notes if note.startswith("the coach gives")]


def test_siblings_show_a_difference_say_what_may_make_it_and_move_no_score():
    model, reports = learn(BiasOptions(strata=["length"]), iterations())
    (note,) = differences(reports)
    assert note.startswith("the coach gives solver +") and "against half as long, among siblings of a prompt [" in note
    assert note.endswith(
        "]: merit that goes with length, an error that the coach repeats on the same action, or a preference. Siblings "
        "do not tell which, so nothing is taken off"
    )
    assert bias_of_a_doubling(model) == 0
    assert not any(report.alarms or report.gaps for report in reports)


def test_siblings_without_a_difference_or_an_acknowledged_one_are_not_spoken_of():
    assert differences(learn(BiasOptions(strata=["length"]), iterations(per_doubling=0))[1]) == []
    known = BiasOptions(strata=["length"], alarms=AlarmOptions(acknowledged=["solver/length"]))
    assert differences(learn(known, iterations())[1]) == []


@pytest.mark.parametrize(("merit", "taken"), [(2.0, 0.0), (0.0, 2.0)])
def test_a_second_coach_tells_merit_that_goes_with_length_from_a_preference(merit, taken):
    options = BiasOptions(coach=Use(use="a"), second=Use(use="b"), strata=["length"])
    model, reports = learn(options, iterations(reference=lambda doublings: 4 + merit * doublings))
    assert bias_of_a_doubling(model) == pytest.approx(taken, abs=0.3)
    assert any(report.alarms for report in reports) is bool(taken) and differences(reports) == []


def test_what_siblings_showed_survives_json():
    options, actions = BiasOptions(strata=["length"]), list(iterations())
    whole, _ = learn(options, actions)
    part, _ = learn(options, actions[:8])
    resumed = BiasModel(options)
    resumed.load_state_dict(json.loads(json.dumps(part.state_dict())))
    assert differences([resumed.learn(columns, 8 + number) for number, columns in enumerate(actions[8:])]) == []
    assert resumed.state_dict() == whole.state_dict()
