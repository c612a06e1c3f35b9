"""Arms of results that are made here: what is said of a pair, and of what else differs between arms."""

import io

import numpy as np

from mappa.commands import Console
from mappa.look.cli.compare import comparison_json, comparison_notes, show_comparison
from mappa.look.compare import compare_arms, sequential_level
from mappa.look.html import comparison_html
from mappa.look.run_results import RunResult
from mappa.runs import Evaluation


def result(seed, values, *, figures=None, **settings):
    problems = tuple(f"p{number}" for number in range(len(values)))
    evaluation = Evaluation(
        iteration=1,
        metric="correct",
        problems=problems,
        strata=("s",) * len(problems),
        values=np.array(values, dtype=np.float64)[:, None],
        failures={},
        figures={name: np.array(column, dtype=np.float64)[:, None] for name, column in (figures or {}).items()},
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


def parsed(seed, *right):
    """A result of a problem per value: 1 or 0 for an answer that was parsed, None for one that was not."""
    figures = {
        "parsed": [value is not None for value in right],
        "correct_among_parsed": [np.nan if value is None else value for value in right],
    }
    return result(seed, [value or 0 for value in right], figures=figures)


def test_arms_are_shown_with_format_and_skill_apart():
    groups = {"a": [parsed(0, 1, None, 0, 1), parsed(1, 1, 1, 0, None)], "b": [parsed(0, *[None] * 4)]}
    compared = compare_arms(groups)
    one, other = compared.arms
    assert (one.mean.mean, one.parsing["parsed"].mean) == (0.5, 0.75)
    # The first and the third problem are the ones that were parsed by both seeds.
    assert one.parsing["correct_among_parsed"].mean == 0.5
    assert other.parsing["parsed"].mean == 0.0 and other.parsing["correct_among_parsed"] is None
    assert "correct_among_parsed" in shown(compared) and "correct_among_parsed" in comparison_html(compared)
    assert comparison_json(compared)["arms"][0]["parsing"]["parsed"]["mean"] == 0.75


def test_nothing_is_shown_of_parsing_where_a_run_does_not_say_it():
    compared = compare_arms({"a": [parsed(0, 1, None)], "b": [result(0, [1.0, 0.0])]})
    assert all(arm.parsing == {} for arm in compared.arms) and "parsed" not in shown(compared)
    assert compare_arms({"a": [parsed(0, 1)], "b": [parsed(0, None)]}, measure="parsed").arms[0].parsing == {}
