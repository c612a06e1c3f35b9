"""What messages hold, in the forms of providers and libraries: texts, thoughts, calls, answers, and what is noted."""

from __future__ import annotations

import json

import pytest

from mappa.look.importing.content import (
    CITATIONS,
    ENCRYPTED,
    ENCRYPTED_RESULTS,
    ODD_NUMBERS,
    read_answer,
    read_content,
)
from mappa.look.importing.log_mapping import LogFormatError
from mappa.look.importing.message_forms import ROLES, find_role, group_items, merge_messages, read_message, unwrap


def message(*raws):
    """Messages of one reply, as text, thought, calls, answers and notes."""
    ((_, group),) = group_items([unwrap(raw) for raw in raws])
    read = [read_message(raw, ROLES[find_role(raw)], None, "m", "content") for raw in group]
    content = merge_messages(read).content
    calls = [(call.name, dict(call.arguments), call.error) for call in content.calls]
    answers = [(answer.text, answer.call, answer.failed) for answer in content.answers]
    return content.text, content.thinking, calls, answers, dict(content.notes)


def assistant(*parts, **more):
    return {"role": "assistant", "content": list(parts), **more}


def item(kind, **more):
    return {"type": kind, **more}


SEARCH = {"q": "sun"}
REPLIES = {
    "Anthropic: a search of the provider": (
        [
            assistant(
                item("server_tool_use", id="s1", name="web_search", input=SEARCH),
                item(
                    "web_search_tool_result",
                    tool_use_id="s1",
                    content=[item("web_search_result", title="Sun", url="u", encrypted_content="xx")],
                ),
                item("text", text="Heavy.", citations=[{"cited_text": "2e30"}]),
            )
        ],
        ("Heavy.", "", [("web_search", SEARCH, None)],
         [('[{"type": "web_search_result", "title": "Sun", "url": "u"}]', "s1", False)],
         {CITATIONS: 1, ENCRYPTED_RESULTS: 1}),
    ),
    "Anthropic: a search that failed": (
        [
            assistant(
                item("server_tool_use", id="s1", name="web_search", input=SEARCH),
                item(
                    "web_search_tool_result",
                    tool_use_id="s1",
                    content=item("web_search_tool_result_error", error_code="max_uses_exceeded"),
                ),
            )
        ],
        ("", "", [("web_search", SEARCH, None)],
         [('{"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"}', "s1", True)], {}),
    ),
    "Anthropic: MCP, code and a thought without its text": (
        [
            assistant(
                item("thinking", thinking="", signature="sig"),
                item("mcp_tool_use", id="m1", name="echo", server_name="s", input={"a": 1}),
                item("mcp_tool_result", tool_use_id="m1", is_error=False, content=[item("text", text="1")]),
                item("server_tool_use", id="k1", name="code_execution", input={"code": "1/0"}),
                item(
                    "code_execution_tool_result",
                    tool_use_id="k1",
                    content=item("code_execution_result", stdout="", stderr="ZeroDivisionError", return_code=1),
                ),
            )
        ],
        ("", "", [("echo", {"a": 1}, None), ("code_execution", {"code": "1/0"}, None)],
         [("1", "m1", False),
          ('{"type": "code_execution_result", "stdout": "", "stderr": "ZeroDivisionError", "return_code": 1}', "k1",
           True)],
         {ENCRYPTED: 1}),
    ),
    "Responses: a custom tool, code with its logs, a picture": (
        [
            item("reasoning", summary=[], content=[item("reasoning_text", text="Run it.")], encrypted_content="xx"),
            item("custom_tool_call", call_id="c1", name="sql", input="select 1"),
            item("code_interpreter_call", id="c2", code="1+1", container_id="k", outputs=[item("logs", logs="2")]),
            item("image_generation_call", id="c3", result="base64", revised_prompt="a sun"),
        ],
        ("", "Run it.",
         [("sql", {"input": "select 1"}, None),
          ("code_interpreter", {"code": "1+1", "container_id": "k"}, None),
          ("image_generation", {"revised_prompt": "a sun"}, None)],
         [('[{"type": "logs", "logs": "2"}]', "c2", False)], {ENCRYPTED: 1, "images": 1}),
    ),
    "Responses: MCP that failed, a refusal": (
        [
            item("mcp_call", id="c1", name="roll", server_label="s", arguments='{"n": 2}', output=None, error="down"),
            item("message", role="assistant", content=[item("refusal", refusal="I cannot.")]),
        ],
        ("I cannot.", "", [("roll", {"n": 2}, None)], [("down", "c1", True)], {}),
    ),
    "Gemini: code": (
        [
            {
                "role": "model",
                "parts": [
                    {"executableCode": {"language": "PYTHON", "code": "print(1)"}},
                    {"codeExecutionResult": {"outcome": "OUTCOME_FAILED", "output": "boom"}},
                    {"text": "It failed."},
                ],
            }
        ],
        ("It failed.", "", [("code_execution", {"language": "PYTHON", "code": "print(1)"}, None)],
         [("boom", None, True)], {}),
    ),
    "OpenAI: sound, a refusal, a custom tool and the old form of a call": (
        [
            {
                "role": "assistant", "content": None, "refusal": "No.", "audio": {"id": "a", "transcript": "Spoken."},
                "function_call": {"name": "f", "arguments": '{"x": NaN}'},
            }
        ],
        ("No.\nSpoken.", "", [("f", {"x": "NaN"}, None)], [], {ODD_NUMBERS: 1}),
    ),
    "OpenRouter: one thought under two keys, and a cipher": (
        [
            assistant(
                item("text", text="4"), reasoning="2+2 is 4",
                reasoning_details=[
                    item("reasoning.text", text="2+2 is 4"), item("reasoning.encrypted", data="xx"),
                    item("reasoning.summary", summary="Sums."),
                ],
            )
        ],
        ("4", "2+2 is 4\nSums.", [], [], {ENCRYPTED: 1}),
    ),
    "LangChain: blocks of version 1": (
        [
            {
                "type": "ai",
                "content": [
                    item("reasoning", reasoning="Hm.", extras={"signature": "s"}),
                    item("server_tool_call", id="s1", name="web_search", args=SEARCH),
                    item("server_tool_result", tool_call_id="s1", status="error", output="down"),
                    item("invalid_tool_call", id="c1", name="f", args="{", error="broken off"),
                    item("non_standard", value=item("tool_use", id="c2", name="g", input={})),
                    item("text-plain", text="notes", mime_type="text/plain"),
                    item("video", url="u"),
                ],
                "invalid_tool_calls": [{"id": "c1", "name": "f", "args": "{", "error": "broken off"}],
            }
        ],
        ("notes\n[video]", "Hm.",
         [("f", {"arguments": "{"}, "its arguments are not JSON"), ("web_search", SEARCH, None), ("g", {}, None)],
         [("down", "s1", True)], {"videos": 1}),
    ),
    "LangChain: a call of a provider in `additional_kwargs`": (
        [
            {
                "lc": 1, "type": "constructor", "id": ["langchain_core", "messages", "AIMessageChunk"],
                "kwargs": {
                    "content": "",
                    "additional_kwargs": {
                        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                        "reasoning": {"summary": [item("summary_text", text="Short.")], "encrypted_content": "xx"},
                    },
                },
            }
        ],
        ("", "Short.", [("f", {}, None)], [], {ENCRYPTED: 1}),
    ),
    "GenAI: a tool of the provider, files": (
        [
            {
                "role": "assistant",
                "parts": [
                    item("server_tool_call", id="s1", name="search", server_tool_call=item("search", query="sun")),
                    item("server_tool_call_response", id="s1", server_tool_call_response=item("search", hits=2)),
                    item("uri", modality="video", uri="gs://x"), item("file", modality="audio", file_id="f"),
                    item("reasoning", content="Hm."),
                ],
            }
        ],
        ("[uri]\n[file]", "Hm.", [("search", {"query": "sun"}, None)],
         [('{"type": "search", "hits": 2}', "s1", False)], {"videos": 1, "pieces of audio": 1}),
    ),
    "inspect_ai: a tool of the provider": (
        [
            assistant(
                item("tool_use", tool_type="x", id="s1", name="search", arguments='{"q": "sun"}', result="2e30"),
                item("data", data={"x": 1}),
            )
        ],
        ("[data]", "", [("search", SEARCH, None)], [("2e30", "s1", False)], {"parts of the type data": 1}),
    ),
    "Mistral: a thought in parts": (
        [assistant(item("thinking", thinking=[item("text", text="Hm.")]), item("text", text="4"))],
        ("4", "Hm.", [], [], {}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("raws, holds", REPLIES.values(), ids=REPLIES)
def test_a_reply_is_read_whole_and_what_is_left_out_is_noted(raws, holds):
    assert message(*raws) == holds


ANSWERS = {
    "text": ("2e30 kg", "2e30 kg", {}, False),
    "data": ({"kg": 2e30, "é": True}, '{"kg": 2e+30, "é": true}', {}, False),
    "data with the type of a part": (
        [{"type": "file", "name": "a.txt"}, {"type": "text", "text": "x", "score": 0.5}],
        '[{"type": "file", "name": "a.txt"}, {"type": "text", "text": "x", "score": 0.5}]', {}, False,
    ),
    "parts of MCP": (
        [item("text", text="a"), item("image", data="xx", mimeType="image/png"),
         item("resource", resource={"uri": "u", "text": "b"})],
        "a\n[image]\nb", {"images": 1}, False,
    ),
    "an answer of MCP that failed": ({"content": [], "isError": True}, '{"content": [], "isError": true}', {}, True),
    "a screen": (item("computer_screenshot", image_url="data:xx"), "[computer_screenshot]", {"images": 1}, False),
}  # fmt: skip


@pytest.mark.parametrize("raw, text, notes, failed", ANSWERS.values(), ids=ANSWERS)
def test_an_answer_is_text_and_data_stay_data(raw, text, notes, failed):
    assert read_answer(raw) == (text, notes, failed)


@pytest.mark.parametrize("raw", [7, [None], [{"x": 1}], [{"type": "text", "text": 7}]])
def test_what_is_no_content_is_refused_with_its_place(raw):
    with pytest.raises(LogFormatError, match=r"^messages\.1\.content"):
        read_content(raw, "messages.1.content")


def test_a_document_is_its_text_or_a_file():
    told = read_content([item("document", source={"type": "text", "data": "All of it."}), item("document")], "c")
    assert (told.text, told.notes) == ("All of it.\n[document]", {"files": 1})
    nested = item("document", source={"type": "content", "content": [item("text", text="In parts.")]})
    found = item("search_result", title="Sun", source="u", content=[item("text", text="Heavy.")])
    assert read_content([nested, found], "c").text == "In parts.\nSun\nu\nHeavy."


def test_whole_numbers_of_any_length_are_kept():
    (_, _, ((_, arguments, error),), _, _) = message(
        assistant(tool_calls=[{"function": {"name": "f", "arguments": json.dumps({"n": 10**90, "long": 7})}}])
    )
    assert (arguments, error) == ({"n": 10**90, "long": 7}, None)
