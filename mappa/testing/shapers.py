"""A contract for shapers: pure functions from the rewards of one trajectory to shaped rewards."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from mappa.testing.fakes import fake_completion, fake_step
from mappa_core.protocols import Rewards, Shaper
from mappa_core.records import Failure, Message, Step, Task, Trajectory, Verdict

AGENTS = ("first", "second")
POINTS: Sequence[Rewards] = ((8.0, 2.0, 5.0, 0.0), (None, 7.0, None, 10.0), (None,) * 4)


class ShaperContract:
    """Subclass it and implement `shaper`, for trajectories of four actions by two agents."""

    outcome: Mapping[str, float] = {"correct": 1.0}  # That the workflow recorded, and the shaper reads.
    fills_missing: bool = False  # Whether the formula rewards an action without a verdict, by the outcome alone.

    def shaper(self) -> Shaper:
        """Create a shaper."""
        raise NotImplementedError

    def test_every_action_has_one_reward(self) -> None:
        """A shaper returns a tuple with a finite number or None per step, in order."""
        for trajectory in self.trajectories():
            for rewards in POINTS:
                shaped = self.shaper()(trajectory, rewards)
                assert isinstance(shaped, tuple), f"a tuple of rewards, not {type(shaped).__name__}"
                assert len(shaped) == len(trajectory.steps), "one reward per step of the trajectory"
                assert all(reward is None or math.isfinite(reward) for reward in shaped), f"missing is None: {shaped}"

    def test_a_missing_reward_stays_missing(self) -> None:
        """Return None, never 0, without a verdict; if your formula needs no verdict, set `fills_missing = True`."""
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
        """Keep nothing on `self` between calls; state across iterations belongs in an estimator."""
        shaper, trajectories = self.shaper(), self.trajectories()
        forward = [shaper(trajectory, POINTS[0]) for trajectory in trajectories]
        backward = [shaper(trajectory, POINTS[0]) for trajectory in reversed(trajectories)]
        assert forward == backward[::-1], "the shaper remembers: shape each trajectory by itself"
        assert forward == [self.shaper()(trajectory, POINTS[0]) for trajectory in trajectories]

    def test_inputs_are_not_modified(self) -> None:
        """Do not modify the trajectory, its outcome or its arrays: others read them too."""
        for trajectory in self.trajectories():
            before = _content(trajectory)
            self.shaper()(trajectory, POINTS[0])
            assert _content(trajectory) == before, "the trajectory was written to"

    def trajectories(self) -> list[Trajectory]:
        """One finished, one aborted and so without an outcome, one whose outcome is 0; two agents in turn."""
        worse = dict.fromkeys(self.outcome, 0.0)
        return [
            _trajectory("finished", len(POINTS[0]), self.outcome, None),
            _trajectory("broke-off", len(POINTS[0]), {}, Failure(kind="WorkflowError", message="planted")),
            _trajectory("worse", len(POINTS[0]), worse, None),
        ]


def _trajectory(name: str, actions: int, outcome: Mapping[str, float], error: Failure | None) -> Trajectory:
    steps = tuple(_step(name, position) for position in range(actions))
    pairs = zip(steps, POINTS[0], strict=False)
    task = Task(id=f"task of {name}", prompt="?")
    verdicts = [Verdict(status="scored", score=score, step=step.id, coach="test") for step, score in pairs]
    base = Trajectory(id=name, task=task, sample=0, iteration=0, steps=steps)
    return replace(base, verdicts=tuple(verdicts), outcome=dict(outcome), error=error)


def _step(name: str, position: int) -> Step:
    """The last action is by a policy behind an API, so its tokens are unknown."""
    length = 3 * (position + 1) if position < len(POINTS[0]) - 1 else None
    completion = fake_completion("said", length, finish="length" if position == 1 else "stop")
    agent = AGENTS[position % len(AGENTS)]
    asked = (Message(role="user", content="?"),)
    turn = position // len(AGENTS)
    return fake_step(f"{name}/{position}", agent, completion, turn=turn, position=position, messages=asked)


def _content(trajectory: Trajectory) -> object:
    """All mutable content as comparable values."""
    arrays = [
        None if array is None else array.tolist()
        for step in trajectory.steps
        for array in (step.completion.tokens, step.completion.logprobs)
    ]
    return copy.deepcopy((dict(trajectory.outcome), trajectory.verdicts, arrays))
