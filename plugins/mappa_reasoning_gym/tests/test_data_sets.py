"""Every data set of the library: drawn again the same, its own answers are right, and answers to nothing are not."""

import json
import re
from pathlib import Path

import pytest
import reasoning_gym
from reasoning_gym.factory import DATASETS

from mappa_core import ConfigError
from mappa_reasoning_gym.library import Library
from mappa_reasoning_gym.library_process import EVAL_OF_ANSWERS, NOT_OFFERED, SYMPY_OF_ANSWERS

NAMES = sorted(DATASETS.keys() - NOT_OFFERED.keys())
CONFIG = json.dumps({"seed": 3, "size": 40})
README = Path(__file__).parents[1] / "README.md"
ANSWERS_TO_NOTHING = ("", "0", "[]", "?", "nan", "24")
"""And the question itself."""
SOME = ("chain_sum", "countdown", "graph_color", "gsm_symbolic", "n_queens", "polynomial_multiplication")
"""Data sets of every kind: compared as text, by sympy, by a literal, by what the answer does, by a number."""


@pytest.fixture(scope="module")
def library():
    return Library()


@pytest.fixture(scope="module")
def other():
    """A process of its own, as that of another run."""
    return Library()


def listed_in_readme() -> set[str]:
    table = README.read_text().partition("<!-- floors -->")[2].partition("<!-- end -->")[0]
    return set(re.findall(r"`(\w+)`", table))


def drawn(library: Library, name: str, count: int = 2):
    return library.ask("draw", dataset=name, config=CONFIG, start=0, stop=count)["entries"]


def check(name: str, library: Library, other: Library) -> None:
    entries = drawn(library, name)
    assert entries == drawn(other, name)
    floors = set()
    for index, entry in enumerate(entries):
        if entry["answer"] is not None:
            assert score(library, name, index, entry["answer"]) == 1.0
        for answer in (*ANSWERS_TO_NOTHING, entry["question"]):
            # Some questions have such an answer: `0` for a sum, `0.0` for a root, `24` for a game of numbers.
            if entry["answer"] not in (answer, f"{answer}.0"):
                floors.add(score(library, name, index, answer))
    assert max(floors) < 1.0
    assert max(floors) == 0.0 or name in listed_in_readme()


def score(library: Library, name: str, index: int, answer: str) -> float:
    return library.ask("score", dataset=name, config=CONFIG, index=index, answer=answer)["score"]


@pytest.mark.parametrize("name", SOME)
def test_a_data_set_is_graded_as_its_library_grades(name, library, other):
    check(name, library, other)


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(set(NAMES) - set(SOME)))
def test_every_data_set_is_graded_as_its_library_grades(name, library, other):
    check(name, library, other)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("n_queens", "[print(open('/etc/hostname').read())]"),
        ("countdown", "__import__('os').getpid()"),
        ("polynomial_multiplication", "(1).__class__"),
        ("countdown", "9**9**9**9"),
        ("simple_integration", "x.func"),
    ],
)
def test_an_answer_is_never_run(name, answer, library):
    assert score(library, name, 0, answer) < 0.1
    assert score(library, name, 1, drawn(library, name)[1]["answer"]) == 1.0


@pytest.mark.parametrize("wrong", ["-{}", "{} or 0", "{}/7", "{}^2", "{}%", "{} million"])
def test_a_number_is_read_whole(wrong, library):
    (entry,) = drawn(library, "gsm_symbolic", 1)
    assert score(library, "gsm_symbolic", 0, f" ${entry['answer']}\n") == 1.0
    assert score(library, "gsm_symbolic", 0, wrong.format(entry["answer"])) == 0.0


@pytest.mark.parametrize(("name", "constant"), [("puzzle24", "9*3*8/9"), ("complex_arithmetic", "nan")])
def test_a_data_set_that_one_answer_solves_is_not_offered(name, constant, library):
    data = reasoning_gym.create_dataset(name, size=20, seed=3)
    assert all(data.score_answer(constant, entry) == 1.0 for entry in data)
    with pytest.raises(ConfigError, match=f"{name} is not offered"):
        drawn(library, name)


def test_graders_evaluate_answers_only_where_they_are_guarded():
    """A module that evaluates something and is not here may be given a program to run instead of an answer."""
    root = Path(reasoning_gym.__file__).parent
    evaluating = {path.relative_to(root).as_posix() for path in root.rglob("*.py") if _evaluates(path.read_text())}
    guarded = {name.replace(".", "/").removeprefix("reasoning_gym/") + ".py" for name in EVAL_OF_ANSWERS}
    guarded |= {name.replace(".", "/").removeprefix("reasoning_gym/") + ".py" for name in SYMPY_OF_ANSWERS}
    by_sympy = {f"algebra/{name}.py" for name in ("simple_integration", "intermediate_integration")}
    by_sympy |= {"algebra/polynomial_multiplication.py"}
    not_offered = {"games/puzzle24.py"}
    of_their_own = {
        "code/codeio.py", "algorithmic/number_sorting.py", "arithmetic/gsm_symbolic/generators_50_99.py",
        "arithmetic/gsm_symbolic/generators_00_49.py", "arithmetic/bitwise_arithmetic.py",
        "arithmetic/basic_arithmetic.py", "logic/propositional_logic.py",
    }  # fmt: skip
    assert evaluating == guarded | by_sympy | of_their_own | not_offered


def _evaluates(source: str) -> bool:
    return bool(re.search(r"\b(eval|exec|parse_expr|sympify|parse_latex|loads)\(", source.replace("json.loads(", "")))
