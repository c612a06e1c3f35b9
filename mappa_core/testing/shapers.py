"""A contract for shapers to subclass: pure functions from the rewards of one trajectory to shaped rewards."""

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
    """Subclass it and implement `shaper`. It is applied to trajectories of four actions by two agents; set `outcome` if
    the shaper reads another outcome than `correct`."""

    outcome: Mapping[str, float] = {"correct": 1.0}
    """The outcome that the workflow recorded."""
    fills_missing: bool = False
    """Whether the formula gives a reward to an action without a verdict, as one based on the outcome alone does."""

    def shaper(self) -> Shaper:
        """Create a shaper."""
        raise NotImplementedError

    def test_every_action_has_one_reward(self) -> None:
        """A shaper returns a tuple as long as the trajectory: finite numbers, or None. Return one entry per step, in
        order."""
        for trajectory in self.trajectories():
            for rewards in POINTS:
                shaped = self.shaper()(trajectory, rewards)
                assert isinstance(shaped, tuple), f"a tuple of rewards, not {type(shaped).__name__}"
                assert len(shaped) == len(trajectory.steps), "one reward per step of the trajectory"
                assert all(one is None or math.isfinite(one) for one in shaped), f"missing is None: {shaped}"

    def test_a_missing_reward_stays_missing(self) -> None:
        """The reward of an action without a verdict is None. Return None for it, never 0: an action that was not judged
        must not look like a bad one. If your formula needs no verdict, set `fills_missing = True`."""
        if self.fills_missing:
            return
        for trajectory in self.trajectories():
            for rewards in POINTS:
                shaped = self.shaper()(trajectory, rewards)
                invented = [at for at, reward in enumerate(rewards) if reward is None and shaped[at] is not None]
                assert not invented, f"a reward was made up for the steps {invented} of {rewards}: {shaped}"

    def test_a_trajectory_without_actions_has_no_rewards(self) -> None:
        """A trajectory may be aborted before its first action. Return an empty tuple."""
        assert self.shaper()(_trajectory("empty", 0, {}, Failure(kind="ToolError", message="lost")), ()) == ()

    def test_the_order_of_trajectories_does_not_matter(self) -> None:
        """A trajectory's rewards do not depend on which was shaped before it. Keep nothing on `self` between calls;
        state across iterations belongs in an estimator."""
        shaper, trajectories = self.shaper(), self.trajectories()
        forward = [shaper(one, POINTS[0]) for one in trajectories]
        backward = [shaper(one, POINTS[0]) for one in reversed(trajectories)]
        assert forward == backward[::-1], "the shaper remembers: shape each trajectory by itself"
        assert forward == [self.shaper()(one, POINTS[0]) for one in trajectories]

    def test_inputs_are_not_modified(self) -> None:
        """A shaper has no side effects. Do not modify the trajectory, its outcome or its arrays: others read them
        too."""
        for trajectory in self.trajectories():
            before = _content(trajectory)
            self.shaper()(trajectory, POINTS[0])
            assert _content(trajectory) == before, "the trajectory was written to"

    def trajectories(self) -> list[Trajectory]:
        """Return the trajectories to shape: one finished, one aborted and so without an outcome, one whose outcome is
        0. Two agents act in turn, twice each."""
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
    """Create a step. The last action of a trajectory is by a policy behind an API, so its tokens are unknown."""
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
    """Copy all mutable content of a trajectory as comparable values."""
    arrays = [
        None if array is None else array.tolist()
        for step in trajectory.steps
        for array in (step.completion.tokens, step.completion.logprobs)
    ]
    return copy.deepcopy((dict(trajectory.outcome), trajectory.verdicts, arrays))
