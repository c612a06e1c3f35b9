"""Logs of other frameworks become runs: what is in them, who acted, and what is refused where."""

import asyncio
import json
import signal
import subprocess
import sys

import pytest
from starlette.testclient import TestClient

from mappa.cli import main
from mappa.look.coach_eval.labelled_actions import label_runs
from mappa.look.counted_verdicts import with_counted_verdicts
from mappa.look.importing import LogMapping, import_logs
from mappa.look.judge import judge_run
from mappa.look.observe import observe_run
from mappa.look.view.report import write_report
from mappa.look.view.web.app import create_app
from mappa.look.view.web.run_folders import RunFolders
from mappa.runs import RunFolder, RunReader
from mappa.sessions import restore_trusted
from mappa.testing import load_plugins
from mappa_core import Coach, InputError, Offer, Verdict, hookimpl

CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q": "mass of the sun"}'}}
CHAT = [
    {"role": "developer", "content": "You plan."},
    {"role": "user", "content": [{"type": "text", "text": "How heavy is the sun?"}, {"type": "image_url"}]},
    {"role": "assistant", "name": "planner", "content": None, "tool_calls": [CALL], "reasoning_content": "look it up"},
    {"role": "tool", "tool_call_id": "c1", "content": "2e30 kg"},
    {"role": "user", "name": "writer", "content": "It weighs 2e30 kg."},
    {
        "role": "assistant",
        "content": "Done",
        "finish_reason": "length",
        "model": "gpt-x",
        "usage": {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42},
        "seconds": 1.5,
    },
]


def write(path, *lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def imported(tmp_path, *lines, name="run", file_format=None, **mapped):
    path = write(tmp_path / "log.jsonl", *lines)
    chosen = LogMapping(**mapped)
    return import_logs(
        load_plugins(only=("look",)), [path], chosen, root=tmp_path / "runs", name=name, file_format=file_format
    )


def trajectories(made):
    with RunReader(made.folder) as reader:
        return [reader.trajectory(row.id) for row in reader.trajectories]


# --- messages ---------------------------------------------------------------------------------------------------------


def test_a_conversation_is_a_rollout_and_who_speaks_acts(tmp_path):
    line = {"messages": CHAT, "result": {"solved": True, "points": 0.5}, "kind": "physics", "gold": "1.99e30"}
    made = imported(
        tmp_path,
        line,
        agents={"writer": "Writes the answer."},
        outcomes={"correct": "result.solved", "points": "result.points"},
        stratum="kind",
        truth="gold",
    )
    (one,) = trajectories(made)
    assert [(step.agent, step.turn, len(step.messages)) for step in one.steps] == [
        ("planner", 0, 2),
        ("writer", 0, 4),
        ("assistant", 0, 5),
    ]
    planner, writer, last = one.steps
    assert planner.messages[0].role == "system"
    assert planner.messages[1].content == "How heavy is the sun?\n[image_url]" == one.task.prompt
    assert (planner.reply.reasoning, planner.completion.finish) == ("look it up", "tool")
    assert planner.calls[0].arguments == {"q": "mass of the sun"} and planner.results[0].stdout == "2e30 kg"
    assert writer.reply.role == "assistant" and writer.reply.content == "It weighs 2e30 kg."
    assert (last.completion.finish, last.completion.seconds) == ("length", 1.5)
    assert (last.completion.usage.prompt_tokens, last.completion.usage.usd) == (40, None)
    assert last.completion.tokens is None and one.verdicts == ()
    assert one.outcome == {"correct": 1.0, "points": 0.5}
    assert (one.task.stratum, one.task.reference) == ("physics", "1.99e30")
    assert (made.trajectories, made.measured, made.agents) == (1, 1, {"planner": 1, "writer": 1, "assistant": 1})


def test_logs_of_one_problem_are_samples_of_one_task(tmp_path):
    lines = [{"messages": CHAT[1:3] + CHAT[5:], "n": number} for number in range(2)]
    other = {"messages": [{"role": "user", "content": "Else?"}, {"role": "assistant", "content": "No."}], "n": 7}
    made = imported(tmp_path, *lines, other)
    found = trajectories(made)
    assert made.tasks == 2 and [one.sample for one in found] == [0, 1, 0]
    assert found[0].task.id == found[1].task.id != found[2].task.id
    named = imported(tmp_path, *lines, other, name="named", task_id="n")
    assert [trajectory.task.id for trajectory in trajectories(named)] == ["0", "1", "7"]


BAD = {
    "a role": (CHAT[1], {"role": "narrator", "content": "x"}, "messages.1.role: 'narrator' is none of system, user"),
    "no message": (CHAT[1], "hello", "messages.1: not a message: 'hello'"),
    "content": (CHAT[1], {"role": "user", "content": 7}, "messages.1.content: neither text, null nor a list"),
    "a part": (CHAT[1], {"role": "user", "content": [{"x": 1}]}, "messages.1.content.0: not a part"),
    "a call": (CHAT[1], {"role": "assistant", "tool_calls": [{}]}, "messages.1.tool_calls.0.function: has no name"),
    "the old form": (CHAT[1], {"role": "assistant", "function_call": {}}, "messages.1.function_call.function: has no"),
    "tokens": (CHAT[1], {"role": "assistant", "usage": {"prompt_tokens": "many"}}, "messages.1.usage.prompt_tokens"),
    "nobody acts": (CHAT[1], CHAT[0], "no message is an action"),
    "nothing asked": (CHAT[0], CHAT[5], "no message of a user says what the task was; name the key .* --prompt"),
}


@pytest.mark.parametrize("first, second, says", BAD.values(), ids=BAD)
def test_a_bad_line_is_refused_with_its_place_and_nothing_is_written(tmp_path, first, second, says):
    with pytest.raises(InputError, match=rf"log\.jsonl, line 2: .*{says}"):
        imported(tmp_path, {"messages": CHAT}, {"messages": [first, second]})
    assert not (tmp_path / "runs").exists()


def test_keys_that_are_named_and_not_there_are_refused(tmp_path):
    good = {"messages": CHAT, "n": 3, "ok": "yes"}
    with pytest.raises(InputError, match=r"line 1: chat: no list of messages; here are messages, n, ok: .*--messages"):
        imported(tmp_path, good, messages="chat")
    with pytest.raises(InputError, match="line 1: kind: is not there, and --stratum names it"):
        imported(tmp_path, good, stratum="kind")
    with pytest.raises(InputError, match="line 1: ok: neither a number nor true or false: 'yes'"):
        imported(tmp_path, good, outcomes={"correct": "ok"})
    with pytest.raises(InputError, match=r"log\.jsonl, line 2"):
        imported(tmp_path, good, '{"messages": [')


def test_arguments_that_a_model_broke_are_a_call_that_could_not_be_run(tmp_path):
    broken = {**CALL, "function": {"name": "search", "arguments": '{"q": '}}
    chat = [CHAT[1], {"role": "assistant", "tool_calls": [broken]}, {**CHAT[3], "status": "error", "content": "what?"}]
    ((step,),) = [trajectory.steps for trajectory in trajectories(imported(tmp_path, {"messages": chat}))]
    assert step.calls[0].error == "its arguments are not JSON" and step.results[0].status == "error"


# --- spans ------------------------------------------------------------------------------------------------------------


def span(name, identity, parent, seconds, operation=None, *, status="UNSET", **attributes):
    """A span as the Python SDK prints it."""
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    return {
        "name": name,
        "context": {"trace_id": "0xAA", "span_id": identity, "trace_state": "[]"},
        "parent_id": parent,
        "start_time": f"2026-01-01T00:00:{seconds[0]:02d}.000000Z",
        "end_time": f"2026-01-01T00:00:{seconds[1]:02d}.000000Z",
        "status": {"status_code": status},
        "attributes": named if operation is None else {"gen_ai.operation.name": operation, **named},
    }


def said(role, text):
    return {"role": role, "parts": [{"type": "text", "content": text}]}


ASKED = json.dumps([said("user", "How heavy is the sun?")])
CALLED = json.dumps(
    [
        {
            "role": "assistant",
            "parts": [{"type": "reasoning", "content": "hm"}, {"type": "tool_call", "id": "c1", "name": "search"}],
            "finish_reason": "tool_call",
        }
    ]
)
TRACE = [
    span("work", "1", None, (0, 9), "invoke_workflow", solved=1),
    span("agent", "2", "1", (0, 5), "invoke_agent", gen_ai__agent__name="planner"),
    span(
        "chat",
        "3",
        "2",
        (0, 2),
        "chat",
        gen_ai__input__messages=ASKED,
        gen_ai__output__messages=CALLED,
        gen_ai__usage__input_tokens=30,
        gen_ai__response__finish_reasons=["tool_call"],
    ),
    span(
        "tool",
        "4",
        "2",
        (2, 3),
        "execute_tool",
        gen_ai__tool__name="search",
        gen_ai__tool__call__id="c1",
        gen_ai__tool__call__result="2e30 kg",
    ),
    span(
        "chat",
        "5",
        "2",
        (3, 5),
        "chat",
        gen_ai__input__messages=ASKED,
        gen_ai__output__messages=json.dumps([said("assistant", "2e30 kg")]),
        gen_ai__request__model="gpt-x",
    ),
]


def exported(spans):
    """The same spans in one line of OTLP."""

    def value(one):
        if isinstance(one, list):
            return {"arrayValue": {"values": [value(part) for part in one]}}
        return {"intValue": str(one)} if isinstance(one, int) else {"stringValue": one}

    def nano(text):
        return str((1767225600 + int(text[17:19])) * 10**9)

    told = [
        {
            "traceId": "aa",
            "spanId": one["context"]["span_id"],
            "parentSpanId": one["parent_id"] or "",
            "name": one["name"],
            "startTimeUnixNano": nano(one["start_time"]),
            "endTimeUnixNano": nano(one["end_time"]),
            "attributes": [{"key": key, "value": value(one)} for key, one in one["attributes"].items()],
            "status": {},
        }
        for one in spans
    ]
    return {"resourceSpans": [{"resource": {}, "scopeSpans": [{"scope": {}, "spans": told}]}]}


@pytest.mark.parametrize("lines", [TRACE, TRACE[::-1], [exported(TRACE)]], ids=["printed", "backwards", "OTLP"])
def test_a_trace_is_a_rollout_and_its_innermost_spans_of_models_are_actions(tmp_path, lines):
    made = imported(tmp_path, *lines, outcomes={"correct": "solved"})
    (one,) = trajectories(made)
    assert made.format == "spans" and one.outcome == {"correct": 1.0}
    first, second = one.steps
    assert (first.agent, second.agent, second.turn) == ("planner", "planner", 1)
    assert (first.reply.reasoning, first.completion.finish, second.completion.finish) == ("hm", "tool", "stop")
    assert first.results[0].stdout == "2e30 kg" and first.results[0].seconds == 1.0 and not second.results
    assert first.completion.usage.prompt_tokens == 30 and second.completion.usage is None
    assert (one.task.prompt, second.reply.content) == ("How heavy is the sun?", "2e30 kg")
    assert (one.seconds, first.completion.seconds) == (9.0, 2.0)


def test_spans_without_what_was_said_are_refused(tmp_path):
    silent = span("chat", "3", None, (0, 2), "chat")
    with pytest.raises(InputError, match=r"line 1: span 'chat': gen_ai.output.messages: is not there.*CAPTURE_MESSAGE"):
        imported(tmp_path, silent)
    with pytest.raises(InputError, match=r"line 1: start_time: not a time"):
        imported(tmp_path, {**silent, "start_time": "noon"})
    with pytest.raises(InputError, match="no entry in it is an action of a model: 1 of no model and no tool"):
        imported(tmp_path, span("http", "3", None, (0, 2)))


# --- what can be done with it -----------------------------------------------------------------------------------------


async def test_a_run_without_a_coach_is_observed_and_then_with_the_verdicts_it_was_given(tmp_path):
    lines = [{"messages": CHAT, "ok": number % 2} for number in range(4)]
    made = imported(tmp_path, *lines, outcomes={"correct": "ok"})
    seen = observe_run(made.folder)
    assert (seen.rollouts, seen.unsuccessful, seen.coach.total.verdicts) == (4, 2, 0)
    assert seen.evaluation.interval.mean == 0.5
    with RunFolder.open(made.folder) as folder:
        for one in trajectories(made):
            for score in (9.0, 2.0):  # judged twice: the last one counts
                verdict = Verdict(
                    status="scored",
                    score=score,
                    step=one.steps[0].id,
                    phase="again",
                    coach="judge",
                    id=f"{one.steps[0].id}/judge/again/{score}",
                )
                folder.store.record_verdict(verdict)
    seen = observe_run(made.folder)
    planner = next(agent for agent in seen.agents if agent.agent == "planner")
    assert (planner.scored, planner.score.mean, planner.low) == (4, 2.0, 4)


class Lengths(Coach):
    """Likes short replies."""

    def __init__(self, options) -> None: ...

    async def score(self, scene):
        return Verdict.scored(max(0.0, 10.0 - len(scene.step.reply.content)), scene.role.brief)


class Plugin:
    @hookimpl
    def mappa_coaches(self):
        yield Offer("lengths", Lengths)


async def test_imported_run_is_judged_and_certifies_a_coach(tmp_path):
    registry = load_plugins(only=("look",), modules={"lengths": Plugin()})
    lines = [{"messages": CHAT, "ok": number % 2} for number in range(2)]
    made = imported(tmp_path, *lines, outcomes={"correct": "ok"}, agents={"writer": "Writes."})
    composed = restore_trusted(registry, made.folder / "config.yaml", ("coach.use=lengths",))
    told = await judge_run(composed, registry, made.folder)
    assert (told.counts.scored, told.overall.actions) == (6, 0)
    (first, _) = trajectories(made)
    given = {verdict.step: verdict for verdict in first.verdicts}
    assert [given[step.id].score for step in first.steps] == [10.0, 0.0, 6.0]
    assert given[first.steps[1].id].reasoning == "Writes."
    labels = await label_runs(registry, [made.folder])
    assert [action.label for action in labels.actions] == [0.0] * 3 + [1.0] * 3


def test_verdicts_that_were_added_later_are_read_everywhere(tmp_path, capsys, monkeypatch):
    """Those of the last judge alone, in `observe`, the report and the viewer."""
    registry = load_plugins(only=("look",), modules={"lengths": Plugin()})
    lines = [{"messages": CHAT, "ok": number % 2} for number in range(4)]
    made = imported(tmp_path, *lines, outcomes={"correct": "ok"})
    composed = restore_trusted(registry, made.folder / "config.yaml", ("coach.use=lengths",))
    for _ in range(2):
        asyncio.run(judge_run(composed, registry, made.folder))
    with RunReader(made.folder) as reader:
        summary = reader.summary
        assert len(list(reader.verdicts)) == 24
        counted = with_counted_verdicts(summary, reader)
    assert (counted.coach.verdicts, counted.coach.failed, counted.coach.usd) == (12, 0, 0.0)
    assert {agent: one.score for agent, one in counted.agents.items()} == {"planner": 10, "writer": 0, "assistant": 6}
    page = write_report(made.folder, summary).read_text()
    assert "12 verdicts, 0 failed" in page and "Whom the coach blames" in page
    client = TestClient(create_app(RunFolders([made.folder]), token="t"), base_url="http://127.0.0.1")
    coach = client.get("/runs/run/coach?token=t").text
    for part in ("12 verdicts, 0 failed", "ranks by correct", "in the newest 12 verdicts"):
        assert part in coach
    monkeypatch.setattr("mappa.look.cli.observe.load_registry", lambda: registry)
    assert main(["observe", str(made.folder)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("imported: correct 50.0 %") and "0  writer  4 times, first " in shown


async def test_a_run_whose_outcome_nobody_knows_is_observed(tmp_path):
    made = imported(tmp_path, {"messages": CHAT}, {"messages": CHAT[1:]})
    seen = observe_run(made.folder)
    assert (made.measured, seen.unsuccessful, seen.evaluation.interval) == (0, 0, None)


def test_imported_run_is_listed_shown_and_reported(tmp_path, capsys):
    made = imported(tmp_path, {"messages": CHAT, "ok": 1}, outcomes={"correct": "ok"})
    with RunReader(made.folder) as reader:
        summary = reader.summary
    assert (summary.status, summary.iterations, summary.agents["planner"].turns) == ("done", 0, 1.0)
    assert "planner" in write_report(made.folder, summary).read_text()
    for words in (["runs", "list", "--root", made.folder.parent], ["runs", "show", made.folder]):
        assert main([str(word) for word in words]) == 0
    assert main(["observe", str(made.folder)]) == 0
    assert "planner" in capsys.readouterr().out


KILLED = """
import os, signal
from mappa.look.importing import add_plays
from mappa.cli import main

record_play = add_plays._record_play

def die(*given):
    record_play(*given)
    os.kill(os.getpid(), signal.{signal})

add_plays._record_play = die
main(["import", "log.jsonl", "--name", "x"])
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_an_import_that_is_killed_leaves_no_run_and_can_be_made_again(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "log.jsonl", {"messages": CHAT}, {"messages": CHAT})
    killed = subprocess.run([sys.executable, "-c", KILLED.format(signal=name)], capture_output=True, check=False)
    assert killed.returncode == (-signal.SIGKILL if name == "SIGKILL" else 128 + signal.SIGTERM)
    assert not list((tmp_path / "runs").glob("*/run.db"))
    assert name == "SIGKILL" or not any((tmp_path / "runs").iterdir())
    assert main(["import", "log.jsonl", "--name", "x"]) == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["x"]


def test_import_command_prints_agents_and_the_next_command(tmp_path, monkeypatch, capsys, invoke):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "log.jsonl", {"messages": CHAT, "ok": True})
    words = ["import", str(path), "--agent", "writer=Writes.", "--outcome", "ok", "--name", "x"]
    told = invoke([*words, "--json"])
    assert told.exit_code == 0 and json.loads(told.stdout)["agents"] == {"planner": 1, "writer": 1, "assistant": 1}
    shown = invoke([*words[:-1], "y"])
    assert "1 rollout of 1 task from messages" in shown.output and "mappa judge runs/y" in shown.output
    assert main([*words, "--agent", "writer"]) == 2
    assert main([*words[:2], "--outcome", "other", "--name", "x"]) == 2
    assert "imported with other options, which it keeps: agents ({'writer': 'Writes.'})" in capsys.readouterr().err
