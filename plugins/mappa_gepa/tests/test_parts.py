"""Tasks in three parts: by hash, with clusters whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import ConfigError, Task
from mappa_gepa.parts import part_of, split_tasks


def make_tasks(clusters: list[str | None]) -> list[Task]:
    return [Task(id=f"t{place}", prompt="p", cluster=cluster) for place, cluster in enumerate(clusters)]


@given(st.lists(st.sampled_from([None, "a", "b", "c", "d", "e"]), min_size=1, max_size=60))
def test_a_cluster_is_in_one_part_whatever_the_other_tasks(clusters):
    tasks = make_tasks(clusters)
    by_cluster = {task.cluster: {part_of(one) for one in tasks if one.cluster == task.cluster} for task in tasks}
    assert all(len(parts) == 1 for cluster, parts in by_cluster.items() if cluster is not None)


def test_parts_are_disjoint_and_in_order_and_bounded():
    tasks = make_tasks([None] * 400)
    parts = split_tasks(tasks, propose=1000, choose=1000, report=5)
    assert len({task.id for task in parts.all}) == len(parts.all)
    assert len(parts.report) == 5
    assert list(parts.choose) == [task for task in tasks if part_of(task) == "choose"]
    shares = len(parts.propose) / 400, len(parts.choose) / 400
    assert shares == pytest.approx((0.4, 0.2), abs=0.07)


def test_too_few_tasks_are_an_error_that_says_how_many_each_part_got():
    with pytest.raises(ConfigError, match=r"1 training tasks.*propose.*choose.*report"):
        split_tasks(make_tasks(["only"]), propose=9, choose=9, report=9)
