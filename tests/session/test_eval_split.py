"""Held-out tasks are split by hash: some choose the best checkpoint, the others are reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from mappa.session.eval_split import in_selection_split, split_held_out
from mappa.sessions import RunConfig
from mappa_core import ConfigError, Task

TASKS = [Task(id=f"n{n}", prompt=str(n)) for n in range(41, 65)]


@pytest.fixture
def config() -> RunConfig:
    config = RunConfig()
    return replace(config, checkpoint=replace(config.checkpoint, best=True))


def with_share(config: RunConfig, share: float) -> RunConfig:
    return replace(config, eval=replace(config.eval, selection=share))


def ids(tasks: Sequence[Task]) -> set[str]:
    return {task.id for task in tasks}


def test_a_task_is_assigned_whatever_the_seed_and_the_other_tasks(config: RunConfig) -> None:
    all_, few = split_held_out(TASKS, replace(config, seed=7)), split_held_out(TASKS[5:20], config)
    assert ids(few.selection) <= ids(all_.selection)
    assert ids(few.report) <= ids(all_.report)


def test_every_task_is_in_one_part(config: RunConfig) -> None:
    parts = split_held_out(TASKS, config)
    assert sorted(ids(parts.report) | ids(parts.selection)) == sorted(ids(TASKS))
    assert len(parts.report) + len(parts.selection) == 24 and 6 < len(parts.selection) < 18


def test_a_smaller_share_takes_some_of_the_same_tasks(config: RunConfig) -> None:
    half, quarter = (split_held_out(TASKS, with_share(config, share)).selection for share in (0.5, 0.25))
    assert ids(quarter) < ids(half)


def test_tasks_of_a_cluster_stay_together(config: RunConfig) -> None:
    tasks = [Task(id=f"{cluster}{n}", prompt="p", cluster=f"c{cluster}") for cluster in range(12) for n in range(3)]
    parts = split_held_out(tasks, config)
    assert {task.cluster for task in parts.report}.isdisjoint({task.cluster for task in parts.selection})
    assert len(parts.report) % 3 == 0


def test_an_empty_part_to_report_is_refused(config: RunConfig) -> None:
    (task, *_) = (task for task in TASKS if in_selection_split(task, 0.5))
    with pytest.raises(ConfigError, match=r"of 1 held-out tasks, parted by hash, none is left to report on"):
        split_held_out([task], config)


def test_an_empty_part_to_choose_on_is_refused(config: RunConfig) -> None:
    (task, *_) = (task for task in TASKS if not in_selection_split(task, 0.5))
    with pytest.raises(ConfigError, match="none is left to choose the best checkpoint on"):
        split_held_out([task], config)
