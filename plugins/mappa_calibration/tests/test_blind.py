"""A blind scene holds no agent's name and no hidden word, wherever they stood, and all else as it was."""

from dataclasses import replace

import msgspec

from mappa_calibration.blind import blind
from mappa_core import Message, Role, Scene, Task, ToolCall, ToolResult

TEAM = {"problem_solver": Role(brief="The Problem Solver plans."), "verifier": Role(brief="Checks the problem-solver.")}


def scene(act, **changes):
    step = act(
        "verifier",
        "As verifier I agree with Problem  Solver: Triangle ABC, triangles.",
        id="s",
        strata={"task": "geometry"},
        calls=(ToolCall(name="python", arguments={"code": "print('triangle')", "n": 3}),),
        results=(ToolResult(tool="python", status="ok", stdout="triangle 3"),),
        messages=(Message(role="user", content="From problem_solver: it is a TRIANGLE"),),
    )
    task = Task(id="t", prompt="A triangle.", stratum="geometry")
    return replace(Scene(task=task, role=TEAM["verifier"], step=step, team=TEAM, earlier=(step,)), **changes)


def test_no_name_and_no_word_is_left(act):
    found = blind(scene(act, later=(), truth="triangle"), ["triangle"])
    text = msgspec.json.encode((found.task, found.role, found.team, found.step.reply, found.step.messages)).decode()
    text += msgspec.json.encode((found.step.calls, found.step.results, found.truth)).decode()
    assert "triangle" not in text.lower().replace("triangles", "")
    assert "solver" not in text.lower() and "verifier" not in text.lower() and "geometry" not in text
    assert found.step.agent == "agent B" and set(found.team) == {"agent A", "agent B"}
    assert found.step.reply.content == "As agent B I agree with agent A: […] ABC, triangles."
    assert found.step.calls[0].arguments == {"code": "print('[…]')", "n": 3}
    assert found.earlier[0].agent == "agent B" and found.later == ()


def test_what_is_not_hidden_stays(act):
    one = scene(act)
    found = blind(one, [])
    assert (found.step.id, found.step.results[0].stdout, found.task.prompt) == ("s", "triangle 3", "A triangle.")
    assert found.truth is None and found.later is None
