"""What an import counts as left out, and what is no act of an agent."""

from __future__ import annotations

import json

import pytest

from mappa.cli import main
from mappa.look.importing.chat_messages import BEHIND
from mappa.look.importing.log_mapping import LogMapping
from mappa.look.importing.read_logs import read_logs
from mappa.look.importing.traces import CANDIDATES, NO_CALL, OTHERS
from mappa_core.safe_json import MAX_OWN_DIGITS, parse_own_json

ASKED = {"role": "user", "content": "How heavy is the sun?"}


@pytest.fixture
def read(tmp_path):
    """The only rollout of a file with these lines."""

    def write(*rows, **mapped):
        path = tmp_path / "log.jsonl"
        path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
        ((log,), _) = read_logs([path], LogMapping(**mapped), None)
        return log

    return write


# --- AutoGen ----------------------------------------------------------------------------------------------------------


def event(kind, source="a", **more):
    return {"type": kind, "source": source, **more}


def test_a_thought_is_that_of_the_action_behind_it_and_events_are_counted(read):
    log = read(
        {
            "messages": [
                event("TextMessage", "user", content="Go."),
                event("MemoryQueryEvent", content=[{"content": "Oslo is cold.", "mime_type": "text/plain"}]),
                event("ThoughtEvent", content="Hm."),
                event("ModelClientStreamingChunkEvent", content="It "),
                event("StructuredMessage[Answer]", content={"kg": 2e30}),
                event("ThoughtEvent", content="No more."),
            ]
        }
    )
    (act,) = log.acts
    assert (act.reply.reasoning, act.reply.content) == ("Hm.", '{"kg": 2e+30}')
    assert log.left_out == {
        "messages of user, a person": 1, "MemoryQueryEvents": 1, "ModelClientStreamingChunkEvents": 1,
        "ThoughtEvents": 1,
    }  # fmt: skip
    assert [message.content for message in act.messages][:2] == ["Go.", "Oslo is cold."]
    assert log.notes == {BEHIND: 1}


def test_a_summary_stands_for_calls_whose_events_are_not_in_the_log(read):
    calls = [{"id": "c1", "name": "f", "arguments": "{}"}]
    results = [{"call_id": "c1", "name": "f", "content": "down", "is_error": True}]
    summary = event("ToolCallSummaryMessage", content="down", tool_calls=calls, results=results)
    task = event("TextMessage", "user", content="Go.")
    (alone,) = read({"messages": [task, summary]}).acts
    assert [(call.name, result.status) for call, result in alone.results] == [("f", "error")]
    events = [event("ToolCallRequestEvent", content=calls), event("ToolCallExecutionEvent", content=results)]
    log = read({"messages": [task, *events, summary, event("TextMessage", content="Done.")]})
    assert [len(act.results) for act in log.acts] == [1, 0]
    assert log.left_out["ToolCallSummaryMessages"] == 1 and log.notes == {}


def test_code_that_fails_is_an_error_and_calls_of_the_event_log_have_results(read):
    code = event("CodeGenerationEvent", content="1/0", code_blocks=[{"code": "1/0", "language": "python"}])
    ran = event("CodeExecutionEvent", result={"exit_code": 1, "output": "ZeroDivisionError"})
    (act,) = read({"messages": [event("TextMessage", "user", content="Go."), code, ran]}).acts
    assert [(result.stdout, result.status) for _, result in act.results] == [("ZeroDivisionError", "error")]
    asked = {"name": "f", "arguments": "{}"}
    reply = {"role": "assistant", "tool_calls": [{"id": "c1", "function": asked}]}
    call = {"type": "LLMCall", "agent_id": "a_1/1", "messages": [ASKED], "response": {"choices": [{"message": reply}]}}
    done = {"type": "ToolCall", "tool_name": "f", "arguments": {}, "result": "2e30", "agent_id": "a_1/1"}
    (act,) = read(call, done).acts
    assert [result.stdout for _, result in act.results] == ["2e30"]


# --- Harbor -----------------------------------------------------------------------------------------------------------


def test_a_step_of_atif_that_no_model_made_is_no_action_and_is_shown(read):
    calls = [{"tool_call_id": "c1", "function_name": "ls", "arguments": {}}]
    results = [{"source_call_id": "c1", "content": "a.txt", "subagent_trajectory_ref": [{"session_id": "x"}]}]
    log = read(
        {
            "schema_version": "ATIF-v1.7", "agent": {"name": "t"},
            "steps": [
                {"source": "user", "message": "Go."},
                {"source": "agent", "message": "Listed.", "llm_call_count": 0, "tool_calls": calls,
                 "observation": {"results": results}},
                {"source": "agent", "message": "Done.", "llm_call_count": 1},
            ],
        }
    )  # fmt: skip
    (act,) = log.acts
    assert [message.content for message in act.messages] == ["Go.", "Listed.", "a.txt"]
    assert log.left_out["steps that no model made"] == 1
    assert log.notes == {"trajectories of other agents, which results refer to": 1}


# --- spans ------------------------------------------------------------------------------------------------------------


def span(number, operation="chat", *, status=None, **attributes):
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    return {
        "name": operation, "context": {"trace_id": "aa", "span_id": f"{number:02d}"}, "parent_id": None,
        "start_time": f"2026-01-01T00:00:{number:02d}Z", "end_time": f"2026-01-01T00:00:{number:02d}.5Z",
        "status": status or {}, "attributes": {"gen_ai.operation.name": operation, **named},
    }  # fmt: skip


def said(text, role="assistant"):
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def test_candidates_are_no_parts_of_a_reply_and_others_are_noted(read):
    several = {"gen_ai__output__messages": [said("a"), said("b")], "gen_ai__input__messages": [ASKED]}
    for more in ({"gen_ai__request__choice__count": 2}, {"gen_ai__response__finish_reasons": ["stop", "stop"]}):
        log = read(span(0, **several, **more))
        assert (log.acts[0].reply.content, log.notes) == ("b", {CANDIDATES: 1})
    log = read(span(0, **several))
    assert (log.acts[0].reply.content, log.notes) == ("a\nb", {})
    several["gen_ai__output__messages"].append(said("c", "user"))
    log = read(span(0, **several))
    assert (log.acts[0].reply.content, log.notes) == ("a\nb", {OTHERS: 1})


def test_a_result_without_its_call_is_noted_and_a_failure_says_why(read):
    call = {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "f", "arguments": {}}]}
    log = read(
        span(0, gen_ai__input__messages=[ASKED], gen_ai__output__messages=[call]),
        span(1, "execute_tool", gen_ai__tool__name="f", gen_ai__tool__call__id="c1",
             status={"status_code": "ERROR", "description": "TimeoutError: 30 s"}),
        span(2, "execute_tool", gen_ai__tool__name="g", gen_ai__tool__call__result="lost"),
    )  # fmt: skip
    ((_, result),) = log.acts[0].results
    assert (result.stdout, result.status) == ("TimeoutError: 30 s", "error")
    assert log.notes == {NO_CALL: 1}


def test_calls_without_ids_are_answered_where_their_reply_is_shown(read):
    asked = {"role": "user", "parts": [{"text": "Go."}]}
    calls = {"role": "model", "parts": [{"functionCall": {"name": name, "args": {}}} for name in "fgf"]}
    told = {"role": "user", "parts": [
        {"functionResponse": {"name": name, "response": {"result": text}}} for name, text in ("g2", "f1", "f3")
    ]}  # fmt: skip
    log = read(
        span(0, gen_ai__input__messages=[asked], gen_ai__output__messages=[calls]),
        span(1, gen_ai__input__messages=[asked, calls, told], gen_ai__output__messages=[said("Done.")]),
    )
    found = [(call.name, json.loads(result.stdout)["result"]) for call, result in log.acts[0].results]
    assert found == [("f", "1"), ("g", "2"), ("f", "3")]


# --- numbers and files ------------------------------------------------------------------------------------------------


def test_a_score_that_is_not_finite_is_no_outcome_and_is_noted(read):
    line = {"messages": [ASKED, {"role": "assistant", "content": "4"}], "ok": float("nan"), "cost": 10**400}
    log = read(line, outcomes={"correct": "ok", "cost": "cost"})
    assert log.outcome == {}
    assert log.notes == {f"scores {name} that are no finite number": 1 for name in ("correct", "cost")}


def test_counts_and_times_that_are_not_finite_are_unknown(read):
    odd = {"usage": {"prompt_tokens": float("nan"), "completion_tokens": 3}, "seconds": float("inf")}
    (act,) = read({"messages": [ASKED, {"role": "assistant", "content": "4", **odd}]}).acts
    assert (act.usage.prompt_tokens, act.usage.completion_tokens, act.seconds) == (None, 3, 0.0)


def test_what_json_lacks_is_kept_in_files_of_the_user():
    assert str(parse_own_json("[NaN, -Infinity, 1e999]")) == "[nan, -inf, inf]"
    assert parse_own_json(f"[{10**90}, {'9' * (MAX_OWN_DIGITS + 1)}]") == [10**90, "9" * (MAX_OWN_DIGITS + 1)]
    assert parse_own_json(r'{"\ud800": "\ud83d\ude00 \udfff"}') == {"\ufffd": "\U0001f600 \ufffd"}
    with pytest.raises(ValueError, match="a key occurs twice"):
        parse_own_json('{"a": 1, "a": NaN}')
    with pytest.raises(ValueError, match="nested deeper"):
        parse_own_json("[" * 100_000)


def test_a_list_of_items_of_responses_is_a_conversation(read):
    log = read(
        {"role": "user", "content": "Go."},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "2e30"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]},
    )
    assert [(act.reply.content, act.number) for act in log.acts] == [("", 1), ("Done.", 4)]
    assert [result.stdout for _, result in log.acts[0].results] == ["2e30"]


@pytest.mark.parametrize(
    "beside",
    [
        {"system": "Be brief."}, {"system": [{"type": "text", "text": "Be brief."}]}, {"instructions": "Be brief."},
        {"systemInstruction": {"parts": [{"text": "Be brief."}]}},
    ],
)  # fmt: skip
def test_a_system_prompt_beside_the_messages_is_shown(read, beside):
    log = read({**beside, "messages": [ASKED, {"role": "assistant", "content": "2e30"}]})
    (act,) = log.acts
    assert [(one.role, one.content) for one in act.messages] == [("system", "Be brief."), ("user", ASKED["content"])]
    assert (act.number, log.entries) == (1, 2)


def test_the_command_says_what_is_in_the_run_and_what_is_not(tmp_path, capsys):
    image = {"type": "image_url", "image_url": {"url": "x"}}
    rows = [ASKED, {"role": "assistant", "content": "4", "reasoning": "Hm."}, {"role": "user", "content": [image]}]
    path = tmp_path / "log.json"
    path.write_text(json.dumps(rows))
    assert main(["import", str(path), "--root", str(tmp_path), "--name", "x"]) == 0
    shown = capsys.readouterr().out
    assert "read: 2 texts, 1 thought, 0 calls, 0 results" in shown
    assert f"left out or changed: images (1), {BEHIND} (1)" in shown
    assert "3 messages: 1 action\nno action: messages of a user (2)\n" in shown
    assert main(["import", str(path), "--root", str(tmp_path), "--name", "y", "--json"]) == 0
    (ledger,) = json.loads(capsys.readouterr().out)["ledgers"].values()
    assert ledger == {"texts": 2, "thoughts": 1, "calls": 0, "results": 0, "notes": {"images": 1, BEHIND: 1}}
