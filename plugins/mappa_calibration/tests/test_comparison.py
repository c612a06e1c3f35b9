"""What a score is compared with: a second judgement of the same action, or the scores of its siblings."""

import numpy as np

from mappa_calibration.actions import ActionColumns
from mappa_calibration.comparison import compare_references, compare_siblings, demean


def columns(points, prompt, reference=None):
    n = len(points)
    return ActionColumns(
        agent=np.full(n, "solver", dtype=object),
        points=np.asarray(points, float),
        reference=np.full(n, np.nan) if reference is None else np.asarray(reference, float),
        prompt=np.asarray(prompt),
        cluster=np.asarray(prompt) % 256,
        tokens=np.full(n, np.nan),
    )


def test_only_actions_of_one_prompt_are_siblings():
    found = compare_siblings(columns([1, 2, 3, 4, 6], [0, 0, 1, 2, 2]))
    assert found.excess.tolist() == [1, 2, 4, 6]
    assert found.within(found.excess).tolist() == [-0.5, 0.5, -1, 1]
    assert compare_siblings(columns([1, 2], [0, 1])) is None


def test_what_both_judgements_say_cancels():
    found = compare_references(columns([7, 3, 9], [0, 1, 2], reference=[5.5, np.nan, 9]))
    assert found.excess.tolist() == [1.5, 0.0]
    assert compare_references(columns([7], [0])) is None


def test_means_are_taken_off_within_groups():
    found = demean(np.array([[1.0, 0], [3, 0], [5, 2]]), np.array([7, 7, 9]))
    assert found.tolist() == [[-1, 0], [1, 0], [0, 0]]
