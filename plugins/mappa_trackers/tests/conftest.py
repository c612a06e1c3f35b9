"""A run to be told of: one rollout with two actions, a call of a tool and a verdict."""

from __future__ import annotations

import numpy as np
import pytest

from mappa_core import (
    Completion,
    Message,
    Step,
    Task,
    ToolCall,
    ToolResult,
    TrackedRun,
    Trajectory,
    Usage,
    Verdict,
)

IDENTITY = "0123456789abcdef" * 2


@pytest.fixture
def run(tmp_path) -> TrackedRun:
    folder = tmp_path / "first"
    folder.mkdir(exist_ok=True)
    config = {"seed": 3, "train": {"iterations": 2}, "coach": {"use": "llm", "options": {}}, "long": "x" * 7000}
    return TrackedRun(id=IDENTITY, name="first", folder=folder, plugin="mathchat", recipe="tiny", seed=3, config=config)


@pytest.fixture
def trajectory() -> Trajectory:
    name = "train-000000/t1/000"
    done = Completion(
        text="calc",
        prompt_tokens=np.arange(7, dtype=np.int32),
        tokens=np.arange(3, dtype=np.int32),
        logprobs=np.zeros(3, dtype=np.float32),
        finish="stop",
        temperature=0.5,
        seconds=2.0,
    )
    first = Step(
        id=f"{name}/000",
        agent="solver",
        turn=0,
        position=0,
        policy="solver",
        messages=(Message(role="system", content="Solve."), Message(role="user", content="2+2?")),
        reply=Message(role="assistant", content="calc", reasoning="hm"),
        completion=done,
        tools=("calculator",),
        calls=(ToolCall(name="calculator", arguments={"text": "2+2"}, id="c1"),),
        results=(ToolResult(tool="calculator", status="ok", stdout="4\n", seconds=1.0),),
    )
    verdict = Verdict(
        status="scored",
        score=7.5,
        reasoning="fine",
        blame="nobody",
        usage=Usage(calls=1, prompt_tokens=90, completion_tokens=8, usd=0.25),
        model="judge-1",
        question="q" * 32,
        id=f"{name}/000/llm/live/0",
        step=f"{name}/000",
        coach="llm",
        seconds=0.5,
    )
    return Trajectory(
        id=name,
        task=Task(id="t1", prompt="2+2?", reference="SECRET-TRUTH", stratum="sums"),
        sample=0,
        iteration=0,
        steps=(first,),
        verdicts=(verdict,),
        outcome={"correct": 1.0},
        seconds=4.0,
    )
