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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sympy import Basic

WALL_FACTOR = 12
"""Wall-clock limit of a fork as a multiple of its CPU limit."""
MAX_DIGITS = 400
"""Digits with which the difference of two numbers is computed."""
WARM_UP_EXPRESSIONS = (r"\frac{\sqrt{2}}{2}+1", r"(x^{2}+\pi)\cdot 3^{-1}", r"\cos(x)-|y|")


def parse_latex(latex: str) -> Basic:
    """Parse LaTeX into a sympy expression. Raises whatever the parser raises on text that is no expression."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from sympy import I, Symbol

    config = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
    parsed = latex2sympy(latex, convert_degrees=True, normalization_config=None, conversion_config=config)
    return parsed.subs(Symbol("i"), I) if parsed.has(Symbol("i")) else parsed


def equal_by_algebra(answer: str, reference: str) -> bool:
    """Whether both are the same number, expression, equation or matrix; False for text that is no expression."""
    from math_verify import verify

    try:
        gold, target = parse_latex(reference), parse_latex(answer)
        if numbers_differ(gold, target):
            return False
        # 50 digits: the default of 15 takes a difference below 1e-15 for none
        options = {"numeric_precision": 50, "allow_set_relation_comp": True, "timeout_seconds": None}
        return bool(verify(gold, target, raise_on_error=True, **options))
    except Exception:  # noqa: BLE001 - a boundary: the libraries raise anything at all on text that a model made up
        return False


def numbers_differ(one: Basic, other: Basic) -> bool:
    """Whether both are numbers, or matrices of one shape, of which some pair is certain not to be equal, however small
    their difference is; False where that is not certain."""
    from sympy import Expr, Float, MatrixBase
    from sympy.concrete.expr_with_limits import ExprWithLimits

    if isinstance(one, MatrixBase) and isinstance(other, MatrixBase) and one.shape == other.shape:
        return any(numbers_differ(*pair) for pair in zip(one.flat(), other.flat(), strict=True))
    if not (isinstance(one, Expr) and isinstance(other, Expr) and one.is_number and other.is_number):
        return False
    difference = one - other
    if difference.is_Rational:
        return bool(difference != 0)
    if difference.has(ExprWithLimits):  # sums and integrals are approximated, with no bound on the error
        return False
    parts = difference.evalf(maxn=MAX_DIGITS).as_real_imag()
    # sympy gives a number of which no digit is certain, such as the 0.e-425 of equal roots, the precision 1
    return any(isinstance(part, Float) and part != 0 and part._prec > 1 for part in parts)


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
