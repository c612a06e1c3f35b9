"""Agreement of a jury with outcomes: pairs and bets by hand, false alarms counted, and what an ensemble makes of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest

from mappa_calibration.ensemble import Ensemble, Member
from mappa_calibration.outcome_agreement import FALSE_ALARM_RATE, OutcomeAgreement
from mappa_core import Coach, Scene, Task, Trajectory, Verdict

Rollout = tuple[float | None, Sequence[float | None]]  # its outcome, and its scores


def play(task: str, *rollouts: Rollout) -> list[Trajectory]:
    return [
        Trajectory(
            id=f"{task}-{sample}",
            task=Task(id=task, prompt="?"),
            sample=sample,
            iteration=0,
            verdicts=tuple(Verdict.abstained("-") if score is None else Verdict.scored(score, "-") for score in scores),
            outcome={} if outcome is None else {"correct": outcome},
        )
        for sample, (outcome, scores) in enumerate(rollouts)
    ]


RIGHT = play("right", (1.0, [9]), (0.0, [3]))
WRONG = play("wrong", (1.0, [3]), (0.0, [9]))


def observed(trajectories: Sequence[Trajectory]) -> tuple[float, int]:
    agreement = OutcomeAgreement("correct", 0.9)
    agreement.observe(trajectories)
    state = agreement.state_dict()
    return state["total"], state["tasks"]


@pytest.mark.parametrize(
    "rollouts, total, tasks",
    [
        ([(1.0, [8, 10]), (0.0, [8, 2])], 1.0, 1),
        ([(1.0, [5]), (0.0, [5])], 0.5, 1),
        # Of the four pairs with different outcomes two are in order and one is a tie.
        ([(1.0, [9]), (1.0, [4]), (0.0, [4]), (0.0, [6])], 2.5 / 4, 1),
        ([(1.0, [9]), (1.0, [1])], 0.0, 0),
        ([(1.0, [None]), (0.0, [1])], 0.0, 0),
        ([(None, [9]), (0.0, [1])], 0.0, 0),
    ],
)
def test_pairs_of_one_task_with_different_outcomes_are_held_against_their_scores(
    rollouts: list[Rollout], total: float, tasks: int
) -> None:
    assert observed(play("t", *rollouts)) == (pytest.approx(total), tasks)


def test_rollouts_of_different_tasks_are_no_pair() -> None:
    assert observed([*play("a", (1.0, [2])), *play("b", (0.0, [9]))]) == (0.0, 0)


def test_a_jury_that_is_always_wrong_is_reported_once_by_the_seventh_task() -> None:
    """With nothing in order, stakes of .1, .25, .5 and .9 make (1.1^n + 1.25^n + 1.5^n + 1.9^n) / 4 of 1: 16.0 after
    six tasks, 28.3 after seven, which is more than 20."""
    agreement = OutcomeAgreement("correct", 0.9)
    notes = [agreement.observe(WRONG) for _ in range(12)]
    assert [note is not None for note in notes] == [False] * 6 + [True] + [False] * 5
    assert "in 0% of 7 cases" in str(notes[6]) and "90%" in str(notes[6])


def test_a_jury_that_agrees_half_way_raises_no_more_alarms_than_is_promised() -> None:
    """Tasks that are in order with the chance that is tested, 0.7: the least that counts as agreement with 0.9."""
    random, alarms, runs = np.random.default_rng(3), 0, 200
    for _ in range(runs):
        agreement = OutcomeAgreement("correct", 0.9)
        notes = [agreement.observe(RIGHT if right else WRONG) for right in random.random(60) < 0.7]
        alarms += any(note is not None for note in notes)
    assert alarms / runs <= FALSE_ALARM_RATE + 2 * math.sqrt(FALSE_ALARM_RATE * (1 - FALSE_ALARM_RATE) / runs)


def test_outcomes_of_another_name_are_said_once_and_not_passed_over() -> None:
    agreement = OutcomeAgreement("accepted", 0.9)
    note = agreement.observe(WRONG)
    assert "no rollout has the outcome 'accepted'; metric of the ensemble may be correct" in str(note)
    assert agreement.observe(WRONG) is None
    assert OutcomeAgreement("accepted", 0.9).observe(play("t", (None, [3]))) is None


class Silent(Coach):
    async def score(self, scene: Scene) -> Verdict:
        return Verdict.abstained("-")


def jury() -> Ensemble:
    members = [Member(name=name, coach=Silent()) for name in "ab"]
    return Ensemble(members, agreement=OutcomeAgreement("correct", 0.9))


def test_an_ensemble_says_so_once_and_its_state_goes_on_from_a_checkpoint() -> None:
    first = jury()
    assert not any(first.learn(WRONG).notes for _ in range(6))
    second = jury()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    (note,) = second.learn(WRONG).notes
    assert "calibrated jury" in note
    assert second.learn(WRONG).notes == ()


def test_an_ensemble_that_was_not_calibrated_watches_nothing() -> None:
    plain = Ensemble([Member(name=name, coach=Silent()) for name in "ab"])
    assert not any(plain.learn(WRONG).notes for _ in range(20))
    assert "agreement" not in plain.state_dict()
