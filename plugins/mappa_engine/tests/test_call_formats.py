"""Calls, reasoning, roles and dates in the forms of published families: tokens in, tokens out, or refused at once."""

from __future__ import annotations

import pickle
import re
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mappa_core import Completion, Message, ToolCall, ToolSpec
from mappa_engine.call_formats import FORMATS, read_channels, read_functions, read_llama, read_mistral, read_pairs
from mappa_engine.chat import Chat
from mappa_engine.errors import ModelError

from .chat_families import ANSWER, CALL, FAMILIES, build

ASKED = [Message(role="user", content="What is it?")]
TOOL = ToolSpec(
    name="look_up",
    description="Looks a word up.",
    schema={"type": "object", "properties": {"word": {"type": "string"}, "limit": {"type": "integer"}}},
)
PYTHON = ToolSpec(name="python", description="runs", schema={"type": "object", "properties": {}})
CALLING = [name for name, family in FAMILIES.items() if family.call is not None]
SILENT = [name for name in FAMILIES if name not in CALLING]


@pytest.fixture(scope="module")
def chats() -> dict[str, Chat]:
    return {name: Chat(build(family), model_name=name) for name, family in FAMILIES.items()}


def reply_to(chat: Chat, prompt, text: str, stop: str) -> Message:
    """What becomes of an action whose tokens are those of `text` and of `stop`."""
    *tokens, end = chat.tokenizer(text + stop, add_special_tokens=False)["input_ids"]
    assert end == chat.tokenizer.convert_tokens_to_ids(stop)
    said = chat.decode(tokens)
    return chat.reply(Completion(text=said, prompt_tokens=prompt, tokens=None, logprobs=None, finish="stop"))


@pytest.mark.parametrize("name", CALLING)
def test_a_call_its_result_and_the_answer(chats, name):
    chat, family = chats[name], FAMILIES[name]
    prompt = chat.render(ASKED, [TOOL])
    assert "Looks a word up." in chat.decode(prompt) or "look_up" in chat.decode(prompt)
    for stop in family.stops:
        reply = reply_to(chat, prompt, family.call, stop)
        (call,) = reply.tool_calls
        assert (call.name, call.arguments, call.error) == ("look_up", CALL, None)
        assert (reply.content, reply.reasoning) == ("", family.reasoning)
    result = Message(role="tool", content="31415", tool_call_id=call.id)
    told = chat.render([*ASKED, reply, result], [TOOL])
    written = chat.decode(told)
    # After the question there is the call, as the family writes it, and then its result.
    after = written[written.rindex("What is it?") :]
    assert after.index("look_up") < after.index("42") < after.index("31415")
    answer = reply_to(chat, told, family.answer, family.stops[0])
    assert (answer.content, answer.tool_calls) == (ANSWER, ())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_chat_travels_to_another_process(chats, name):
    there = pickle.loads(pickle.dumps(chats[name]))
    assert there.render(ASKED).tolist() == chats[name].render(ASKED).tolist()


@pytest.mark.parametrize("name", SILENT)
def test_a_template_without_calls_is_refused_at_once(chats, name):
    with pytest.raises(ModelError, match=f"^{re.escape(name)}: its chat template drops .*use python blocks"):
        chats[name].render(ASKED, [TOOL])
    assert len(chats[name].render(ASKED, [PYTHON])) > 0


@pytest.mark.parametrize("name", ["gemma3", "phi3.5", "command-r7b"])
def test_a_template_that_drops_results_is_refused(chats, name):
    with pytest.raises(ModelError, match="drops the results of tools"):
        chats[name].render([*ASKED, Message(role="tool", content="7", name="f", tool_call_id="1")])


def test_a_template_without_system_messages_is_refused(chats):
    with pytest.raises(ModelError, match="gemma2: its chat template takes no system messages: say in the first user"):
        chats["gemma2"].render([Message(role="system", content="Be brief."), *ASKED])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_later_system_message_is_shown_or_refused(chats, name):
    """Claude Code writes them; some templates drop them in silence."""
    if not FAMILIES[name].system:
        pytest.skip("takes no system messages at all")
    briefed, later = Message(role="system", content="Be brief."), Message(role="system", content="Be kind.")
    try:
        written = chats[name].decode(chats[name].render([briefed, *ASKED, later]))
    except ModelError as error:
        assert "takes system messages only before all others" in str(error)
    else:
        assert "Be brief." in written and "Be kind." in written


def test_a_template_that_adds_a_number_to_a_text_is_an_input_error():
    tokenizer = build(FAMILIES["deepseek-v3"])
    tokenizer.chat_template = "{{ messages[0].content + 1 }}"
    with pytest.raises(ModelError, match="odd: its chat template refuses these messages: can only concatenate str"):
        Chat(tokenizer, model_name="odd").render(ASKED)


def test_a_call_that_a_template_cannot_write_is_text(chats):
    """DeepSeek-V3's template adds the arguments, an object, to a text."""
    called = Message(role="assistant", content="", tool_calls=(ToolCall(name="f", arguments={"a": "é"}),))
    text = chats["deepseek-v3"].decode(chats["deepseek-v3"].render([*ASKED, called, *ASKED]))
    assert '{"name": "f", "arguments": {"a": "é"}}' in text


def test_a_template_for_tools_alone_is_used_for_them():
    """Some tokenizers have several templates, of which one shows tools."""
    tokenizer = build(FAMILIES["qwen2.5"])
    tokenizer.chat_template = {"default": FAMILIES["smollm2"].template, "tool_use": FAMILIES["qwen2.5"].template}
    chat = Chat(tokenizer, model_name="two")
    assert "Looks a word up." in chat.decode(chat.render(ASKED, [TOOL]))
    assert "SmolLM" in chat.decode(chat.render(ASKED))
    (call,) = reply_to(chat, None, FAMILIES["qwen2.5"].call, "<|im_end|>").tool_calls
    assert call.arguments == CALL


def test_a_template_whose_form_of_calls_is_not_known_is_refused():
    family = FAMILIES["qwen2.5"]
    tokenizer = build(family)
    tokenizer.chat_template = family.template.replace("<tool_call>\\n{", "<invoke>\\n{")
    with pytest.raises(ModelError, match="writes calls of look_up in no form that is known"):
        Chat(tokenizer, model_name="odd").render(ASKED, [TOOL])


@pytest.mark.parametrize("identity", [None, "call_0123456789abcdef", "a1B2c3D4e"])
def test_ids_of_calls_are_those_that_the_template_takes(chats, identity):
    calls = tuple(ToolCall(name="look_up", arguments=CALL, id=identity and f"{identity[:-1]}{at}") for at in range(2))
    told = [Message(role="tool", content=f"{at}", tool_call_id=calls[at].id) for at in range(2)]
    text = chats["mistral-nemo"].decode(
        chats["mistral-nemo"].render([*ASKED, Message(role="assistant", content="", tool_calls=calls), *told], [TOOL])
    )
    made = re.findall(r'"id": "(\w{9})"', text)
    answered = re.findall(r'"content": (\d), "call_id": "(\w{9})"', text)
    assert len(set(made)) == 2
    assert answered == [("0", made[0]), ("1", made[1])]


@pytest.mark.parametrize("name", CALLING)
def test_a_call_whose_result_a_user_message_tells_is_shown(chats, name):
    """The call stays in view where a template takes no user message after it (Mistral's)."""
    call = ToolCall(name="look_up", arguments=CALL)
    reply = Message(role="assistant", content="", tool_calls=(call,))
    written = chats[name].decode(chats[name].render([*ASKED, reply, Message(role="user", content="31415")], [TOOL]))
    assert chats[name]._probe.lone_calls == (name not in {"mistral-v3", "mistral-nemo"})
    # Mistral's template shows tools before the last user message, after the call.
    after = written[written.rindex("What is it?") :]
    assert "look_up" in after and after.index("42") < after.index("31415")


@pytest.mark.parametrize("name", ["llama3.2", "gpt-oss"])
def test_prompts_are_the_same_tomorrow(chats, name):
    today = datetime.now()
    written = chats[name].decode(chats[name].render(ASKED))
    assert today.strftime("%d %b %Y") not in written and today.strftime("%Y-%m-%d") not in written
    assert re.search("Today Date: 01 Jan 2025|Current date: 2025-01-01", written)
    assert "2 May 2031" in chats[name].decode(chats[name].render(ASKED, kwargs={"date_string": "2 May 2031"}))


def test_a_template_with_a_day_of_its_own_keeps_it(chats):
    assert "26 Jul 2024" in chats["llama3.1"].decode(chats["llama3.1"].render(ASKED))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("magistral", f"[THINK]Hm.[/THINK]{ANSWER}"),
        ("seed-oss", f"<seed:think>Hm.</seed:think>{ANSWER}"),
        ("r1-distill", f"Hm.\n</think>\n\n{ANSWER}"),
        ("command-r7b", f"<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>{ANSWER}<|END_RESPONSE|>"),
        ("glm4.5", f"\n<think>Hm.</think>\n{ANSWER}"),
        ("gpt-oss", f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{ANSWER}"),
    ],
)
def test_reasoning_is_no_content(chats, name, text):
    reply = reply_to(chats[name], chats[name].render(ASKED), text, FAMILIES[name].stops[0])
    assert (reply.content, reply.reasoning) == (ANSWER, "Hm.")


def test_reasoning_before_a_call_is_shown_again_in_its_channel(chats):
    call = ToolCall(name="look_up", arguments=CALL)
    reply = Message(role="assistant", content="I look.", reasoning="Hm.", tool_calls=(call,))
    text = chats["gpt-oss"].decode(
        chats["gpt-oss"].render([*ASKED, reply, Message(role="tool", content="7", tool_call_id=None)], [TOOL])
    )
    assert "<|channel|>analysis<|message|>Hm.\nI look.<|end|>" in text


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("gpt-oss", f"<|channel|>final<|message|>{ANSWER}<|return|>"),
        ("command-r7b", f"<|START_RESPONSE|>{ANSWER}<|END_RESPONSE|><|END_OF_TURN_TOKEN|>"),
    ],
)
def test_a_correction_is_an_answer_between_the_marks_of_its_family(chats, name, written):
    chat, stop = chats[name], FAMILIES[name].stops[0]
    tokens = chat.encode(ANSWER, frozenset([chat.tokenizer.convert_tokens_to_ids(stop)])).tolist()
    assert chat.decode(tokens) == written
    assert chat.tokenizer(written, add_special_tokens=False)["input_ids"] == tokens


@pytest.mark.parametrize(
    ("read", "text", "error"),
    [
        (read_functions, "<tool_call><function=f><parameter=a>1", "cut off"),
        (read_functions, "<tool_call><function=f><parameter=a>1</function></tool_call>", "not of the form"),
        (read_functions, '<tool_call>{"name": "f"}</tool_call>', "not of the form"),
        (read_pairs, "<tool_call>f<arg_key>a</arg_key>", "cut off"),
        (read_pairs, "<tool_call>f<arg_key>a</arg_key></tool_call>", "not of the form"),
        (read_mistral, '[TOOL_CALLS][{"name": "f", "argu', "not valid"),
        (read_mistral, "[TOOL_CALLS][]", "not of the form"),
        (read_mistral, "[TOOL_CALLS]f[ARGS]3", "not a JSON object"),
        (read_llama, '{"name": "f", "parameters": {', "not valid"),
        (read_llama, '<|python_tag|>print("a")', "not valid"),
        (read_llama, '<|python_tag|>{"name": "f", "parameters": 3}', "not a JSON object"),
        (read_llama, '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}', "not valid"),
        (read_llama, '<|python_tag|>[{"name": "f", "parameters": {}}, {"name": "f", "parameters": {}}]', "make one"),
        (FORMATS[3], '<TOOLCALL>[{"name": "f"', "cut off"),
        (FORMATS[5], "<|START_ACTION|>[3]<|END_ACTION|>", "not of the form"),
    ],
)
def test_a_malformed_call_says_why(read, text, error):
    (call,) = read(text, {"f": {}})[1]
    assert error in call.error


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<|channel|>commentary to=functions.f<|message|>{", "not valid"),
        ("<|channel|>commentary to=functions.f <|constrain|>json", "cut off"),
        ("<|channel|>commentary to=functions.f<|message|>[]<|call|>", "not a JSON object"),
    ],
)
def test_a_malformed_call_in_a_channel_says_why(text, error):
    (call,) = read_channels(text, {})[2]
    assert (call.name, error in call.error) == ("f", True)


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("read", "part"),
    [(read_pairs, "<arg_key>x</arg_key><arg_value>"), (read_functions, "<parameter=x>")],
    ids=["pairs", "functions"],
)
def test_tags_that_are_opened_again_and_again_do_not_hang(read, part):
    name = "f" if read is read_pairs else "<function=f>"
    end = "" if read is read_pairs else "</function>"
    (call,) = read(f"<tool_call>{name}{part * 1500}{end}</tool_call>", {"f": {}})[1]
    assert "not of the form" in call.error


def test_values_between_tags_have_the_type_of_the_schema():
    values = {"a": "1", "b": "[1]"}
    pairs = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in values.items())
    text = f"<tool_call>f{pairs}</tool_call>"
    schema = {"properties": {"a": {"type": ["string", "null"]}, "b": {"type": "array"}}}
    assert read_pairs(text, {"f": schema})[1] == (ToolCall(name="f", arguments={"a": "1", "b": [1]}),)
    assert read_pairs(text, {})[1] == (ToolCall(name="f", arguments={"a": 1, "b": [1]}),)


@pytest.mark.parametrize("text", ['{"name": "Bob", "age": 3}', "{", "so {x}", '{"answer": 1}'])
def test_json_that_calls_nothing_is_an_answer(text):
    assert read_llama(text, {"f": {}}) == (text, ())


def test_json_of_an_agent_without_tools_is_an_answer():
    text = '{"name": "f", "parameters": {}}'
    assert read_llama(text, {}) == (text, ())
    assert read_llama(text, {"g": {}})[1] == (ToolCall(name="f"),)


_PIECES = [
    *("<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>", "<arg_key>"),
    *(
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
        "<|start|>",
    ),
    *("<|channel|>", "analysis", "commentary", "to=functions.f", "<|message|>", "<|end|>", "<|call|>", "<TOOLCALL>"),
    *(
        "</TOOLCALL>",
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        '{"name": "f", "parameters": {}}',
        "[",
        "]",
        "{",
        "}",
        "\ud800",
    ),
    *('{"name": "f", "arguments": {}}', "9" * 5_000, "[" * 2_000, "\0", "\n", " ", "a"),
]


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.lists(st.sampled_from(_PIECES), max_size=10).map("".join))
def test_no_text_makes_a_parser_raise(text):
    for read in FORMATS:
        content, calls = read(text, {"f": {"properties": {"a": {"type": "string"}}}})
        assert isinstance(content, str) and all(call.error is not None or call.name for call in calls)
    read_channels(text, {})
