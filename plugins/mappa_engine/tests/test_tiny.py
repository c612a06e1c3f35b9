"""The small model that comes with core: made on what it is shown in use, and able to act from the first action on."""

from __future__ import annotations

import asyncio
from itertools import islice
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core import Message, Sampling
from mappa_core.engine import PolicySpec
from mappa_engine.local import LocalEngine
from mappa_engine.model_info import read_model_info
from mappa_engine.options import LocalOptions
from mappa_engine.tiny.dialogues import choice_dialogues, echo_dialogues
from mappa_engine.tiny.make_model import build_untrained_model

MODEL = "package:mappa_engine/models/tiny"
CALL = '<tool_call>{"name": "look", "arguments": {"word": "tide"}}</tool_call>'


@pytest.fixture(scope="module")
def chat():
    return read_model_info(MODEL).chat


@pytest.mark.parametrize("talks", [echo_dialogues, choice_dialogues])
def test_tiny_model_was_trained_on_its_template(chat, talks):
    model = build_untrained_model()
    for talk in islice(talks(Random(1)), 20):
        shown = model.encode(talk)
        text = chat.tokenizer.apply_chat_template(
            [{"role": message.role, "content": message.content} for message in talk], tokenize=False
        )
        assert shown.tokens == chat.tokenizer(text, add_special_tokens=False)["input_ids"]
        rendered = chat.render(talk[:1])
        np.testing.assert_array_equal(rendered, shown.tokens[: len(rendered)])
        assert shown.loss_mask == [False] * len(rendered) + [True] * (len(shown.tokens) - len(rendered))


def test_tiny_model_answers_with_an_offered_line():
    for question, answer in islice(choice_dialogues(Random(2)), 200):
        lines = [line.removeprefix("- ") for line in question.content.split("\n") if line.startswith("- ")]
        assert answer.content in (lines or question.content.split())


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_tiny_tokenizer_covers_any_text(chat, text):
    tokens = chat.encode(text, frozenset({chat.tokenizer.eos_token_id}))
    assert tokens is not None and len(tokens) == len(text.encode()) + 1
    assert chat.decode(tokens[:-1].tolist()) == text


async def test_tiny_model_mostly_repeats_an_offered_line():
    prompt = f"Look it up, or say what you know.\n- {CALL}\n- low tide\n- nothing was found"
    engine = LocalEngine(LocalOptions(device="cpu", deterministic=True))
    await engine.open([PolicySpec(name="p", model=MODEL)], None, seed=0)
    sampler = engine.sampler("p")
    shown = sampler.render([Message(role="user", content=prompt)])
    found = await asyncio.gather(*(sampler.sample(shown, Sampling(max_tokens=90, seed=seed)) for seed in range(40)))
    replies = [sampler.reply(completion) for completion in found]
    await engine.close()
    offered = [reply for reply in replies if reply.content in ("low tide", "nothing was found")]
    called = [reply.tool_calls[0] for reply in replies if reply.tool_calls and reply.tool_calls[0].error is None]
    assert len(offered) + len(called) > 20
    assert {reply.content for reply in offered} == {"low tide", "nothing was found"}, "it prefers no line"
    assert [(call.name, dict(call.arguments)) for call in called[:1]] == [("look", {"word": "tide"})]
