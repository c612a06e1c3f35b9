"""Arms of results that are made here: what is said of a pair, and of what else differs between arms."""

import io

import numpy as np

from mappa.commands import Console
from mappa.look.cli.compare import comparison_json, comparison_notes, show_comparison
from mappa.look.compare import compare_arms, sequential_level
from mappa.look.html import comparison_html
from mappa.look.run_results import RunResult
from mappa.runs import Evaluation


def result(seed, values, **settings):
    problems = tuple(f"p{number}" for number in range(len(values)))
    evaluation = Evaluation(
        iteration=1,
        metric="correct",
        problems=problems,
        strata=("s",) * len(problems),
        values=np.array(values, dtype=np.float64)[:, None],
        failures={},
    )
    return RunResult(
        name=f"run{seed}",
        seed=seed,
        settings={"seed": str(seed), **settings},
        evaluation=evaluation,
        tasks=dict.fromkeys(problems, ""),
        samples=1,
    )


def shown(compared):
    text = io.StringIO()
    show_comparison(Console(file=text, width=200), compared, comparison_notes(compared))
    return text.getvalue()


WRONG, RIGHT = [0.0] * 60, [1.0] * 55 + [0.0] * 5


def test_nothing_is_said_of_a_difference_before_three_seeds_while_runs_are_to_come():
    for seeds in (1, 2):
        groups = {"a": [result(seed, WRONG) for seed in range(seeds)]}
        groups |= {name: [result(seed, RIGHT) for seed in range(seeds)] for name in ("b", "c")}
        text = shown(compare_arms(groups, level=sequential_level(3 * seeds, 18, seeds)))
        assert "b, a: too few seeds to tell while runs are to come" in text
        assert "Not all runs are done: nothing is called significant before three seeds of each." in text
        assert "not differ" not in text and "below 0 " not in text and "below 0." not in text
    done = {"a": [result(0, WRONG)], "b": [result(0, RIGHT)]}
    assert "b, a: the runs differ; of the settings this cannot be told" in shown(compare_arms(done, level=0.025))


def test_further_differences_between_arms_are_named():
    two = {"train.iterations": "2", "train.learning_rate": "5e-4", "coach.use": "x", "coach.options.n": "1"}
    one = {"train.iterations": "1", "train.learning_rate": ".9", "coach.use": "y"}
    groups = {"a": [result(0, WRONG, **two)], "b": [result(0, RIGHT, **one)]}
    by_hand = compare_arms(groups)
    differing = {"train.iterations": ("2", "1"), "train.learning_rate": ("5e-4", ".9"), "coach.use": ("x", "y")}
    assert comparison_json(by_hand)["also_differ"] == differing
    assert "the arms also differ in: train.iterations (2; 1)\n" in shown(by_hand)
    assert "the arms also differ in: train.iterations (2; 1)<" in comparison_html(by_hand)
    named = compare_arms(groups, named_by=["train.learning_rate", "coach.use"])
    assert named.also_differ == {"train.iterations": ("2", "1")}
    more = {**groups, "b": [*groups["b"], result(1, RIGHT, **(one | {"train.iterations": "2"}))]}
    pooled = compare_arms(more, named_by=["train.learning_rate", "coach.use"])
    assert pooled.also_differ == {"train.iterations": ("2", "1, 2")}
    assert "pooled in one arm: train.iterations of 1, 2" in comparison_html(pooled)
    lacking = compare_arms({"a": [result(0, WRONG)], "b": [result(0, RIGHT, **{"x": "1"})]})
    assert "the arms also differ in: x (not set; 1)" in shown(lacking)
