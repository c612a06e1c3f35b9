r"""A program that compares pairs of LaTeX expressions in its own process.

Run as a script: `algebra.py BYTES`. It reads one JSON list `[answer, reference, seconds]` a line and replies with
`equal`, `different` or `undecided`, and the CPU time that was used, in seconds. Every pair is compared in a fork with a
CPU and memory limit, so an expression that hangs or grows without bound leaves one pair undecided and ends neither this
process nor its parent. The limit is CPU time: the load of the machine changes no result.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sympy import Basic

WALL_FACTOR = 12
"""Wall-clock limit of a fork as a multiple of its CPU limit."""
MAX_DIGITS = 400
"""Digits with which the difference of two numbers is computed."""
SAMPLE_POINTS = (Fraction(13, 29), Fraction(71, 31), Fraction(-37, 23))
"""Where expressions with unknowns are compared as numbers."""
WARM_UP_EXPRESSIONS = (r"\frac{\sqrt{2}}{2}+1", r"(x^{2}+\pi)\cdot 3^{-1}", r"\cos(x)-|y|")


def parse_latex(latex: str) -> Basic:
    """Parse LaTeX into a sympy expression. Raises whatever the parser raises on text that is no expression."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from sympy import I, Symbol

    config = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
    parsed = latex2sympy(latex, convert_degrees=True, normalization_config=None, conversion_config=config)
    return parsed.subs(Symbol("i"), I) if parsed.has(Symbol("i")) else parsed


def equal_by_algebra(answer: str, reference: str) -> bool:
    """Whether both are the same number, expression, relation, set or matrix; False for text that is none of them.

    Math-Verify reads both and says whether they are equal. What it is known to accept wrongly is refused before it is
    asked: numbers and coefficients that differ by less than its precision, names that differ in case, a pair in place
    of an interval, an equation whose right side is the answer, and relations of which it finds no solution at all.
    """
    from latex2sympy2_extended.sets import FiniteSet
    from math_verify import verify
    from math_verify.grader import is_relation
    from sympy import Interval

    try:
        gold, target = parse_latex(reference), parse_latex(answer)
        if is_relation(gold) or is_relation(target):
            return same_relation(target, gold)
        if surely_differ(gold, target) or {type(gold), type(target)} == {Interval, FiniteSet}:
            return False
        # 50 digits: the default of 15 takes a difference below 1e-15 for none
        return bool(verify(gold, target, numeric_precision=50, timeout_seconds=None, raise_on_error=True))
    except Exception:  # noqa: BLE001 - a boundary: the libraries raise anything at all on text that a model made up
        return False


# --- values --------------------------------------------------------------------------------------------------------


def surely_differ(one: Basic, other: Basic) -> bool:
    """Whether both are expressions, or matrices of one shape, that certainly differ: at the points of `SAMPLE_POINTS`,
    however small the difference. False where that is not certain."""
    from sympy import Expr, MatrixBase

    if isinstance(one, MatrixBase) and isinstance(other, MatrixBase) and one.shape == other.shape:
        return any(surely_differ(*pair) for pair in zip(one.flat(), other.flat(), strict=True))
    if not (isinstance(one, Expr) and isinstance(other, Expr)):
        return False
    unknowns = sorted(one.free_symbols | other.free_symbols, key=str)
    if not unknowns:
        return _numbers_differ(one, other)
    return any(
        _numbers_differ(*(side.subs(_place(unknowns, point)) for side in (one, other))) for point in SAMPLE_POINTS
    )


def _place(unknowns: list[Basic], point: Fraction) -> dict[Basic, Basic]:
    """Give each unknown a value of its own."""
    from sympy import Rational

    return {name: Rational(point.numerator + 7 * position, point.denominator) for position, name in enumerate(unknowns)}


def _numbers_differ(one: Basic, other: Basic) -> bool:
    from sympy import Float
    from sympy.concrete.expr_with_limits import ExprWithLimits

    if not (one.is_number and other.is_number):
        return False
    difference = one - other
    if difference.is_Rational:
        return bool(difference != 0)
    if difference.has(ExprWithLimits):  # sums and integrals are approximated, with no bound on the error
        return False
    parts = difference.evalf(maxn=MAX_DIGITS).as_real_imag()
    # sympy gives a number of which no digit is certain, such as the 0.e-425 of equal roots, the precision 1
    return any(isinstance(part, Float) and part != 0 and part._prec > 1 for part in parts)


# --- relations -----------------------------------------------------------------------------------------------------


def same_relation(one: Basic, other: Basic) -> bool:
    """Whether two relations hold for the same values, or a set is what the other's one unknown may be."""
    from math_verify import verify
    from sympy import Eq, Set

    if isinstance(one, Eq) and isinstance(other, Eq):
        return _same_equation(one, other)
    if one.has(Eq) or other.has(Eq):  # a value is no equation, and a chain of equations says more than one
        return False
    if isinstance(one, Set) or isinstance(other, Set):
        sets = [side if isinstance(side, Set) else _solution_set(side) for side in (one, other)]
        return bool(verify(*sets, numeric_precision=50, timeout_seconds=None, raise_on_error=True))
    unknowns = one.free_symbols
    if unknowns != other.free_symbols:
        return False
    if len(unknowns) == 1:
        return same_relation(_solution_set(one), other)
    return _same_inequality(one, other)


def _solution_set(relation: Basic) -> Basic:
    from math_verify.grader import unwrap_fcs

    return unwrap_fcs(relation).as_set()


def _same_equation(one: Basic, other: Basic) -> bool:
    """Whether two equations are multiples of each other, after their denominators are multiplied out."""
    from sympy import fraction, gcd, simplify, together

    sides = []
    for equation in (one, other):
        above, below = fraction(together(equation.lhs - equation.rhs))
        if below.free_symbols and gcd(above, below).free_symbols:  # a solution that a denominator takes away
            return False
        sides.append(above)
    if any(not side.free_symbols for side in sides) or sides[0].free_symbols != sides[1].free_symbols:
        return False
    ratio = simplify(sides[0] / sides[1])
    return bool(not ratio.free_symbols and ratio.is_finite and ratio.is_zero is False)


def _same_inequality(one: Basic, other: Basic) -> bool:
    """Whether one inequality in several unknowns is a multiple of the other."""
    from sympy import Ge, Gt, Le, Lt, Ne, simplify

    kinds = {Gt: (Gt, 1), Ge: (Ge, 1), Lt: (Gt, -1), Le: (Ge, -1), Ne: (Ne, 1)}
    if type(one) not in kinds or type(other) not in kinds:
        return bool(one == other)
    (kind, sign), (other_kind, other_sign) = kinds[type(one)], kinds[type(other)]
    ratio = simplify(sign * (one.lhs - one.rhs) / (other_sign * (other.lhs - other.rhs)))
    return kind is other_kind and bool(ratio.is_number and (ratio.is_positive or (kind is Ne and ratio.is_negative)))


def _compare_and_exit(answer: str, reference: str, seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * WALL_FACTOR)
    os._exit(0 if equal_by_algebra(answer, reference) else 1)


def serve_comparisons(memory_bytes: int) -> None:
    """Compare pairs from standard input until it closes. `memory_bytes` limit each comparison."""
    logging.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C; when it ends, standard input closes
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    for latex in WARM_UP_EXPRESSIONS:
        parse_latex(latex)
    equal_by_algebra(*WARM_UP_EXPRESSIONS[:2])
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    silence = os.open(os.devnull, os.O_WRONLY)
    replies.write("ready\n")
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    for line in sys.stdin.buffer:
        answer, reference, seconds = json.loads(line)
        fork = os.fork()
        if fork == 0:
            _compare_and_exit(answer, reference, seconds)
        _, status, usage = os.wait4(fork, 0)
        decision = {0: "equal", 1: "different"}.get(os.waitstatus_to_exitcode(status), "undecided")
        replies.write(f"{decision} {usage.ru_utime + usage.ru_stime}\n")


if __name__ == "__main__":
    serve_comparisons(int(sys.argv[1]))
