"""Arithmetic of strangers: exact where it can be, refused where it would take too long."""

import math

import pytest

from mappa_core.safe_arithmetic import ExpressionError, evaluate_expression, format_result


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("1 + 2 * 3", "7"),
        ("0.1 + 0.2", "0.3"),
        ("0.1 + 0.2 - 0.3", "0"),
        ("1 / 3", "1/3 (about 0.3333333333333333)"),
        ("1 / 3 * 3", "1"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("2 ** -2", "0.25"),
        ("2 ** 100", str(2**100)),
        ("(-8) ** 3", "-512"),
        ("sqrt(9 / 4)", "1.5"),
        ("sqrt(2)", repr(math.sqrt(2))),
        ("2 ** 0.5", repr(2**0.5)),
        ("factorial(20) / factorial(18)", "380"),
        ("gcd(12, 18) + lcm(4, 6) + comb(5, 2)", "28"),
        ("round(2.675, 2)", "2.68"),
        ("floor(-1.5) + ceil(1.2) + abs(-3)", "3"),
        ("max(1, 2.5, 2)", "2.5"),
        ("12345678901234567890.5 * 2", "24691357802469135781"),
        ("1e3", "1000"),
        ("2 * pi", repr(2 * math.pi)),
        (" +5\n", "5"),
        ("0x10 + 1_000", "1016"),
    ],
)
def test_values_are_exact_where_they_are_rational(expression, answer):
    assert format_result(evaluate_expression(expression)) == answer


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("9 ** 9 ** 9", "too large"),
        ("10 ** -100000", "too large"),
        ("factorial(10 ** 6)", "too large"),
        ("1e999999999", "too large"),
        ("1e-999999999 + 1.0", ""),
        ("round(1, 10 ** 9)", "at most 1000 digits"),
        ("exp(10000)", "math range error"),
        ("(-8) ** 0.5", "not real"),
        ("sqrt(-1)", "math domain error"),
        ("__import__('os')", "not arithmetic: __import__"),
        ("(1).__class__", "not arithmetic"),
        ("[1, 2]", "not arithmetic"),
        ("True + 1", "not arithmetic: True"),
        ("'a' * 3", "not arithmetic: 'a'"),
        ("2 ^ 3", "not arithmetic: 2 ^ 3"),
        ("x + 1", "not arithmetic: x"),
        ("1 +", "not an arithmetic expression"),
        ("", "not an arithmetic expression"),
        ("gcd(1.5, 2)", "a whole number is needed, not 1.5"),
        ("sqrt(1, 2)", ""),
        ("(" * 400 + "1" + ")" * 400, ""),
        ("1" * 1001, "longer than 1000"),
        ("1\0", ""),
    ],
)
def test_an_expression_that_cannot_be_evaluated_says_why(expression, reason):
    try:
        evaluate_expression(expression)
    except ExpressionError as error:
        assert reason in str(error)
    else:
        assert reason == ""
