"""A blind scene holds no agent's name and no hidden word, wherever they stood, and all else as it was."""

from dataclasses import replace

import msgspec

from mappa_calibration.blind import blind
from mappa_core import Breach, Inspection, Message, Role, Scene, Task, ToolCall, ToolResult
from mappa_core.coaching.options import LLMCoachOptions
from mappa_core.coaching.prompt import PromptBuilder
from mappa_core.sandbox import FileChange

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
    text = msgspec.json.encode((found.task, found.step.reply, found.step.messages)).decode()
    text += " ".join((found.role.brief, *found.team, *(role.brief for role in found.team.values())))
    text += msgspec.json.encode((found.step.calls, found.step.results, found.truth)).decode()
    assert "triangle" not in text.lower().replace("triangles", "")
    assert "solver" not in text.lower() and "verifier" not in text.lower() and "geometry" not in text
    assert found.step.agent == "agent B" and set(found.team) == {"agent A", "agent B"}
    assert found.step.reply.content == "As agent B I agree with agent A: […] ABC, triangles."
    assert found.step.calls[0].arguments == {"code": "print('[…]')", "n": 3}
    assert found.earlier[0].agent == "agent B" and found.later == ()


def test_what_is_not_hidden_stays(act):
    shown = scene(act)
    found = blind(shown, [])
    assert (found.step.id, found.step.results[0].stdout, found.task.prompt) == ("s", "triangle 3", "A triangle.")
    assert found.truth is None and found.later is None


async def asked(scene, rubrics=None):
    """What a model is asked of a scene: the rules with the rubric, and the evidence."""
    prompt = await PromptBuilder(LLMCoachOptions(rubrics=rubrics)).build(scene)
    return [message.content for message in prompt.messages]


async def test_the_rubric_is_that_of_the_agent_without_its_name(act, tmp_path):
    (tmp_path / "verifier.md").write_text(
        "The verifier is our star.{% if agent == 'verifier' %} Triangles, a {{ 'triangle' }}:"
        " {{ team['problem_solver'].brief }}{% endif %} {% include 'all.md' %}"
    )
    (tmp_path / "all.md").write_text("Did the Problem Solver plan?")
    rules, _ = await asked(blind(scene(act), ["triangle", "if"]), str(tmp_path))
    assert "# Judging agent B\n\nThe agent B is our star. Triangles, a […]: The agent A plans. Did the agent A" in rules


async def test_a_rubric_of_the_workflow_is_hidden_and_its_code_is_not(act):
    role = replace(TEAM["verifier"], rubric="{% if truth %}{% else %}No truth.{% endif %} Verifier, {{ agent }}!")
    hidden = blind(scene(act, role=role, team={**TEAM, "verifier": role}), ["truth"])
    assert hidden.role.rubric == "{% if truth %}{% else %}No […].{% endif %} agent B, {{ agent }}!"
    assert "# Judging agent B\n\nNo […]. agent B, agent B!" in (await asked(hidden))[0]


async def test_the_general_rubric_is_asked_as_it_is(act):
    rules, _ = await asked(blind(scene(act), ["code"]))
    assert "Go through the facts, the steps, the code and the numbers yourself." in rules


async def test_what_was_checked_by_machine_names_nobody(act):
    team = {
        "problem_solver": Role(brief="Plans.", produces=("problem-solver.csv",)),
        "verifier": Role(brief="Checks.", needs=("problem-solver.csv",)),
    }
    late = Breach(agent="problem_solver", kind="missing_output", path="problem-solver.csv")
    bad = Breach(
        agent="verifier", kind="broken_output", path="a.csv", detail="as problem_solver said", reason="verifier"
    )
    step = act(
        "problem_solver",
        "Done.",
        id="s",
        tools=("transfer_to_verifier", "python"),
        files=("verifier.txt",),
        calls=(ToolCall(name="transfer_to_verifier", error="the verifier is busy"),),
        results=(
            ToolResult(
                tool="transfer_to_verifier",
                status="error",
                files=(FileChange(path="Problem Solver.txt", kind="created", size=1),),
            ),
        ),
        breaches=(late, bad),
        inspection=Inspection(over=False, findings=("the verifier got nothing",), breaches=(bad,)),
    )
    task = Task(id="t", prompt="?", reference="ask the verifier", files={"verifier.txt": "/tmp/v"})
    shown = blind(scene(act, task=task, role=team["problem_solver"], step=step, team=team, earlier=()), [])
    text = "\n".join(await asked(shown)).lower()
    assert "verifier" not in text and "solver" not in text
    assert "agent a.csv, which agent a has to make, was due and not there" in text
    assert "of transfer_to_agent_b: it was not run" in text and shown.task.files == {"agent B.txt": "/tmp/v"}


def test_a_name_within_a_name_and_an_agent_of_no_team_are_hidden(act):
    team = {
        "agent": Role(brief="Hands to the agent two."),
        "agent_two": Role(brief="Helps the a."),
        "a": Role(brief=""),
    }
    hidden = blind(
        scene(act, team=team, role=team["a"], step=act("guest", "I, guest, am no agent.", id="s"), earlier=()), []
    )
    assert [role.brief for role in hidden.team.values()] == ["Hands to the agent C.", "Helps the agent A.", ""]
    assert (hidden.step.agent, hidden.step.reply.content) == ("agent D", "I, agent D, am no agent B.")
