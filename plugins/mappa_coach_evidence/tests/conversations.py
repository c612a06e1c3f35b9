"""Trajectories for the tests: conversations as an import reads them, and steps of teams of Mappa."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mappa_core import Completion, Message, Role, Scene, Step, Task, ToolCall, ToolResult

FAILED = {"correct": 0.0}
SOLVED = {"correct": 1.0}


def step(place: int, agent: str, text: str, *, messages: Sequence[str] = ()) -> Step:
    return Step(
        id=f"t/{place:03d}",
        agent=agent,
        turn=0,
        position=place,
        policy=agent,
        messages=tuple(Message(role="user", content=text) for text in messages),
        reply=Message(role="assistant", content=text),
        completion=Completion(text=text, prompt_tokens=None, tokens=None, logprobs=None, finish="stop"),
    )


def conversation(
    *said: tuple[str, str],
    task: str = "How many seats does the theatre have?",
    outcome: Mapping[str, float] | None = FAILED,
) -> tuple[Scene, ...]:
    """Scenes of `said`: agents and what they said, in order; each saw what stands before."""
    steps = [
        step(place, agent, text, messages=[before for _, before in said[:place]])
        for place, (agent, text) in enumerate(said)
    ]
    return scenes_of_steps(steps, task=task, outcome=outcome)


def scenes_of_steps(
    steps: Sequence[Step], *, task: str = "How many seats?", outcome: Mapping[str, float] | None = FAILED
) -> tuple[Scene, ...]:
    whole = Task(id="t", prompt=task)
    role = Role(brief="")
    return tuple(
        Scene(task=whole, role=role, step=shown, earlier=tuple(steps[:place]), outcome=outcome, metric="correct")
        for place, shown in enumerate(steps)
    )


def with_result(
    one: Step, output: str, *, status: str = "ok", tool: str = "python", arguments: Mapping[str, Any] | None = None
) -> Step:
    """The step with one more call and what it was answered."""
    call = ToolCall(name=tool, arguments=arguments or {})
    result = ToolResult(
        tool=tool, status=status, stdout=output if status == "ok" else "", stderr="" if status == "ok" else output
    )  # type: ignore[arg-type]
    reply = replace(one.reply, tool_calls=(*one.reply.tool_calls, call))
    return replace(one, reply=reply, calls=(*one.calls, call), results=(*one.results, result))


def program(code: str) -> str:
    return f"Let us run this.\n```python\n{code}\n```"


def printed(output: str) -> str:
    return f"exitcode: 0 (execution succeeded)\nCode output: {output}"


def crashed(output: str) -> str:
    return f"exitcode: 1 (execution failed)\nCode output: Traceback (most recent call last):\n{output}\n"
