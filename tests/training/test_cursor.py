"""Which tasks an iteration uses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.errors import ConfigError
from mappa_core.records import Task
from mappa_core.training.cursor import TaskCursor


def tasks(count: int) -> list[Task]:
    return [Task(id=str(index), prompt="?") for index in range(count)]


@given(count=st.integers(1, 30), prompts=st.integers(1, 10), seed=st.integers(0, 3))
def test_no_task_is_used_twice_in_an_epoch_and_every_iteration_is_full(count, prompts, seed):
    if count < prompts:
        return
    cursor = TaskCursor(tasks(count), prompts=prompts, seed=seed)
    per_epoch = count // prompts
    for epoch in range(2):
        used = [task.id for place in range(per_epoch) for task in cursor.take(epoch * per_epoch + place)]
        assert len(used) == len(set(used)) == per_epoch * prompts


def test_an_iteration_is_the_same_whoever_asks_and_seeds_and_epochs_differ():
    cursor = TaskCursor(tasks(12), prompts=4, seed=1)
    assert cursor.take(5) == TaskCursor(tasks(12), prompts=4, seed=1).take(5)
    assert cursor.take(5) != TaskCursor(tasks(12), prompts=4, seed=2).take(5)
    assert [cursor.take(i) for i in range(3)] != [cursor.take(i) for i in range(3, 6)]


def test_too_few_tasks_are_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"train.prompts=4.* 3 "):
        TaskCursor(tasks(3), prompts=4, seed=0)
