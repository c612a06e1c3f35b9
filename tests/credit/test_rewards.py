from __future__ import annotations

from dataclasses import replace

import pytest

from mappa_core import ConfigError, Verdict
from mappa_core.credit.rewards import compute_rewards
from mappa_core.credit.shapers import OutcomeOptions, OutcomeShaper, ScaleOptions, ScaleShaper


def verdict(step: str, score: float | None, phase: str = "live") -> Verdict:
    status = "failed" if score is None else "scored"
    return Verdict(status=status, score=score, step=step, phase=phase)


@pytest.fixture
def judged(make_step, make_trajectory):
    """A function from verdicts to a trajectory of three steps."""

    def make(*verdicts: Verdict, outcome=None):
        steps = [make_step(name, position=k) for k, name in enumerate("abc")]
        return make_trajectory("t", steps, verdicts=verdicts, outcome=outcome)

    return make


def test_a_reward_is_the_points_of_the_live_verdict(judged) -> None:
    trajectory = judged(verdict("c", 0.0), verdict("a", 10.0), verdict("b", 4.5))
    assert compute_rewards(trajectory, {"live": 1.0, "after": 0.0}, ()) == (10.0, 4.5, 0.0)


@pytest.mark.parametrize("judgement", [(), (Verdict.failed("timeout"),), (Verdict.abstained("not mine"),)])
def test_verdict_without_a_score_gives_no_reward(judgement, judged) -> None:
    given = [replace(verdict, step="b") for verdict in judgement]
    assert compute_rewards(judged(verdict("a", 3.0), *given), {"live": 1.0}, ()) == (3.0, None, None)


def test_reward_is_the_weighted_sum_of_phases_that_all_have_a_score(judged) -> None:
    both = [verdict("a", 10.0), verdict("a", 2.0, "after")]
    trajectory = judged(*both, verdict("b", 10.0), verdict("c", 10.0, "after"))
    assert compute_rewards(trajectory, {"live": 0.25, "after": 0.75}, ()) == (4.0, None, None)
    assert compute_rewards(trajectory, {"live": 0.0, "after": 1.0}, ()) == (2.0, None, 10.0)


def test_last_verdict_of_a_phase_counts_even_if_it_failed(judged) -> None:
    trajectory = judged(verdict("a", 1.0), verdict("a", 9.0), verdict("b", None), verdict("b", 5.0), verdict("c", 5.0))
    assert compute_rewards(trajectory, {"live": 1.0}, ()) == (9.0, 5.0, 5.0)
    assert compute_rewards(judged(verdict("a", 5.0), verdict("a", None)), {"live": 1.0}, ()) == (None, None, None)


def test_rewards_without_a_weighted_phase_come_from_shapers_alone(judged) -> None:
    trajectory = judged(verdict("a", 5.0), outcome={"correct": 1.0})
    assert compute_rewards(trajectory, {}, ()) == compute_rewards(trajectory, {"live": 0.0}, ()) == (None, None, None)
    assert compute_rewards(trajectory, {}, [OutcomeShaper(OutcomeOptions())]) == (1.0, 1.0, 1.0)


def test_shapers_run_in_the_order_of_the_recipe(judged) -> None:
    halve, shift = ScaleShaper(ScaleOptions(high=0.5)), ScaleShaper(ScaleOptions(source_high=1.0, low=1.0, high=2.0))
    trajectory = judged(verdict("a", 10.0))
    assert compute_rewards(trajectory, {"live": 1.0}, [halve, shift]) == (1.5, None, None)
    assert compute_rewards(trajectory, {"live": 1.0}, [shift, halve]) == (0.55, None, None)


def test_a_shaper_that_loses_a_step_is_named(judged) -> None:
    def careless(trajectory, rewards):
        return rewards[:-1]

    with pytest.raises(ValueError, match=r"careless.* returned 2 rewards for 3 steps"):
        compute_rewards(judged(), {"live": 1.0}, [careless])


def test_a_phase_that_does_not_exist_is_refused(judged) -> None:
    with pytest.raises(ConfigError, match="'liv' is not a phase; the phases are live, after, again"):
        compute_rewards(judged(), {"liv": 1.0}, ())


def test_a_trajectory_without_steps_has_no_rewards(make_trajectory) -> None:
    assert compute_rewards(make_trajectory(), {"live": 1.0}, [OutcomeShaper(OutcomeOptions())]) == ()
