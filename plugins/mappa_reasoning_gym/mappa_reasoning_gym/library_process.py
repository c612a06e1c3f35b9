"""The program of the process in which the library runs. It reads a request a line and writes a reply a line.

Answers of models are scored in children that have limits of CPU time and memory, and may be lost. Some graders of the
library pass an answer to Python's `eval`, themselves or through sympy. They are given a parser of literals in its
place, and one that lets through numbers, variables, functions of mathematics and operators alone.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
import resource
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

import sympy
from reasoning_gym.factory import DATASETS, create_dataset
from sympy.parsing.sympy_parser import parse_expr

CPU_SECONDS = 3
MEMORY_BYTES = 4 << 30
EVAL_OF_ANSWERS = (
    "reasoning_gym.algorithmic.binary_matrix",
    "reasoning_gym.algorithmic.spiral_matrix",
    "reasoning_gym.algorithmic.string_insertion",
    "reasoning_gym.games.n_queens",
)
"""Modules whose graders call `eval` on an answer that is to be a literal."""
SYMPY_OF_ANSWERS = ("reasoning_gym.games.countdown",)
"""Modules whose graders call their own `parse_expr` on an answer; others call that of the module sympy."""
NOT_OFFERED = {
    "coin_flip": "its grader gives full marks to the first figure of the answer, as to 0 for 0.234375",
    "complex_arithmetic": "its grader gives full marks to nan",
    "composite": "it is made of other data sets, which have names of their own",
    "game_of_life_halting": "its grader gives full marks to every answer",
    "puzzle24": "its grader does not ask for the numbers of the puzzle, so that what makes 24 once is right in all",
}
FORMS_OF_ANSWERS = {"gsm_symbolic": re.compile(r"\$?\d+(?:\.\d+)?")}
"""What a whole answer has to be, where a grader looks at its first digits alone, and takes `20 or 0` for 20."""
FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "exp", "log", "ln", "sqrt", "Abs", "pi", "asin", "acos", "atan", "sinh", "cosh", "tanh"}
)
_MATHEMATICS = re.compile(r"[A-Za-z0-9+\-*/^(). \n]*")
# `x.real` is an attribute and `2.5` a number.
_ATTRIBUTE = re.compile(r"\.\s*[A-Za-z]|[A-Za-z)]\s*\.")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")


class UnusableRequest(Exception):
    """A data set that is not offered, or parameters that it does not take."""


def parse_mathematics(text: str, *arguments: Any, **named: Any) -> Any:
    """sympy's `parse_expr` for text that holds nothing but mathematics. Raises ValueError for any other."""
    strange = [name for name in _NAME.findall(text) if len(name) > 1 and name not in FUNCTIONS]
    if strange or not _MATHEMATICS.fullmatch(text) or _ATTRIBUTE.search(text):
        raise ValueError("this is no expression of numbers, variables, functions and operators")
    return parse_expr(text, *arguments, **named)


def guard_graders() -> None:
    """Replace what evaluates answers, in this process."""
    for module in EVAL_OF_ANSWERS:
        vars(import_module(module))["eval"] = ast.literal_eval
    for module in SYMPY_OF_ANSWERS:
        vars(import_module(module))["parse_expr"] = parse_mathematics
    sympy.parse_expr = parse_mathematics


@lru_cache(maxsize=8)
def open_dataset(name: str, config: str) -> Any:
    """Build a data set of the library from its parameters as JSON. Raises UnusableRequest."""
    if name in NOT_OFFERED:
        raise UnusableRequest(f"dataset: {name} is not offered: {NOT_OFFERED[name]}")
    if name not in DATASETS:
        offered = sorted(DATASETS.keys() - NOT_OFFERED.keys())
        close = difflib.get_close_matches(name, offered)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"There is: {', '.join(offered)}"
        raise UnusableRequest(f"dataset: reasoning-gym has no data set {name!r}. {hint}")
    try:
        return create_dataset(name, **json.loads(config))
    except (TypeError, ValueError, AssertionError) as error:
        raise UnusableRequest(f"config: {name} does not take these parameters: {error}") from error


@lru_cache(maxsize=1024)
def draw_entry(name: str, config: str, index: int) -> Any:
    """Draw one entry, the same every time."""
    return open_dataset(name, config)[index]


def draw(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Draw the entries of a range of numbers."""
    name, config = request["dataset"], request["config"]
    entries = [draw_entry(name, config, index) for index in range(request["start"], request["stop"])]
    return {"entries": [_plain(entry) for entry in entries]}


def _plain(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    # An answer that is no text is found by search alone, and graded by what it does.
    answer = entry["answer"] if isinstance(entry["answer"], str) else None
    return {"question": entry["question"], "answer": answer, "difficulty": name_difficulty(entry["metadata"])}


def name_difficulty(metadata: Mapping[str, Any]) -> str:
    """Name the levels of an entry: those of the quantities that its data set draws from a short range of whole numbers,
    as `num_digits 2, num_terms 4`; `all` if there are none."""
    ranges = metadata.get("difficulty")
    if not isinstance(ranges, Mapping):
        return "all"
    levels = {name: metadata.get(name) for name, bounds in sorted(ranges.items()) if _is_short_range(bounds)}
    named = [f"{name} {level}" for name, level in levels.items() if isinstance(level, int)]
    return ", ".join(named) or "all"


def _is_short_range(bounds: object) -> bool:
    match bounds:
        case (int(low), int(high)):
            # More levels would be strata of hardly a task each.
            return 0 < high - low < 10
        case _:
            return False


def score(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Score one answer. One that a grader cannot read is worth nothing, whatever the grader raises."""
    name, config, answer = request["dataset"], request["config"], request["answer"]
    entry = draw_entry(name, config, request["index"])
    form = FORMS_OF_ANSWERS.get(name)
    if form is not None and not form.fullmatch(answer.strip()):
        return {"score": 0.0, "unreadable": "it is not one number and nothing else", "question": entry["question"]}
    scored = limit_score(lambda: float(open_dataset(name, config).score_answer(answer, entry)))
    return {**scored, "question": entry["question"]}


def limit_score(compute: Callable[[], float]) -> Mapping[str, Any]:
    """Compute a score in a child within the limits."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read_end)
        _score_and_exit(compute, write_end)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as replies:
        written = replies.read()
    os.waitpid(child, 0)
    if not written:
        return {"score": 0.0, "unreadable": f"grading it took more than {CPU_SECONDS} s of CPU time or the memory"}
    return dict(json.loads(written))


def _score_and_exit(compute: Callable[[], float], write_end: int) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        try:
            reply: Mapping[str, Any] = {"score": compute(), "unreadable": None}
        except Exception as error:  # noqa: BLE001
            reply = {"score": 0.0, "unreadable": f"{type(error).__name__}: {error}"[:200]}
        os.write(write_end, json.dumps(reply).encode())
    finally:
        os._exit(0)


def answer_request(line: str) -> Mapping[str, Any]:
    """Answer a request; one that cannot be used is answered by what is `wrong` with it."""
    request = json.loads(line)
    try:
        return draw(request) if request["do"] == "draw" else score(request)
    except UnusableRequest as error:
        return {"wrong": str(error)}


def main() -> None:
    """Answer requests until there are no more."""
    # What the library prints would be read as replies.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    guard_graders()
    for line in sys.stdin:
        replies.write(json.dumps(answer_request(line)) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
