"""Think text that a server left in its reply."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.calls.reply_text import split_reasoning

PARTS = st.sampled_from(["<think>", "</think>", "<reasoning>", "</reasoning>", "\n", " ", "a", "7", "{", "<", "think"])


@pytest.mark.parametrize(
    ("text", "thought", "said"),
    [
        ("plain", None, "plain"),
        ("  plain\n", None, "  plain\n"),
        ("", None, ""),
        ("<think>\nwhy\n</think>\n\nbecause", "why", "because"),
        (" \n<think>why</think>because\n", "why", "because\n"),
        ("<thinking>why</thinking>because", "why", "because"),
        ("<think></think>because", "", "because"),
        # the first tag stood in the prompt
        ("it was there\n</think>\nbecause", "it was there", "because"),
        ("</think>because", "", "because"),
        # the tokens ran out
        ("<think>never ends", "never ends", ""),
        ("<think>", "", ""),
        # only what a text begins with is a thought
        ("<think>a</think>b <think>c</think>", "a", "b <think>c</think>"),
        ("say <think>x</think> aloud", None, "say <think>x</think> aloud"),
        ("<b>bold</b>", None, "<b>bold</b>"),
    ],
)
def test_think_text_is_split_from_the_reply(text, thought, said):
    assert split_reasoning(text) == (thought, said)


@given(st.lists(PARTS, max_size=12).map("".join))
def test_reply_is_the_end_of_the_text_after_the_think_text(text):
    thought, said = split_reasoning(text)
    assert text.endswith(said)
    if thought is None:
        assert said == text
    else:
        assert thought in text[: len(text) - len(said)]


def test_reply_of_white_space_is_split_in_linear_time():
    """With a search from every space it would take hours."""
    text = " " * 1_000_000
    assert split_reasoning(text) == (None, text)
