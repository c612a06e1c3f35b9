"""Values that real logs have, files of several formats, tasks that share an id, and keys that no line has."""

from __future__ import annotations

import csv
import json
from importlib import import_module

import pytest
from click.testing import CliRunner

from mappa.look.importing import LogMapping, import_logs
from mappa.runs import RunReader
from mappa.testing import load_plugins
from mappa_core import InputError

command = import_module("mappa.look.cli.import").command
USER = {"role": "user", "content": "How heavy is the sun?"}
DONE = {"role": "assistant", "name": "w", "content": "2e30 kg"}
CHAT = {"messages": [USER, DONE]}


def imported(tmp_path, files, **mapped):
    """Import files by name, each a list of rows."""
    tmp_path.mkdir(exist_ok=True)
    for name, rows in files.items():
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    paths = [tmp_path / name for name in files]
    return import_logs(load_plugins(only=("look",)), paths, LogMapping(**mapped), root=tmp_path / "runs", name="run")


def trajectories(made):
    with RunReader(made.folder) as reader:
        return [reader.trajectory(row.id) for row in reader.trajectories]


# --- endings and counts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("STOP", "stop"), ("stop_sequence", "stop"), ("MAX_TOKENS", "length"), ("SAFETY", "abort"),
        ("refusal", "abort"), ("function_call", "tool"), ("pause_turn", "tool"),
    ],
)  # fmt: skip
def test_endings_of_every_provider_are_known_in_messages_and_spans(tmp_path, reason, finish):
    made = imported(tmp_path, {"log.jsonl": [{"messages": [USER, {**DONE, "finish_reason": reason}]}]})
    (one,) = trajectories(made)
    assert (one.steps[0].completion.finish, made.problems) == (finish, ())
    made = imported(tmp_path / "spans", {"log.jsonl": [span(finish_reasons=[reason])]})
    (one,) = trajectories(made)
    assert (one.steps[0].completion.finish, made.problems) == (finish, ())


def test_an_unknown_ending_is_none_and_said_once(tmp_path):
    line = {"messages": [USER, {**DONE, "finish_reason": "bored"}, {**DONE, "finish_reason": "bored"}]}
    made = imported(tmp_path, {"log.jsonl": [line, line]})
    assert [step.completion.finish for step in trajectories(made)[0].steps] == ["stop", "stop"]
    (problem,) = made.problems
    assert problem.endswith("line 1: messages.finish_reason 'bored': not read (and in 1 more)")
    made = imported(tmp_path / "spans", {"log.jsonl": [span(finish_reasons=["bored"])]})
    assert made.problems[0].endswith("line 1: gen_ai.response.finish_reasons 'bored': not read")


def test_counts_that_a_table_made_floats_are_counts(tmp_path):
    usage = {"prompt_tokens": 12.0, "completion_tokens": 3}
    (one,) = trajectories(imported(tmp_path, {"log.jsonl": [{"messages": [USER, {**DONE, "usage": usage}]}]}))
    assert one.steps[0].completion.usage.prompt_tokens == 12
    made = imported(tmp_path / "spans", {"log.jsonl": [span(input_tokens=12.0)]})
    assert trajectories(made)[0].steps[0].completion.usage.prompt_tokens == 12
    made = imported(tmp_path / "labels", {"log.jsonl": [{**CHAT, "step": 1.0}]}, guilty_step="step")
    assert (made.labels.steps, made.problems) == (1, ())
    half = [{"messages": [USER, {**DONE, "usage": {"prompt_tokens": 1.5}}]}]
    with pytest.raises(InputError, match=r"usage\.prompt_tokens: no number of tokens: 1\.5"):
        imported(tmp_path / "half", {"log.jsonl": half})


def span(*, finish_reasons=None, input_tokens=None, roles=("user",)):
    asked = [{"role": role, "parts": [{"type": "text", "content": "How heavy?"}]} for role in roles]
    known = {"gen_ai.response.finish_reasons": finish_reasons, "gen_ai.usage.input_tokens": input_tokens}
    return {
        "name": "chat m", "context": {"trace_id": "aa", "span_id": "01"}, "parent_id": None,
        "start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:00:01Z",
        "attributes": {
            "gen_ai.operation.name": "chat", "gen_ai.input.messages": asked,
            "gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "text", "content": "2e30 kg"}]}],
            **{key: value for key, value in known.items() if value is not None},
        },
    }  # fmt: skip


def test_a_developer_is_the_system(tmp_path):
    (one,) = trajectories(imported(tmp_path, {"log.jsonl": [span(roles=("developer", "user"))]}))
    assert [message.role for message in one.steps[0].messages] == ["system", "user"]


def test_an_attribute_of_otlp_without_a_value_is_none(tmp_path):
    known = {key: {"stringValue": json.dumps(value)} for key, value in span()["attributes"].items()}
    known |= {"gen_ai.operation.name": {"stringValue": "chat"}, "user.id": {}, "gen_ai.system_instructions": {}}
    one = {"traceId": "aa", "spanId": "01", "name": "chat", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    one["attributes"] = [{"key": key, "value": value} for key, value in known.items()]
    made = imported(tmp_path, {"log.jsonl": [{"resourceSpans": [{"scopeSpans": [{"spans": [one]}]}]}]})
    assert made.agents == {"assistant": 1}


def test_a_column_of_a_table_may_hold_the_messages_as_json(tmp_path):
    with (tmp_path / "chats.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "messages"], ["7", json.dumps(CHAT["messages"])]])
    made = import_logs(load_plugins(only=("look",)), [tmp_path / "chats.csv"], LogMapping(), root=tmp_path, name="run")
    assert made.agents == {"w": 1}


# --- several formats --------------------------------------------------------------------------------------------------

SDK_SPAN = {"object": "trace.span", "id": "s1", "trace_id": "t1", "parent_id": None, "span_data": {
    "type": "generation", "input": [USER], "output": [{"role": "assistant", "content": "a"}]},
    "started_at": "2026-01-01T00:00:00Z", "ended_at": "2026-01-01T00:00:01Z"}  # fmt: skip
AUTOGEN = {"messages": [{"source": "user", "type": "TextMessage", "content": "q"},
                        {"source": "w", "type": "TextMessage", "content": "a"}]}  # fmt: skip


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"a.jsonl": [SDK_SPAN], "b.jsonl": [CHAT]}, r"b\.jsonl, line 1 is of the format messages, but .*a\.jsonl"),
        ({"a.jsonl": [CHAT], "b.jsonl": [SDK_SPAN]}, r"b\.jsonl, line 1 is of the format openai-agents"),
        ({"a.jsonl": [CHAT, AUTOGEN]}, r"a\.jsonl, line 2 is of the format autogen"),
        ({"a.jsonl": [SDK_SPAN, CHAT]}, r"line 2: object: None is neither trace nor trace\.span"),
        ({"a.jsonl": [AUTOGEN, CHAT]}, r"line 2: not a message of AutoGen: it has no source and type, but role"),
    ],
)  # fmt: skip
def test_a_mixture_of_formats_is_refused_with_its_place(tmp_path, files, says):
    with pytest.raises(InputError, match=says):
        imported(tmp_path, files)


# --- tasks and keys ---------------------------------------------------------------------------------------------------


def test_tasks_that_share_an_id_and_differ_in_their_text_are_kept_apart(tmp_path):
    other = {"messages": [{"role": "user", "content": "2+2?"}, DONE]}
    files = {"a.jsonl": [{**CHAT, "id": 1}, {**CHAT, "id": 1}, {**CHAT, "id": 2}], "b.jsonl": [{**other, "id": 1}] * 2}
    made = imported(tmp_path, files, task_id="id")
    assert (made.tasks, made.trajectories) == (3, 5)
    tasks = {
        trajectory.task.prompt: trajectory.task.id for trajectory in trajectories(made) if trajectory.task.id != "2"
    }
    assert all(name.startswith("1-") for name in tasks.values()) and len(set(tasks.values())) == 2
    (problem,) = made.problems
    assert "b.jsonl, line 1: task 1: its text is another than in " in problem and "a.jsonl, line 1, so" in problem


def test_a_key_of_an_option_that_is_in_no_line_is_said(tmp_path):
    line = {**CHAT, "ok": True, "guilty": "w"}
    wrong = {"guilty_agent": "gulty", "guilty_step": "step", "step_values": "svx", "outcomes": {"correct": "okk"}}
    made = imported(tmp_path, {"log.jsonl": [line]}, **wrong)
    assert made.problems == (
        "gulty: no rollout has a value there, and --guilty-agent names it",
        "step: no rollout has a value there, and --guilty-step names it",
        "svx: no rollout has a value there, and --step-values names it",
        "okk: no rollout has a value there, and --outcome names it",
    )
    right = {"guilty_agent": "guilty", "outcomes": {"correct": "ok"}}
    assert imported(tmp_path / "right", {"log.jsonl": [line]}, **right).problems == ()


def test_a_guilty_agent_that_acts_nowhere_is_counted(tmp_path):
    # A label may write the name otherwise than the log; whom one can blame beside agents acts nowhere, and is not odd.
    lines = [{**CHAT, "guilty": name} for name in ("w", "W", "nobody here", "User", "nobody")]
    made = imported(tmp_path, {"log.jsonl": lines}, guilty_agent="guilty")
    assert made.labels.odd == {"the guilty agent acts nowhere": 1} and made.labels.agents == 5


def test_the_next_command_can_be_pasted_into_a_shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.jsonl").write_text(json.dumps(CHAT))
    result = CliRunner().invoke(command, ["log.jsonl", "--name", "50% #1?x&y"])
    assert result.exit_code == 0, result.exception
    assert "next     mappa judge 'runs/50% #1?x&y' --coach OFFER" in result.output
