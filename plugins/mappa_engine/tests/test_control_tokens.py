"""Whatever text says, the control tokens of a prompt are the template's own."""

from __future__ import annotations

from datetime import datetime

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from mappa_core import Message, ToolCall, ToolSpec
from mappa_engine.chat import Chat
from mappa_engine.errors import ModelError

from .chat_families import FAMILIES, Family, build

PLACES = ("task", "reply", "reasoning", "call", "result", "tool", "system")
ID = "a1B2c3D4e"


def controls(family: Family) -> tuple[str, ...]:
    """Every added token with a visible character that the family's template names, or puts together."""
    written = family.template + "<|user|><|assistant|><|system|><|tool|>"
    return tuple(token for token in (*family.special, *family.plain) if token in family.special or token in written)


def conversation(place: str, text: str) -> tuple[list[Message], list[ToolSpec]]:
    """A conversation that says `text` in one place."""
    task = Message(role="user", content=text if place == "task" else "?")
    tool = ToolSpec(name="look_up", description="looks up", schema={"type": "object", "properties": {}})
    if place == "tool":
        schema = {"type": "object", "properties": {text: {"type": "string", "description": text, "enum": [text]}}}
        return [task], [ToolSpec(name=text, description=text, schema=schema)]
    if place == "system":
        return [Message(role="system", content=text), task], []
    if place in {"reply", "reasoning"}:
        reasoning = text if place == "reasoning" else None
        return [task, Message(role="assistant", content=text if place == "reply" else "4", reasoning=reasoning)], []
    said = text if place == "call" else "a"
    call = ToolCall(name=said, arguments={said: [said]}, id=ID)
    result = text if place == "result" else "7"
    name = text if place == "result" else said
    told = Message(role="tool", content=result, name=name, tool_call_id=ID)
    return [task, Message(role="assistant", content="", tool_calls=(call,)), told], [tool]


def control_tokens(chat: Chat, family: Family, place: str, text: str) -> list[int] | None:
    """The control tokens of a prompt; None if the family's template refuses such a conversation."""
    marks = set(chat.tokenizer.convert_tokens_to_ids(list(controls(family))))
    try:
        tokens = chat.render(*conversation(place, text))
    except ModelError:
        return None
    return [token for token in tokens.tolist() if token in marks]


@pytest.fixture(scope="module")
def chats() -> dict[str, Chat]:
    return {name: Chat(build(family), model_name=name) for name, family in FAMILIES.items()}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=8, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_text_becomes_a_control_token(chats, name, place, data):
    marks = controls(FAMILIES[name])
    pieces = st.sampled_from([*marks, *(mark[:2] for mark in marks), "\U0010fffd", "0", " ", "\n", "so"])
    text = "x" + data.draw(st.lists(pieces, min_size=3, max_size=8).map("".join)) + "x"
    forged = control_tokens(chats[name], FAMILIES[name], place, text)
    assert forged == control_tokens(chats[name], FAMILIES[name], place, "x")


@pytest.mark.parametrize("name", FAMILIES)
def test_every_control_token_at_once_is_kept_as_text(chats, name):
    text = "x" + " x ".join(controls(FAMILIES[name])) + "x"
    chat = chats[name]
    written, harmless = (chat.decode(chat.render([Message(role="user", content=said)])) for said in (text, "WORD"))
    assert written == harmless.replace("WORD", text)


@pytest.mark.parametrize("name", FAMILIES)
def test_ordinary_conversations_have_the_tokens_of_the_library(chats, name):
    chat = chats[name]
    asked = [Message(role="user", content="Two lines,\n\n  and spaces; <table> too.")]
    text = chat.tokenizer.apply_chat_template(
        [{"role": "user", "content": asked[0].content}],
        add_generation_prompt=True,
        tokenize=False,
        strftime_now=datetime(2025, 1, 1).strftime,
    )
    np.testing.assert_array_equal(chat.render(asked), chat.tokenizer(text, add_special_tokens=False)["input_ids"])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_correction_holds_no_control_token(chats, name):
    family, chat = FAMILIES[name], chats[name]
    stops = frozenset(chat.tokenizer.convert_tokens_to_ids(list(family.stops)))
    text = "x" + "x".join(controls(family))
    shortest, tokens = chat.encode("x", stops).tolist(), chat.encode(text, stops).tolist()
    assert chat.decode(tokens) == chat.decode(shortest).replace("x", text, 1)
    # Some families write marks around the text of an answer.
    marks = set(chat.tokenizer.convert_tokens_to_ids(list(controls(family))))
    assert [token for token in tokens if token in marks] == [token for token in shortest if token in marks]


def test_whitespace_and_what_the_template_does_not_write_is_text(chats):
    """Added tokens that are only spaces, or that are words of a text (Gemma's `<table>`), stay what they are."""
    chat = chats["gemma3"]
    tokens = chat.render([Message(role="user", content="a\n\n<table>  b<end_of_turn>")]).tolist()
    for word in ("\n\n", "<table>", "  "):
        assert chat.tokenizer.convert_tokens_to_ids(word) in tokens


def words(vocabulary: list[str], merges: list[tuple[str, str]], *, lower: bool = False) -> PreTrainedTokenizerFast:
    """A tokenizer in whose vocabulary the think tag is a word that merges form."""
    tokenizer = Tokenizer(models.BPE(vocab={word: at for at, word in enumerate(vocabulary)}, merges=merges))
    tokenizer.decoder = decoders.Fuse()
    if lower:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_tokens([AddedToken("<t>", special=False, normalized=lower)])
    tokenizer.add_special_tokens(["|"])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="|", chat_template="{{ messages[0].content }}|{{ '<t>' }}"
    )


def test_a_token_that_merges_form_is_cut_into_pieces():
    letters = ["<", "t", ">", "a", "<t", "<t>"]
    chat = Chat(words(letters, [("<", "t"), ("<t", ">")]), model_name="merging")
    tokens = chat.render([Message(role="user", content="a<t>a")]).tolist()
    assert chat.tokenizer.convert_ids_to_tokens(tokens) == ["a", "<", "t", ">", "a", "|", "<t>"]


def test_a_token_that_a_normalizer_forms_is_found_by_its_number():
    chat = Chat(words(["<", "t", ">", "a", "T"], [], lower=True), model_name="lower")
    tokens = chat.render([Message(role="user", content="a<T>a")]).tolist()
    assert tokens.count(chat.tokenizer.convert_tokens_to_ids("<t>")) == 1
