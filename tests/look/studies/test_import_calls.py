"""Who acted, which answer a call got, and which calls of models failed, where a log is not as tidy as its schema."""

from __future__ import annotations

import json

import pytest

from mappa.look.importing import LogMapping, import_logs
from mappa.runs import RunReader
from mappa.testing import load_plugins
from mappa_core import InputError

USER = {"role": "user", "content": "How heavy is the sun?"}


def imported(tmp_path, *lines, name="run", **mapped):
    tmp_path.mkdir(exist_ok=True)
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return import_logs(load_plugins(only=("look",)), [path], LogMapping(**mapped), root=tmp_path / "runs", name=name)


def results(made):
    """What tools answered, by action of the only rollout, with their status."""
    with RunReader(made.folder) as reader:
        (row,) = reader.trajectories
        steps = reader.trajectory(row.id).steps
    return [[(result.stdout, result.status) for result in step.results] for step in steps]


# --- who acted --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("empty", ["", "  "])
def test_an_empty_name_is_no_name(tmp_path, empty):
    made = imported(
        tmp_path, {"messages": [{**USER, "name": empty}, {"role": "assistant", "name": empty, "content": "2e30 kg"}]}
    )
    assert made.agents == {"assistant": 1} and made.counts.left_out == {"messages of a user": 1}


def test_an_empty_name_at_the_key_that_says_who_speaks_is_no_name(tmp_path):
    named = {"role": "assistant", "metadata": {"by": " "}, "content": "2e30 kg"}
    made = imported(tmp_path, {"messages": [{**USER, "metadata": {"by": ""}}, named]}, agent_from="metadata.by")
    assert made.agents == {"assistant": 1}
    with pytest.raises(InputError, match=r"line 1: messages\.1\.role: '' is none of"):
        imported(tmp_path, {"messages": [USER, {"role": "", "content": "2e30 kg"}]}, name="other", agent_from="role")


# --- answers of tools -------------------------------------------------------------------------------------------------


def call(identity, q):
    return {"id": identity, "type": "function", "function": {"name": "search", "arguments": json.dumps({"q": q})}}


def calling(*calls):
    return {"role": "assistant", "content": "", "tool_calls": list(calls)}


def answered(identity, text, **more):
    return {"role": "tool", "tool_call_id": identity, "content": text, **more}


DONE = {"role": "assistant", "content": "2e30 kg"}


def test_an_id_that_is_used_again_belongs_to_the_nearest_call_before_the_answer(tmp_path):
    chat = [
        *(USER, calling(call("0", "sun"), call("1", "moon")), answered("1", "moon"), answered("0", "sun")),
        *(calling(call("0", "earth")), answered("0", "lost", is_error=True), answered("0", "again")),
        *(calling(call("0", "mars")), calling(call("0", "venus")), answered("0", "venus"), DONE),
    ]
    assert results(imported(tmp_path, {"messages": chat})) == [
        [("sun", "ok"), ("moon", "ok")], [("lost", "error")], [], [("venus", "ok")], []
    ]  # fmt: skip


def test_answers_without_ids_belong_to_the_calls_without_ids_before_them_in_order(tmp_path):
    def asked(*qs):
        return calling(*({"function": {"name": "search", "arguments": {"q": q}}} for q in qs))

    told = [{"role": "tool", "tool_name": "search", "content": text} for text in ("1", "2", "3")]
    chat = [USER, asked("sun", "moon"), *told, asked("mars"), calling(call("7", "venus")), told[0], asked("sun"), DONE]
    made = imported(tmp_path, {"messages": chat})
    assert results(made) == [[("1", "ok"), ("2", "ok")], [], [], [], []] and made.problems == ()


def test_an_answer_that_lost_its_id_belongs_to_the_call_that_alone_is_left_for_it(tmp_path):
    lost = {"role": "tool", "tool_call_id": None, "content": "2e30"}
    chat = [
        *(USER, calling(call("a", "son")), answered("a", "error: unknown word"), calling(call("b", "sun")), lost),
        *(calling(call("c", "sun"), call("d", "moon")), lost),  # nobody knows which
        *(answered("c", "1"), {**lost, "name": "other"}, {**lost, "name": "search"}, DONE),
    ]
    assert results(imported(tmp_path, {"messages": chat})) == [
        [("error: unknown word", "error")], [("2e30", "ok")], [("1", "ok"), ("2e30", "ok")], []
    ]  # fmt: skip


def test_ids_of_calls_may_be_numbers(tmp_path):
    chat = [USER, calling(call(1, "sun")), calling(call(2, "moon")), answered(2, "7e22"), answered(1, "2e30"), DONE]
    assert results(imported(tmp_path, {"messages": chat})) == [[("2e30", "ok")], [("7e22", "ok")], []]


@pytest.mark.parametrize("nothing", [None, "", False, 0, [], {}, "none", "None", "null"])
def test_an_error_that_says_nothing_is_none(tmp_path, nothing):
    part = {"type": "tool_result", "tool_use_id": "b", "content": "7e22", "error": nothing}
    hosted = {"type": "mcp_call", "id": "m", "name": "f", "arguments": "{}", "output": "5", "error": nothing}
    chat = [
        *(USER, calling(call("a", "sun")), answered("a", "2e30", error=nothing)),
        *(calling(call("b", "moon")), {"role": "user", "content": [part]}, hosted, DONE),
    ]
    assert results(imported(tmp_path, {"messages": chat})) == [[("2e30", "ok")], [("7e22", "ok")], [("5", "ok")], []]


def test_calls_of_one_tool_at_once_get_the_answers_to_their_arguments(tmp_path):
    reply = calling(call("a", "son"), call("b", "sun"))
    asked = {"type": "LLMCall", "agent_id": "r/1", "messages": [USER], "response": {"choices": [{"message": reply}]}}
    done = {"type": "ToolCall", "tool_name": "search", "agent_id": "r/1"}
    # AutoGen logs a call when it has ended.
    ended = [
        {**done, "arguments": {"q": q}, "result": text} for q, text in (("sun", "2e30"), ("son", "error: no word"))
    ]
    assert results(imported(tmp_path, asked, *ended)) == [[("error: no word", "error"), ("2e30", "ok")]]


def test_agents_of_autogen_that_are_no_teams_have_their_own_names(tmp_path):
    ids = ["planner/default", "web_critic/default", "writer_4f/4f"]
    reply = {"choices": [{"message": {"role": "assistant", "content": "2e30"}}]}
    lines = [{"type": "LLMCall", "agent_id": one, "messages": [USER], "response": reply} for one in ids]
    assert imported(tmp_path, *lines).agents == {"planner": 1, "web_critic": 1, "writer": 1}


def test_calls_that_langchain_could_not_parse_are_calls(tmp_path):
    state = [{"type": "human", "content": "Q"}, {"type": "ai", "name": "r", "content": "", "tool_calls": []}]
    state[1]["invalid_tool_calls"] = [{"name": "f", "args": "{bad", "id": "2"}, {"name": None, "args": "", "id": None}]
    made = imported(tmp_path, {"messages": state})
    with RunReader(made.folder) as reader:
        (row,) = reader.trajectories
        (step,) = reader.trajectory(row.id).steps
    assert [(call.name, call.error) for call in step.reply.tool_calls] == [
        ("f", "its arguments are not JSON"), ("unnamed", None)
    ]  # fmt: skip


def span(number, written, shown=(), *, parent=None, operation="chat", status="OK", trace="aa", **attributes):
    """A span of the GenAI conventions that begins in second `number`; `written` None records no output."""
    output = {} if written is None else {"gen_ai.output.messages": json.dumps([written])}
    return {
        "name": f"{operation} m",
        "context": {"trace_id": trace, "span_id": f"{number:02d}"},
        "parent_id": parent,
        "start_time": f"2026-01-01T00:00:{number:02d}Z",
        "end_time": f"2026-01-01T00:00:{number:02d}.500000Z",
        "status": {"status_code": status},
        "attributes": {
            "gen_ai.operation.name": operation,
            "gen_ai.input.messages": json.dumps([said("user", "How heavy?"), *shown]),
            **output,
            **attributes,
        },
    }


def said(role, text):
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def asks(q, identity="0"):
    return {
        "role": "assistant",
        "parts": [{"type": "tool_call", "id": identity, "name": "search", "arguments": {"q": q}}],
    }


def tells(text, identity="0"):
    return {"role": "tool", "parts": [{"type": "tool_call_response", "id": identity, "response": text}]}


def test_spans_that_use_an_id_again_get_the_answer_behind_their_own_call(tmp_path):
    first, second, other = [asks("sun"), tells("1")], [asks("moon"), tells("2")], [asks("mars"), tells("3")]
    spans = [
        span(0, asks("sun")),
        span(1, asks("mars")),  # another agent, with ids of its own
        span(2, said("assistant", "Mars."), other),
        span(3, asks("moon"), first),
        span(4, asks("moon"), [*first, *second]),  # the same call again
        span(5, asks("venus"), [*first, *second, asks("moon"), tells("4")]),
        span(6, said("assistant", "Done."), [*first, *second, asks("moon"), tells("4")]),
    ]
    found = results(imported(tmp_path, *spans))
    assert found == [[("1", "ok")], [("3", "ok")], [], [("2", "ok")], [("4", "ok")], [], []]


def test_an_answer_from_before_the_trace_is_none_to_a_call_in_it(tmp_path):
    before = [asks("sun"), tells("old")]
    spans = [span(0, asks("moon"), before), span(1, said("assistant", "?"), [*before, asks("moon"), tells("new")])]
    assert results(imported(tmp_path, *spans)) == [[("new", "ok")], []]


def test_answers_are_found_where_models_are_shown_them_without_the_calls(tmp_path):
    spans = [span(0, asks("sun")), span(1, asks("moon"), [tells("1")]), span(2, said("assistant", "?"), [tells("2")])]
    assert results(imported(tmp_path, *spans)) == [[("1", "ok")], [("2", "ok")], []]
    spans = [span(0, asks("sun", "x")), span(1, asks("moon", "y"), [tells("1", "x")]), span(2, said("assistant", "?"))]
    assert results(imported(tmp_path / "unique", *spans)) == [[("1", "ok")], [], []]


# --- calls that failed ------------------------------------------------------------------------------------------------


def openinference(number, kind, *, status="OK", parent="00", **attributes):
    made = span(number, None, status=status, parent=parent)
    named = {key.replace("__", "."): value for key, value in attributes.items()}
    return {**made, "attributes": {"openinference.span.kind": kind, **named}}


def test_a_call_of_a_model_that_failed_is_counted_and_no_action(tmp_path):
    spans = [
        span(0, None, operation="invoke_agent", **{"gen_ai.agent.name": "planner"}),
        span(1, None, parent="00", status="ERROR", **{"error.type": "RateLimitError"}),
        span(2, said("assistant", "2e30 kg"), parent="00"),
    ]
    made = imported(tmp_path, *spans)
    assert made.agents == {"planner": 1}
    assert made.counts.left_out == {"agents around what models wrote": 1, "calls of a model that failed": 1}


def test_a_failed_call_of_openinference_is_counted_too(tmp_path):
    told = {"llm__output_messages__0__message__role": "assistant", "llm__output_messages__0__message__content": "Yes."}
    asked = {"llm__input_messages__0__message__role": "user", "llm__input_messages__0__message__content": "Heavy?"}
    spans = [
        {**openinference(0, "AGENT", parent=None, input__value="Heavy?", output__value="Sorry."), "name": "planner"},
        openinference(1, "LLM", status="ERROR", **asked),
        openinference(2, "LLM", **asked, **told),
    ]
    made = imported(tmp_path, *spans)
    assert (made.agents, made.counts.left_out["calls of a model that failed"]) == ({"planner": 1}, 1)
    alone = imported(tmp_path / "alone", *spans[:2])
    assert (alone.agents, alone.counts.left_out) == ({"planner": 1}, {"calls of a model that failed": 1})


def test_a_trace_of_failed_calls_alone_has_no_action_and_others_are_imported(tmp_path):
    good = span(3, said("assistant", "2e30 kg"), trace="bb")
    bad = [span(0, None, operation="invoke_agent"), span(1, None, parent="00", status="ERROR")]
    made = imported(tmp_path, *bad, good)
    assert (made.trajectories, made.counts.without_action) == (1, 1)
    with pytest.raises(InputError, match=r"no entry in it is an action of a model: .*1 calls of a model that failed"):
        imported(tmp_path / "bad", *bad)


def test_a_call_without_an_output_that_did_not_fail_is_refused(tmp_path):
    spans = [span(0, said("assistant", "2e30 kg")), span(1, None)]
    with pytest.raises(InputError, match=r"line 2: span 'chat m': gen_ai\.output\.messages: is not there"):
        imported(tmp_path, *spans)
