"""What a call may be given in place of names, and what becomes of it."""

from __future__ import annotations

import inspect
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

import mappa
from mappa.notebook.objects import Sections, read_settings
from mappa.sessions import RunConfig, compose
from mappa_core import Coach, ConfigError, Role, Task, Verdict, Workflow

ROWS = [{"id": "a", "prompt": "1 + 1", "answer": "2"}, {"id": "b", "prompt": "1 + 2", "answer": "3"}]
TASKS = (Task(id="a", prompt="1 + 1", reference="2"), Task(id="b", prompt="1 + 2", reference="3"))


class TwoWords(Workflow):
    agents = {"writer": Role(brief="writes")}  # noqa: RUF012

    async def run(self, stage):
        raise NotImplementedError


class Kind(Coach):
    async def score(self, scene):
        return Verdict.scored(10, "It means well.")


def points(scene):
    return 5


def load(tasks, split="train"):
    given = read_settings(workflow=TwoWords, tasks=tasks)
    chosen = given.sections["tasks"]
    assert chosen == {"use": "two_words"}
    return given.load_plugins().build("tasks", "two_words").load(split)


def test_objects_stand_where_a_recipe_has_names():
    given = read_settings(
        workflow=TwoWords(), tasks=ROWS, coach={"use": Kind, "reference_for": ["writer"]}, model=Path("models/small"),
        shapers=["scale", {"use": lambda trajectory, rewards: rewards}],
        settings={"train": {"learning_rate": np.float32(0.5), "betas": (0.9, 0.95)}},
    )  # fmt: skip
    assert given.sections == {
        "workflow": {"use": "two_words"}, "tasks": {"use": "two_words"},
        "coach": {"use": "kind", "reference_for": ["writer"]},
        "shapers": [{"use": "scale"}, {"use": "shaper"}], "policies": {"default": {"model": "models/small"}},
        "train": {"learning_rate": 0.5, "betas": [0.9, 0.95]},
    }  # fmt: skip
    registry = given.load_plugins()
    assert registry.build("workflows", "two_words").agents.keys() == {"writer"}
    assert isinstance(registry.build("coaches", "kind"), Kind)


def test_a_recipe_of_a_package_takes_objects_in_place_of_its_names():
    given = read_settings(coach={"use": "mathchat-rules", "by_agent": {"verifier": {"use": points}}})
    composed = compose(given.load_plugins(), recipe="mathchat/tiny", overrides=given.words, origin="mappa.train")
    assert composed.config.workflow.use == composed.plugin == "mathchat"
    assert composed.config.coach.by_agent["verifier"].use == "points"
    assert composed.origins["coach.by_agent.verifier.use"] == "mappa.train"


def test_tasks_are_lists_frames_data_sets_functions_files_or_names():
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    data_set = datasets.Dataset.from_list(ROWS)
    sources = [TASKS, ROWS, iter(ROWS), pandas.DataFrame(ROWS), data_set, {"train": data_set}, lambda split: ROWS]
    for source in sources:
        assert [(task.id, task.prompt, task.reference) for task in load(source)] == [
            ("a", "1 + 1", "2"), ("b", "1 + 2", "3"),
        ]  # fmt: skip
    for source in (Path("sums.jsonl"), "sums.jsonl"):
        assert read_settings(tasks=source).sections["tasks"] == {"use": "file", "options": {"path": "sums.jsonl"}}
    assert read_settings(tasks="words").sections["tasks"] == {"use": "words"}


def test_tools_are_functions_objects_or_names():
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    given = read_settings(workflow=TwoWords, tools=[add, "python"])
    assert given.sections["tools"] == {"add": {"use": "add"}, "python": {"use": "python"}}
    assert set(given.load_plugins().build("tools", "add").spec.schema["properties"]) == {"a", "b"}
    limited = {"add": {"use": add, "limits": {"wall_s": 2}}}
    assert read_settings(tools=limited).sections["tools"] == {"add": {"use": "add", "limits": {"wall_s": 2}}}


def test_two_objects_of_a_name_are_refused():
    with pytest.raises(ConfigError, match="two coaches of this call are called 'coach'"):
        read_settings(coach={"use": lambda scene: 1, "by_agent": {"writer": {"use": lambda scene: 2}}})
    twice = read_settings(coach={"use": points, "by_agent": {"writer": {"use": points}}})
    assert twice.sections["coach"]["by_agent"]["writer"]["use"] == "points"


def test_every_section_of_a_recipe_is_a_parameter():
    """So an editor completes them, and a type checker finds one that is misspelled."""
    named = set(inspect.signature(mappa.train).parameters)
    assert set(get_type_hints(Sections)) | named >= {field.name for field in fields(RunConfig)}
    assert set(get_type_hints(Sections)) <= {field.name for field in fields(RunConfig)}
