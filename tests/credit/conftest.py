"""Small trajectories and experiences, written down as tests need them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mappa_core import Completion, Experience, Failure, Message, Step, Task, Trajectory, Verdict
from mappa_core.engine import VersionSpan
from mappa_core.records import Counterfactual

MakeStep = Callable[..., Step]
MakeTrajectory = Callable[..., Trajectory]
MakeExperience = Callable[..., Experience]


def _step(
    name: str,
    agent: str = "solver",
    *,
    position: int = 0,
    turn: int = 0,
    tokens: Sequence[int] | None = (1, 2, 3),
    prompt: Sequence[int] | None = (7,),
    policy: str | None = None,
    **completion: Any,
) -> Step:
    sampled = None if tokens is None else np.array(tokens, np.int32)
    given = {
        "text": "",
        "tokens": sampled,
        "prompt_tokens": None if prompt is None else np.array(prompt, np.int32),
        "logprobs": None if sampled is None else np.full(len(sampled), -0.5, np.float32),
        "finish": "stop",
        "versions": () if sampled is None else (VersionSpan(version=0, start=0, end=len(sampled)),),
    }
    return Step(
        id=name,
        agent=agent,
        turn=turn,
        position=position,
        policy=policy or agent,
        messages=(),
        reply=Message(role="assistant", content=""),
        completion=Completion(**(given | completion)),
    )


def _trajectory(
    name: str = "t",
    steps: Sequence[Step] = (),
    *,
    verdicts: Sequence[Verdict] = (),
    task: str = "task",
    stratum: str = "all",
    outcome: Mapping[str, float] | None = None,
    error: Failure | None = None,
) -> Trajectory:
    return Trajectory(
        id=name,
        task=Task(id=task, prompt="", stratum=stratum),
        sample=0,
        iteration=0,
        steps=tuple(steps),
        verdicts=tuple(verdicts),
        outcome=outcome or {},
        error=error,
    )


def _experience(
    lengths: Sequence[int],
    reward: Sequence[float],
    *,
    weight: Sequence[float] | None = None,
    agent: Sequence[int] | None = None,
    policy: Sequence[int] | None = None,
    group: Sequence[int] | None = None,
    task: Sequence[int] | None = None,
    trajectory: Sequence[int] | None = None,
    truncated: Sequence[bool] | None = None,
    finished: Sequence[bool] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    values: Sequence[float] | None = None,
    old_logprobs: Sequence[float] | None = None,
    ref_logprobs: Sequence[float] | None = None,
) -> Experience:
    """An experience of which only the columns that an estimator reads matter. Unless told otherwise every row is a
    finished trajectory of its own, and every prompt is the same token."""
    n_rows, n_tokens = len(lengths), int(sum(lengths))
    prompts = [[0]] * n_rows if prompts is None else prompts
    trajectory = range(n_rows) if trajectory is None else trajectory

    def ints(values: Sequence[int] | None) -> np.ndarray:
        return np.zeros(n_rows, np.int32) if values is None else np.array(values, np.int32)

    def floats(values: Sequence[float] | None) -> np.ndarray | None:
        return None if values is None else np.array(values, np.float32)

    rewards = np.array(reward, np.float32)
    return Experience(
        agents=("a", "b", "c"),
        policies=("p", "q", "r"),
        trajectories=tuple(f"t{number}" for number in range(max(trajectory, default=-1) + 1)),
        tasks=("task", "other"),
        strata=("all",),
        steps=tuple(f"s{row}" for row in range(n_rows)),
        agent=ints(agent),
        policy=ints(policy),
        trajectory=ints(trajectory),
        task=ints(task),
        group=ints(group),
        stratum=ints(None),
        position=np.arange(n_rows, dtype=np.int32),
        turn=ints(None),
        truncated=np.zeros(n_rows, np.bool_) if truncated is None else np.array(truncated, np.bool_),
        temperature=np.ones(n_rows, np.float32),
        outcome=np.full(n_rows, np.nan, np.float32),
        reward=rewards,
        weight=np.isfinite(rewards).astype(np.float32) if weight is None else np.array(weight, np.float32),
        tokens=np.arange(n_tokens, dtype=np.int32),
        offsets=np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64),
        version=np.zeros(n_tokens, np.int32),
        logprobs=np.full(n_tokens, -0.5, np.float32),
        prompt_tokens=np.array([token for prompt in prompts for token in prompt], np.int32),
        prompt_offsets=np.concatenate([[0], np.cumsum([len(prompt) for prompt in prompts], dtype=np.int64)]).astype(
            np.int64
        ),
        finished=np.ones(n_rows, np.bool_) if finished is None else np.array(finished, np.bool_),
        values=floats(values),
        old_logprobs=floats(old_logprobs),
        ref_logprobs=floats(ref_logprobs),
    )


@pytest.fixture(scope="session")
def make_step() -> MakeStep:
    return _step


@pytest.fixture(scope="session")
def make_trajectory() -> MakeTrajectory:
    return _trajectory


@pytest.fixture(scope="session")
def make_experience() -> MakeExperience:
    return _experience


@pytest.fixture(scope="session")
def played(make_step, make_trajectory):
    """A trajectory in which these agents act in this order."""

    def make(agents="abc", *, error=None, **outcome: float):
        steps = [make_step(f"s{k}", agent, position=k) for k, agent in enumerate(agents)]
        return make_trajectory("t", steps, outcome=outcome, error=error)

    return make


@pytest.fixture
def weighed(played: Callable[..., Trajectory]) -> Callable[..., Trajectory]:
    """A trajectory in which replacing action k gives the outcome that stands k-th; None: nothing was played."""

    def build(*credited: float | None, **outcome: float) -> Trajectory:
        made = [
            Counterfactual(position=position, number=0, outcome={"correct": value})
            for position, value in enumerate(credited)
            if value is not None
        ]
        return replace(played("a" * len(credited), **outcome), counterfactuals=tuple(made))

    return build
