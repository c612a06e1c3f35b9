"""A contract for shapers to subclass: rewards of one trajectory to rewards, by a formula and nothing else."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence

import numpy as np

from mappa_core.protocols import Rewards, Shaper
from mappa_core.records import Completion, Failure, Message, Step, Task, Trajectory, Verdict, VersionSpan

AGENTS = ("first", "second")
POINTS: Sequence[Rewards] = ((8.0, 2.0, 5.0, 0.0), (None, 7.0, None, 10.0), (None,) * 4)


class ShaperContract:
    """Subclass it and write `shaper`. Trajectories of four actions by two agents are made here; set `outcome` where the
    shaper reads something else of it than `correct`."""

    outcome: Mapping[str, float] = {"correct": 1.0}
    """What the workflow recorded."""
    fills_missing: bool = False
    """Whether the formula gives a reward to an action whose verdict is missing, as one made of the outcome alone
    does."""

    def shaper(self) -> Shaper:
        """A fresh shaper."""
        raise NotImplementedError

    def test_every_action_has_one_reward(self) -> None:
        """A tuple as long as the trajectory comes back: finite numbers, or None. Return one entry per step, in
        order."""
        for trajectory in self.trajectories():
            for rewards in POINTS:
                shaped = self.shaper()(trajectory, rewards)
                assert isinstance(shaped, tuple), f"a tuple of rewards, not {type(shaped).__name__}"
                assert len(shaped) == len(trajectory.steps), "one reward per step of the trajectory"
                assert all(one is None or math.isfinite(one) for one in shaped), f"missing is None: {shaped}"

    def test_a_missing_reward_stays_missing(self) -> None:
        """Where the verdict is missing the reward is None. Return None for it, never 0: an action that nobody judged
        must not look like a bad one. Where your formula needs no verdict, say `fills_missing = True`."""
        if self.fills_missing:
            return
        for trajectory in self.trajectories():
            for rewards in POINTS:
                shaped = self.shaper()(trajectory, rewards)
                invented = [at for at, reward in enumerate(rewards) if reward is None and shaped[at] is not None]
                assert not invented, f"a reward was made up for the steps {invented} of {rewards}: {shaped}"

    def test_a_trajectory_without_actions_has_no_rewards(self) -> None:
        """A team may break off before its first action. Return an empty tuple."""
        assert self.shaper()(_trajectory("empty", 0, {}, Failure(kind="ToolError", message="lost")), ()) == ()

    def test_the_order_of_trajectories_does_not_matter(self) -> None:
        """A trajectory's rewards are the same whichever was shaped before it. Keep nothing on `self` between calls;
        what is learned over iterations belongs into an estimator, which has a state."""
        shaper, trajectories = self.shaper(), self.trajectories()
        forward = [shaper(one, POINTS[0]) for one in trajectories]
        backward = [shaper(one, POINTS[0]) for one in reversed(trajectories)]
        assert forward == backward[::-1], "the shaper remembers: shape each trajectory by itself"
        assert forward == [self.shaper()(one, POINTS[0]) for one in trajectories]

    def test_what_it_is_given_stays_as_it_was(self) -> None:
        """A shaper reads and returns. Do not write to the trajectory, its outcome or its arrays: others read them
        too."""
        for trajectory in self.trajectories():
            before = _content(trajectory)
            self.shaper()(trajectory, POINTS[0])
            assert _content(trajectory) == before, "the trajectory was written to"

    def trajectories(self) -> list[Trajectory]:
        """What is shaped here: one that finished, one that broke off and so has no outcome, one whose outcome is 0. Two
        agents act in turn, twice each."""
        worse = dict.fromkeys(self.outcome, 0.0)
        return [
            _trajectory("finished", len(POINTS[0]), self.outcome, None),
            _trajectory("broke-off", len(POINTS[0]), {}, Failure(kind="WorkflowError", message="planted")),
            _trajectory("worse", len(POINTS[0]), worse, None),
        ]


def _trajectory(name: str, actions: int, outcome: Mapping[str, float], error: Failure | None) -> Trajectory:
    steps = tuple(_step(name, position) for position in range(actions))
    pairs = zip(steps, POINTS[0], strict=False)
    verdicts = [Verdict(status="scored", score=score, step=step.id, coach="test") for step, score in pairs]
    return Trajectory(
        id=name,
        task=Task(id=f"task of {name}", prompt="?"),
        sample=0,
        iteration=0,
        steps=steps,
        verdicts=tuple(verdicts),
        outcome=dict(outcome),
        error=error,
    )


def _step(name: str, position: int) -> Step:
    """The last action of a trajectory is one of a policy behind an API: nothing is known of its tokens."""
    length = 3 * (position + 1)
    known = position < len(POINTS[0]) - 1
    completion = Completion(
        text="said",
        prompt_tokens=np.arange(4, dtype=np.int32) if known else None,
        tokens=np.arange(length, dtype=np.int32) if known else None,
        logprobs=np.full(length, -0.5, dtype=np.float32) if known else None,
        finish="length" if position == 1 else "stop",
        versions=(VersionSpan(version=0, start=0, end=length),) if known else (),
    )
    agent = AGENTS[position % len(AGENTS)]
    return Step(
        id=f"{name}/{position}",
        agent=agent,
        turn=position // len(AGENTS),
        position=position,
        policy=agent,
        messages=(Message(role="user", content="?"),),
        reply=Message(role="assistant", content="said"),
        completion=completion,
    )


def _content(trajectory: Trajectory) -> object:
    """All that can be written to, as values that compare."""
    arrays = [
        None if array is None else array.tolist()
        for step in trajectory.steps
        for array in (step.completion.tokens, step.completion.logprobs)
    ]
    return copy.deepcopy((dict(trajectory.outcome), trajectory.verdicts, arrays))
