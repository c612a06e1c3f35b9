"""Corrections to demonstrations: which are learned from, in place of which rows, and what becomes of the rest."""

from dataclasses import replace

import numpy as np
import pytest

from mappa_core import Message, Verdict
from mappa_core.credit.build_experience import build_experience
from mappa_core.credit.demonstrations import collect_demonstrations
from mappa_core.engine import TrainSection

POLICIES = {"solver": "solver", "coder": "coder"}
LIVE = {"live": 1.0}


def encode(policy: str, text: str):
    """A byte a token and 0 at the end; nobody can write a question mark."""
    return None if "?" in text else np.array([*text.encode(), 0], np.int32)


def judged(step: str, score: float | None, correction: str | None, phase: str = "live") -> Verdict:
    verdict = Verdict.abstained("") if score is None else Verdict.scored(score, "", correction=correction)
    return replace(verdict, step=step, phase=phase, id=f"{step}/{phase}/{score}")


@pytest.fixture
def make(make_step, make_trajectory):
    """One trajectory of a solver's and a coder's step, and what its corrections become."""

    def made(*verdicts, steps=None, trained=("solver", "coder"), rewards=(1.0, 1.0), phases=LIVE, **settings):
        steps = steps or [make_step("a", "solver"), make_step("b", "coder", position=1)]
        trajectory = make_trajectory("t", steps, verdicts=verdicts)
        experience = build_experience([trajectory], [rewards], POLICIES, set(trained), "correct")
        return collect_demonstrations(
            experience,
            [trajectory],
            phases,
            replace(TrainSection().supervised, weight=1.0, **settings),
            encode=encode,
            max_tokens={"solver": 4, "coder": 6},
            saw_truth={"coder"},
        )

    return made


def test_a_correction_stands_in_place_of_its_own_row(make):
    found = make(judged("b", 1, "xyz"), judged("a", 4, "uv")).demonstrations
    assert found.row.tolist() == [0, 1]
    assert found.tokens.tolist() == [*b"uv", 0, *b"xyz", 0]
    assert found.offsets.tolist() == [0, 3, 7]
    assert (found.row.dtype, found.tokens.dtype, found.offsets.dtype) == (np.int32, np.int32, np.int64)


def test_verdicts_without_corrections_give_no_demonstrations(make):
    found = make(judged("a", 1, None), judged("b", 1, " \n"))
    assert found.demonstrations.offsets.tolist() == [0]
    assert found.counts == {"used": 0}


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (judged("a", 4, "abc"), "used"),
        (judged("a", 4.01, "abc"), "score"),
        (judged("a", 2, "abcd"), "too_long"),
        (judged("a", 2, "a?"), "unwritable"),
        (judged("a", 2, "said\n"), "same"),
    ],
)
def test_every_correction_is_used_or_counted_with_its_reason(make, make_step, verdict, why):
    steps = [make_step("a", "solver", text="said"), make_step("b", "coder", position=1)]
    found = make(verdict, steps=steps)
    assert found.counts == {"used": int(why == "used"), why: 1}
    assert len(found.demonstrations.row) == int(why == "used")


def test_the_limit_is_the_agents_own(make):
    assert make(judged("b", 2, "abcde")).counts == {"used": 1}


def test_an_action_without_reward_or_of_a_policy_that_does_not_learn_teaches_nothing(make):
    assert make(judged("a", 2, "x"), rewards=(None, 1.0)).counts == {"used": 0, "no_reward": 1}
    assert make(judged("a", 2, "x"), trained=("coder",)).counts == {"used": 0, "no_row": 1}


def test_action_with_think_text_is_no_demonstration(make, make_step):
    thought = replace(make_step("a", "solver"), reply=Message(role="assistant", content="x", reasoning="so"))
    found = make(judged("a", 2, "x"), steps=[thought, make_step("b", "coder", position=1)])
    assert found.counts == {"used": 0, "thinking": 1}


def test_corrections_that_may_reveal_the_truth_can_be_excluded(make):
    verdicts = judged("a", 2, "x"), judged("b", 2, "y")
    assert make(*verdicts).counts == {"used": 2}
    assert make(*verdicts, truth=False).counts == {"used": 1, "truth": 1}


def test_verdicts_are_those_that_rewards_are_made_of(make):
    live = judged("a", 2, "old"), judged("a", 9, "new")
    assert make(*live).counts == {"used": 0, "score": 1}
    assert make(*live[::-1]).demonstrations.tokens.tolist() == [*b"old", 0]
    after = judged("a", 1, "aft", "after")
    assert make(judged("a", 2, "liv"), after).demonstrations.tokens.tolist() == [*b"liv", 0]
    both = make(judged("a", 2, "liv"), after, phases={"live": 0.5, "after": 0.5})
    assert (both.demonstrations.row.tolist(), both.counts) == ([0, 0], {"used": 2})
    alike = make(judged("a", 2, "aft"), after, phases={"live": 0.5, "after": 0.5})
    assert alike.demonstrations.row.tolist() == [0]


def test_an_abstained_verdict_corrects_nothing(make):
    verdict = replace(judged("a", None, None), correction="x")
    assert make(verdict).counts == {"used": 0, "score": 1}
