r"""The program that compares two LaTeX expressions, in a process of its own.

Run as a script: `algebra.py SECONDS BYTES`. It reads one JSON pair `[answer, reference]` a line and answers each with
`equal`, `different` or `undecided SIGNAL`. Every pair is judged in a fork that dies of its CPU or memory limit, so an
expression that hangs or swells costs one verdict and neither this process nor its parent. The limit is CPU time: a
busy machine changes no verdict.
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
"""Wall seconds per CPU second after which a fork is ended whatever it waits for."""
WARM_UP = (r"\frac{\sqrt{2}}{2}+1", r"(x^{2}+\pi)\cdot 3^{-1}", r"\cos(x)-|y|")


def parse(latex: str) -> Basic:
    """LaTeX to a sympy expression. Raises whatever the parser raises on text that is no expression."""
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from sympy import I, Symbol

    config = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
    parsed = latex2sympy(latex, convert_degrees=True, normalization_config=None, conversion_config=config)
    return parsed.subs(Symbol("i"), I) if parsed.has(Symbol("i")) else parsed


def equal(answer: str, reference: str) -> bool:
    """Whether both are the same number, expression, equation or matrix. Text that is no expression equals nothing."""
    from math_verify import verify

    try:
        gold, target = parse(reference), parse(answer)
        # 50 digits: the default of 15 takes a difference below 1e-15 for none
        options = {"numeric_precision": 50, "allow_set_relation_comp": True, "timeout_seconds": None}
        return bool(verify(gold, target, raise_on_error=True, **options))
    except Exception:  # noqa: BLE001 - a boundary: the libraries raise anything at all on text that a model made up
        return False


def _judge(line: bytes, seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * WALL_FACTOR)
    answer, reference = json.loads(line)
    os._exit(0 if equal(answer, reference) else 1)


def serve(seconds: float, memory_bytes: int) -> None:
    """Answer pairs from standard input until it closes. `seconds` of CPU and `memory_bytes` bind each pair."""
    logging.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer; its end closes standard input
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    for latex in WARM_UP:
        parse(latex)
    equal(*WARM_UP[:2])
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    silence = os.open(os.devnull, os.O_WRONLY)
    replies.write("ready\n")
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    for line in sys.stdin.buffer:
        fork = os.fork()
        if fork == 0:
            _judge(line, seconds)
        code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        match code:
            case 0:
                replies.write("equal\n")
            case 1:
                replies.write("different\n")
            case _:
                replies.write(f"undecided {code}\n")


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]))
