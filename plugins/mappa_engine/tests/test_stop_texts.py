"""Where sampling ends at a text: against a search that decodes every beginning."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mappa_engine.stop_texts import find_stop, has_stop

PIECES = ["a", "b", "ab", "\n", "Obs", "erv", "ation:", " ", "é", "✓"]
tokens = st.lists(st.integers(0, len(PIECES) - 1), max_size=30)
stops = st.lists(st.sampled_from(["ab", "b", "\n\n", "Observation:", "é✓", "aba"]), max_size=3, unique=True)


def decode(found):
    return "".join(PIECES[token] for token in found)


@given(tokens, stops)
def test_the_first_token_that_completes_a_text_ends_the_action(tokens, stop):
    ends = [count for count in range(len(tokens) + 1) if any(text in decode(tokens[:count]) for text in stop)]
    match = find_stop(decode, tokens, stop)
    assert (match is None) == (not ends)
    if match is not None:
        assert match.tokens == ends[0]
        written = decode(tokens[: match.tokens])
        assert written.startswith(match.text + match.stop_text)
        assert not any(text in match.text for text in stop)
    grown = next((count for count in range(1, len(tokens) + 1) if has_stop(decode, tokens[:count], stop)), None)
    assert grown == (ends[0] if ends else None), "looked at after every token it ends at the same one"


def test_of_two_texts_the_one_that_begins_first_counts():
    match = find_stop("".join, ["x", "abc"], ["bc", "ab"])
    assert match is not None and (match.text, match.stop_text, match.tokens) == ("x", "ab", 2)
