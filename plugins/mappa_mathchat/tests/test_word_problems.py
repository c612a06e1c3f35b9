"""The generator of word problems and the language of their plans."""

from __future__ import annotations

import re
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import ConfigError
from mappa_mathchat import word_problems
from mappa_mathchat.plans import Plan, PlanStep, parse_plan
from mappa_mathchat.word_problems import (
    VERBS,
    WordOptions,
    WordProblems,
    fingerprint_text,
    generate_problems,
    parse_problem,
)

MEANS = {verb: operation for operation, verbs in VERBS.items() for verb in verbs}
steps = st.builds(PlanStep, st.sampled_from(["add", "sub", "mul"]), st.integers(0, 999))
plans = st.builds(Plan, st.integers(0, 999), st.lists(steps, max_size=6).map(tuple))


def solve(text: str) -> int:
    """An independent reading of a problem."""
    total = int(re.search(r" has (\d+)", text)[1])  # type: ignore[index]
    for verb, number in re.findall(r"\. \w+ (\w+) (\d+)", text):
        match MEANS[verb], int(number):
            case "add", n:
                total += n
            case "sub", n:
                total -= n
            case "mul", n:
                total *= n
            case "div", n:
                assert total % n == 0
                total //= n
        assert 1 <= total <= 999
    return total


def test_the_same_options_give_the_same_tasks() -> None:
    for split in ("train", "eval"):
        assert WordProblems(WordOptions()).load(split) == WordProblems(WordOptions()).load(split)  # type: ignore[arg-type]


def test_another_seed_gives_other_tasks() -> None:
    one, other = ({task.id for task in WordProblems(WordOptions(seed=seed)).load("train")} for seed in (0, 1))
    assert len(one & other) < len(one) / 10


def test_references_are_right_and_ids_unique() -> None:
    tasks = [*WordProblems(WordOptions()).load("train"), *WordProblems(WordOptions()).load("eval")]
    assert len(tasks) == len({task.id for task in tasks}) == 4096 + 512
    for task in tasks:
        assert solve(task.prompt) == int(task.reference or "")
        scales = any(MEANS[verb] in ("mul", "div") for verb in re.findall(r"\. \w+ (\w+) \d", task.prompt))
        assert task.stratum == ("scale" if scales else "sum")


def test_both_strata_and_every_verb_occur_often() -> None:
    tasks = WordProblems(WordOptions()).load("train")
    assert 0.45 < sum(task.stratum == "sum" for task in tasks) / len(tasks) < 0.55
    for verb in MEANS:
        assert sum(f" {verb} " in task.prompt for task in tasks) > len(tasks) / 10


def test_a_problem_is_held_out_by_its_text_alone() -> None:
    """No seed, mix or number of steps brings a held-out text into training."""
    variants = [WordOptions(), WordOptions(seed=7), WordOptions(mix="scale", steps=[3]), WordOptions(mix="sum", seed=3)]
    train = {task.prompt for options in variants for task in WordProblems(options).load("train")}
    held_out = {task.prompt for options in variants for task in WordProblems(options).load("eval")}
    assert not train & held_out
    assert all(fingerprint_text(text) % 10 == 0 for text in held_out)


def test_about_a_tenth_is_held_out() -> None:
    drawn = list(islice(generate_problems(Random(0)), 5000))
    assert 0.08 < sum(problem.held_out for problem in drawn) / len(drawn) < 0.12


def test_fingerprints_do_not_change() -> None:
    """A change would move held-out problems into training, against the model that is shipped."""
    assert fingerprint_text("Ana has 38 pens. Ana sells 9. Ana gives 17. How many pens?") == 0x64DA711334DE8344


def test_mix_and_steps_choose_problems() -> None:
    tasks = WordProblems(WordOptions(train=200, mix="scale", steps=[3])).load("train")
    assert {task.stratum for task in tasks} == {"scale"}
    assert all(task.prompt.count(".") == 4 for task in tasks)


@pytest.mark.parametrize("wrong", [WordOptions(steps=[]), WordOptions(steps=[0]), WordOptions(steps=[2, 9])])
def test_options_that_make_no_sense_are_refused(wrong: WordOptions) -> None:
    with pytest.raises(ConfigError, match=r"steps: must be numbers from 1 to 6"):
        wrong.check()


@pytest.mark.parametrize("wrong", [WordOptions(train=-1), WordOptions(eval=-1)])
def test_a_negative_count_is_refused(wrong: WordOptions) -> None:
    with pytest.raises(ConfigError, match=r"(train|eval): must not be negative, not -1"):
        wrong.check()


def test_more_problems_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(word_problems, "REPEATS", 20)
    with pytest.raises(ConfigError, match=r"eval: there are only about \d+ such problems, not 10000; ask for fewer"):
        WordProblems(WordOptions(steps=[1], mix="scale", eval=10_000)).load("eval")


@given(plans)
def test_a_plan_survives_being_written_and_read(plan: Plan) -> None:
    assert parse_plan(plan.text) == plan


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("start 38\nsub 9\nsub 17", 12, "sum"),
        (" start 5 \nmul 3\n", 15, "scale"),
        ("start 7\ndiv 2", 3, "scale"),
        ("start 2\nsub 5\ndiv 2", -2, "scale"),
        ("start 4", 4, "sum"),
    ],
)
def test_value_and_kind_of_a_plan(text: str, value: int, kind: str) -> None:
    plan = parse_plan(text)
    assert plan is not None
    assert (plan.value, plan.kind) == (value, kind)


@pytest.mark.parametrize(
    "text",
    ["", "add 3", "start 3\nstart 4", "start 3\ndiv 0", "start 3 add 4", "start 3\n\nadd 4", "start 3.5", "start -3",
     "start 3\nadd", "Start 3", "start 3\npow 9", "start " + "9" * 10, "start 1" + "\nmul 9" * 17, "We start 3"],
)  # fmt: skip
def test_text_that_is_no_plan_is_rejected(text: str) -> None:
    assert parse_plan(text) is None


@given(st.text())
def test_reading_a_plan_never_fails(text: str) -> None:
    parse_plan(text)


def test_the_text_of_every_problem_tells_its_plan() -> None:
    for problem in islice(generate_problems(Random(3), steps=(1, 2, 3, 6)), 400):
        assert parse_problem(problem.text) == problem.plan


@pytest.mark.parametrize(
    "text",
    [
        "",
        "How many pens?",
        "Ana has 3 pens. How many",
        "Ana has 3 pens. Ana eats 2. How many pens?",
        "Ana has 3 pens and 2 cups. How many pens?",
        "Ana has 3 pens. Ana sells 2. Why? How many pens?",
    ],
)
def test_a_text_that_is_no_problem_tells_no_plan(text: str) -> None:
    assert parse_problem(text) is None
