"""Which tasks an iteration uses."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa.training.stratified_quota import StratifiedQuota
from mappa.training.task_sampler import TaskSampler
from mappa_core import ConfigError, Task

sizes = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def tasks(*sizes: int) -> list[Task]:
    """So many tasks of each stratum, one stratum after the other."""
    return [
        Task(id=f"{stratum}-{index}", prompt="?", stratum=str(stratum))
        for stratum, size in enumerate(sizes)
        for index in range(size)
    ]


def stream(cursor: TaskSampler, iterations: int) -> list[str]:
    return [task.id for iteration in range(iterations) for task in cursor.sample(iteration)]


@given(sizes=sizes, data=st.data(), seed=st.integers(0, 3), stratified=st.booleans())
def test_every_epoch_holds_every_task_once_and_no_iteration_repeats_a_task(sizes, data, seed, stratified):
    prompts = data.draw(st.integers(1, sum(sizes)))
    cursor = TaskSampler(tasks(*sizes), prompts=prompts, seed=seed, stratified=stratified)
    iterations = 3 * sum(sizes) // prompts
    for iteration in range(iterations):
        taken = [task.id for task in cursor.sample(iteration)]
        assert len(taken) == len(set(taken)) == prompts
    played = stream(cursor, iterations)
    for start in range(0, len(played) - sum(sizes) + 1, sum(sizes)):
        assert len(set(played[start : start + sum(sizes)])) == sum(sizes)


@given(sizes=sizes, data=st.data())
def test_a_stratified_iteration_holds_its_share_of_every_stratum(sizes, data):
    prompts = data.draw(st.integers(1, sum(sizes)))
    cursor = TaskSampler(tasks(*sizes), prompts=prompts, seed=0, stratified=True)
    for iteration in range(2 * sum(sizes) // prompts):
        counts = Counter(task.stratum for task in cursor.sample(iteration))
        for stratum, size in enumerate(sizes):
            assert abs(counts[str(stratum)] - prompts * size / sum(sizes)) < 1


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=9), data=st.data())
def test_draws_so_far_hold_every_stratum_in_its_share(sizes, data):
    total = sum(sizes)
    draw = data.draw(st.integers(1, total))
    apportionment = StratifiedQuota(sizes, draw)
    for number in range(1, 60):
        before, after = apportionment.taken_before(number - 1), apportionment.taken_before(number)
        assert sum(after) == number * draw
        for size, was, now in zip(sizes, before, after, strict=True):
            assert abs(now - number * draw * size / total) < 1 - 1e-9
            assert draw * size // total <= now - was <= -(-draw * size // total)


@pytest.mark.parametrize(("count", "prompts"), [(12, 4), (12, 12), (60, 5)])
def test_epochs_of_whole_iterations_are_successive_permutations(count, prompts):
    cursor = TaskSampler(tasks(count), prompts=prompts, seed=7)
    per_epoch = count // prompts
    for epoch in range(3):
        order = np.random.default_rng([7, epoch]).permutation(count)
        played = [task.id for place in range(per_epoch) for task in cursor.sample(epoch * per_epoch + place)]
        assert played == [f"0-{index}" for index in order]


@pytest.mark.parametrize("stratified", [False, True])
def test_tasks_depend_only_on_seed_and_iteration(stratified):
    def cursor(seed=1):
        return TaskSampler(tasks(7, 5), prompts=4, seed=seed, stratified=stratified)

    one = cursor()
    assert one.sample(8) == cursor().sample(8)
    assert [one.sample(i) for i in (5, 0, 8)] == [cursor().sample(i) for i in (5, 0, 8)]
    assert stream(one, 6) != stream(cursor(seed=2), 6)
    assert [one.sample(i) for i in range(3)] != [one.sample(i) for i in range(3, 6)]


def test_next_epoch_begins_in_an_iteration_that_the_last_epoch_does_not_fill():
    one = TaskSampler(tasks(5), prompts=3, seed=0)
    second = [task.id for task in one.sample(1)]
    left = {task.id for task in tasks(5)} - set(stream(one, 1))
    assert set(second[:2]) == left and second[2] not in left


def test_too_few_tasks_are_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"train.prompts=4.* 3 "):
        TaskSampler(tasks(3), prompts=4, seed=0)
