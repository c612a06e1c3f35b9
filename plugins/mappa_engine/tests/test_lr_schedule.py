"""Learning rates, computed by hand."""

import pytest

from mappa_core.engine import TrainSection
from mappa_engine.lr_schedule import learning_rate


def rates(steps: int = 2, **settings) -> list[float]:
    train = TrainSection(iterations=4, learning_rate=8.0, **settings)
    return [learning_rate(train, i / 4, step, steps) for i in range(4) for step in range(steps)]


def test_constant():
    assert rates() == [8.0] * 8


def test_linear_falls_by_steps_taken():
    assert rates(schedule="linear") == pytest.approx([8, 7, 6, 5, 4, 3, 2, 1])


def test_linear_ends_at_its_share():
    assert rates(schedule="linear", min_lr_share=0.5) == pytest.approx([8, 7.5, 7, 6.5, 6, 5.5, 5, 4.5])


def test_cosine():
    assert rates(1, schedule="cosine") == pytest.approx([8.0, 4 * (1 + 0.5**0.5), 4.0, 4 * (1 - 0.5**0.5)])


def test_warm_up_ends_at_the_full_rate_and_decay_begins_there():
    assert rates(warmup_iterations=2) == pytest.approx([2, 4, 6, 8, 8, 8, 8, 8])
    assert rates(warmup_iterations=2, schedule="linear") == pytest.approx([2, 4, 6, 8, 8, 6, 4, 2])


def test_steps_may_differ_between_iterations():
    train = TrainSection(iterations=2, learning_rate=6.0, schedule="linear")
    found = [learning_rate(train, 0.0, step, 3) for step in range(3)] + [learning_rate(train, 0.5, 0, 1)]
    assert found == pytest.approx([6, 5, 4, 3])


def test_a_run_may_end_within_its_warm_up():
    assert rates(1, warmup_iterations=8) == pytest.approx([1, 2, 3, 4])


def test_rounding_of_progress_does_not_overshoot():
    train = TrainSection(iterations=100, learning_rate=8.0, warmup_iterations=29)
    assert 29 / 100 * 100 < 29
    assert learning_rate(train, 29 / 100, 0, 1) == 8.0
