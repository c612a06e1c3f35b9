"""What is claimed, and when it counts as held, not held or open."""

import numpy as np
import pytest
from claims import Claim, judged, restricted, rows, within

from mappa.look.run_results import RunResult
from mappa.runs import Evaluation

PROBLEMS = tuple(f"p{number:03d}" for number in range(200))


def result(seed, share, stratum_share=None):
    """A run that solved a share of the problems, drawn anew by its seed; of the second half another share."""
    random = np.random.default_rng((seed, int(1000 * share)))
    shares = np.where(np.arange(200) < 100, share, share if stratum_share is None else stratum_share)
    evaluation = Evaluation(
        iteration=1,
        metric="correct",
        problems=PROBLEMS,
        strata=("sum",) * 100 + ("scale",) * 100,
        values=(random.random(200) < shares).astype(float)[:, None],
        failures={},
    )
    tasks = dict.fromkeys(PROBLEMS, "same")
    return RunResult(name=f"s{seed}", seed=seed, settings={}, evaluation=evaluation, tasks=tasks, samples=1)


def arm(*shares, seeds=5):
    return [result(seed, *shares) for seed in range(seeds)]


@pytest.mark.parametrize(
    ("one", "other", "expected", "standing"),
    [
        (0.8, 0.4, "better", "held"),
        (0.4, 0.8, "worse", "held"),
        (0.8, 0.4, "worse", "not held"),
        (0.8, 0.4, "no significant difference", "not held"),
        (0.6, 0.6, "better", "not held"),
        (0.6, 0.601, "no significant difference", "held"),
    ],
)
def test_a_claim_holds_where_what_was_found_is_what_was_expected(one, other, expected, standing):
    runs = {"a": arm(one), "b": arm(other)}
    (found,) = judged([Claim(one="a", other="b", expected=expected)], runs)
    assert found.standing == standing
    equal = expected == "no significant difference" and standing == "held"
    assert found.cells[0] == "a - b" and found.cells[-1] == ("held, within 10 points" if equal else standing)


def test_that_there_is_no_difference_stays_open_where_the_interval_is_wide():
    few = {
        name: [restricted(one, frozenset(PROBLEMS[:8])) for one in arm(share)]
        for name, share in zip("ab", (0.6, 0.601), strict=True)
    }
    (found,) = judged([Claim(one="a", other="b", expected="no significant difference")], few)
    assert found.pair.finding == "no significant difference"
    assert found.pair.difference.high - found.pair.difference.low > 0.2
    assert found.standing == "open"


def test_p_values_of_all_claims_are_adjusted_together():
    runs = {"a": arm(0.6), "b": arm(0.5), "c": arm(0.4)}
    alone = judged([Claim(one="a", other="b", expected="better")], runs)[0].pair
    claims = [Claim(one=one, other=other, expected="better") for one, other in (("a", "b"), ("b", "c"), ("a", "c"))]
    together = judged(claims, runs)[0].pair
    assert together.p == alone.p == alone.p_adjusted
    assert together.p_adjusted > together.p


def test_a_claim_of_a_stratum_is_judged_on_its_problems_alone():
    runs = {"a": arm(0.5, 0.9), "b": arm(0.5, 0.2)}
    claims = [Claim(one="a", other="b", stratum=name, expected="better") for name in ("sum", "scale")]
    of_sum, of_scale = judged(claims, runs)
    assert (of_sum.pair.problems, of_scale.pair.problems) == (100, 100)
    assert of_scale.standing == "held" and of_scale.pair.difference.mean > 0.5
    assert of_sum.pair.difference.mean < 0.2
    shown = list(rows(runs, (None, "scale")))
    assert [line[:2] for line in shown] == [("a", "all"), ("a", "scale"), ("b", "all"), ("b", "scale")]
    assert len(shown[0][3].split(", ")) == 5


def test_a_restricted_result_keeps_order_and_strata():
    one = result(0, 0.5)
    part = restricted(one, frozenset(PROBLEMS[50:150:7]))
    assert part.evaluation.problems == PROBLEMS[50:150:7]
    kept = [PROBLEMS.index(name) for name in part.evaluation.problems]
    assert part.evaluation.values.tolist() == one.evaluation.values[kept].tolist()
    assert part.evaluation.strata == tuple(one.evaluation.strata[place] for place in kept)
    assert set(part.tasks) == set(part.evaluation.problems)
    assert within(one, None) is one


def test_one_seed_speaks_of_problems_alone():
    (found,) = judged([Claim(one="a", other="b", expected="better")], {"a": arm(0.8, seeds=1), "b": arm(0.4, seeds=1)})
    assert not found.pair.over_seeds
    assert found.pair.finding == "cannot be told" and found.standing == "open"
