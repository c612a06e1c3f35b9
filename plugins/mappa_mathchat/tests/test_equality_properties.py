"""What holds for every answer, whatever algebra says: properties over generated equations, lists and expressions."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_mathchat.algebra_workers import AlgebraPool, AlgebraWorker, AnswerBudget
from mappa_mathchat.equality import answers_equal
from mappa_mathchat.extract_answer import extract_final_answer

DATA = Path(__file__).parents[4] / "shared" / "data"


def always(_answer, _reference):
    """An algebra that takes everything for equal."""
    return True


@pytest.fixture(scope="module")
def algebra():
    worker = AlgebraWorker()
    yield lambda answer, reference: AnswerBudget(worker, 5.0).equal(answer, reference)
    worker.close()


integers = st.integers(-99, 99)
coefficients = integers.filter(lambda value: value not in (0, 1, -1))
unknowns = st.lists(st.sampled_from(["x", "y", "z", "a", "b", r"\theta"]), min_size=2, max_size=3, unique=True)
powers = st.sampled_from(["", "^2", "^{3}"])


@st.composite
def equations(draw):
    """An equation in several unknowns and the numbers that stand in it."""
    names = draw(unknowns)
    factors = [draw(coefficients) for _ in names]
    terms = [f"{factor}{name}{draw(powers)}" for factor, name in zip(factors, names, strict=True)]
    right = draw(integers)
    left = "+".join(terms).replace("+-", draw(st.sampled_from(["-", " - "])))
    sides = draw(st.sampled_from([(left, str(right)), (str(right), left), (f"{left}-{right}".replace("--", "+"), "0")]))
    return draw(st.sampled_from(["=", " = "])).join(sides), [*factors, right, 0]


@given(equations(), st.data())
def test_no_number_equals_an_equation_in_several_unknowns(equation, data):
    text, numbers = equation
    number = data.draw(st.sampled_from(numbers) | integers)
    for answer in (
        str(number),
        f"{number}.0",
        rf"\frac{{{number}}}{{1}}",
        rf"\text{{{number}}}",
        rf"\boxed{{{number}}}",
    ):
        assert not answers_equal(answer, text, always)


@given(equations())
def test_no_side_of_an_equation_equals_it(equation):
    text, _ = equation
    for side in text.split("="):
        assert not answers_equal(side, text, always)


@given(
    st.lists(st.integers(0, 99).map(str) | st.integers(2, 9).map(r"\sqrt{{{}}}".format), min_size=2, max_size=6),
    st.sampled_from([",", ", ", ";", r" \text{ or } ", " or ", r",\ ", r"\quad "]),
    st.sampled_from(["{}", r"\{{{}\}}", "({})", "[{}]", "n={}"]),
    st.data(),
)
def test_no_shorter_list_equals_a_longer_one(parts, separator, around, data):
    shorter = data.draw(st.lists(st.sampled_from(parts), min_size=1, max_size=len(parts) - 1))
    long, short = (around.format(separator.join(side)) for side in (parts, shorter))
    assert not answers_equal(short, long, always)
    assert not answers_equal(long, short, always)


def _node(parts):
    return st.tuples(st.sampled_from("+-*/"), parts, parts)


trees = st.recursive(st.integers(1, 9), _node, max_leaves=5)


def write(tree):
    if isinstance(tree, int):
        return str(tree)
    operator, left, right = tree
    if operator == "/":
        return rf"\frac{{{write(left)}}}{{{write(right)}}}"
    sign = {"*": r" \cdot "}.get(operator, operator)
    return f"({write(left)}){sign}({write(right)})"


def compute(tree):
    """The value of a tree; None where it divides by zero."""
    if isinstance(tree, int):
        return Fraction(tree)
    operator, left, right = tree[0], compute(tree[1]), compute(tree[2])
    if left is None or right is None or (operator == "/" and right == 0):
        return None
    return {"+": left + right, "-": left - right, "*": left * right, "/": left / right if right else None}[operator]


@settings(max_examples=25, deadline=None)
@given(trees, trees)
def test_expressions_are_equal_when_their_values_are_whichever_is_the_reference(algebra, one, other):
    values = compute(one), compute(other)
    equal = None not in values and values[0] == values[1]
    if write(one) != write(other):
        assert answers_equal(write(one), write(other), algebra) == equal
        assert answers_equal(write(other), write(one), algebra) == equal


@settings(max_examples=10, deadline=None)
@given(trees, st.sampled_from(["x", r"\sqrt{2}", r"\pi", "x^2"]))
def test_an_expression_equals_itself_in_other_words(algebra, tree, factor):
    if compute(tree) is None:
        return
    text = rf"{factor} \cdot ({write(tree)})"
    for other in (rf"\left({text}\right)", rf"1 \cdot ({text})", rf"({write(tree)}) \cdot {factor}", f"$${text}$$"):
        assert answers_equal(other, text, algebra), other


BOMBS = {
    "tower": "9^{9^{9^{9}}}",
    "tower without braces": "9^9^9",
    "factorials": "((((9!)!)!)!)!",
    "power of a sum": "(x+y+z)^{99999}",
    "digits": "9" * 10**6,
    "opened braces": "{" * 10**5,
    "nested braces": "{" * 10**5 + "60" + "}" * 10**5,
    "nested fractions": r"\frac{1}{" * 200 + "1" + "}" * 200,
    "exponent": "1e" + "9" * 400,
    "binomial": r"\binom{10^{9}}{10^{8}}",
    "equation": "x^{99999}+x^{99998}=1",
    "matrix": r"\begin{pmatrix}9^{9^{9}}\\9^{9^{9}}\end{pmatrix}",
    "unmatched union": r"}\cup{",
    "signs": r"\pm" * 300,
    "sets of sets": r"\{" * 20 + ",".join("1" * 300) + r"\}" * 20,
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_a_hostile_answer_is_wrong_on_either_side_and_the_next_is_graded(bomb):
    pool = AlgebraPool(seconds=0.1)
    for reference in ("60", r"\sqrt{3}", "x+y=5", r"(1,2]\cup(3,4", bomb + "+1"):
        assert pool.answers_equal(bomb, reference) is False
        assert pool.answers_equal(reference, bomb) is False
    assert pool.answers_equal(r"\sqrt{3600}", "60")
    pool.close()


def test_a_box_that_never_closes_is_none():
    assert extract_final_answer(r"\boxed{" + "{" * 10**5) is None
    assert extract_final_answer(r"\boxed{" * 10**4) is None


FORMS = [
    "{}", "{}.0", " {} ", "**{}**", "${}$", r"\({}\)", r"\text{{{}}}", r"\mathbf{{{}}}", "x = {}",
    r"\text{{Answer}} = {}", r"\left({}\right)", r"\frac{{{}}}{{1}}",
    "{}.", "+{}", r"{}\text{{ units}}", r"\{{{}\}}", "0{}",
]  # fmt: skip
"""How models write a label of the published files that is a number without a sign."""


@pytest.mark.parametrize("name", ["AIME_1983_2024.json", "amc.json", "aime_2025.json"])
def test_labels_are_right_in_every_form_and_for_no_other_problem(name):
    path = DATA / name
    if not path.exists():
        pytest.skip(f"the published data is not here: {name}")

    def never(answer, reference):
        raise AssertionError(f"a label of the published files needs no algebra: {answer}, {reference}")

    labels = sorted({str(row["answer"]) for row in json.loads(path.read_text(encoding="utf-8"))})
    for label, other in pairwise([*labels, labels[0]]):
        digits = label.removesuffix(".0")
        for form in FORMS if digits.isdigit() else ["{}"]:
            assert answers_equal(form.format(digits), label, never), form
            same = digits.lstrip("0") == other.removesuffix(".0").lstrip("0")
            assert answers_equal(form.format(digits), other, never) == same, (form, other)
