"""What shows an evaluation: rooms above this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest

from mappa.cli import formats, result_tables
from mappa.runs import Evaluation
from mappa.store.summary import EvalSummary, Summary
from mappa.training.summary import build_summary
from mappa_core import Trajectory
from mappa_core.config.schema import Overflow
from mappa_core.credit.build_experience import ExperienceBuilder
from mappa_core.experience import Experience


@pytest.fixture
def evaluation_line() -> Callable[[Evaluation], str]:
    """What progress prints of an evaluation."""
    return result_tables.evaluation_line


@pytest.fixture
def printed_counts() -> Callable[[Evaluation], list[str]]:
    """The column of a table that counts the problems."""
    return lambda evaluation: [*result_tables.evaluation_table(evaluation).columns[1].cells]


@pytest.fixture
def summary_of() -> Callable[[Sequence[Evaluation]], EvalSummary]:
    """What the summary of a run that has not trained says of its evaluations."""
    blank = Summary(plugin="p", recipe="r", recipe_hash="", seed=0, status="done")
    untrained = SimpleNamespace(iterations=list, events=lambda kind: [])
    return lambda evaluations: build_summary(blank, untrained, evaluations).eval


@pytest.fixture
def evaluation_json():
    """An evaluation as commands print it with `--json`."""
    return result_tables.evaluation_json


@pytest.fixture
def format_problem_count():
    """How many problems there are, in words."""
    return formats.format_problem_count


@pytest.fixture
def experience_builder() -> Callable[[Overflow], ExperienceBuilder]:
    """What makes the experience of a team whose solver is trained on live verdicts, and whose judge is not."""

    def build(overflow: Overflow) -> ExperienceBuilder:
        return ExperienceBuilder(
            reward={"live": 1.0},
            shapers=(),
            policies={"solver": "learner", "judge": "fixed"},
            trained=frozenset({"learner"}),
            metric="correct",
            overflow=overflow,
        )

    return build


@pytest.fixture
def build_experience(experience_builder) -> Callable[[Sequence[Trajectory]], Experience]:
    """The experience of that team."""
    return experience_builder("unsolved").build
