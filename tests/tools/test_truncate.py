import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mappa_core.tools.truncate import SMALLEST_LIMIT, cut_middle


@given(st.text(min_size=0, max_size=2000), st.integers(SMALLEST_LIMIT, 1500))
def test_the_bound_holds_both_ends_stay_and_the_count_is_right(text, limit):
    cut = cut_middle(text, limit)
    assert len(cut) <= limit
    if len(text) <= limit:
        assert cut == text
        return
    head, count, tail = re.fullmatch(r"(?s)(.*)\n\[\.\.\. (\d+) characters cut \.\.\.\]\n(.*)", cut).groups()
    assert text.startswith(head) and text.endswith(tail)
    assert int(count) == len(text) - len(head) - len(tail)


def test_the_tail_gets_two_thirds():
    head, tail = re.split(r"\n\[.*\]\n", cut_middle("a" * 5000 + "b" * 5000, 1000))
    assert 1.9 < len(tail) / len(head) < 2.1


def test_the_last_line_of_a_traceback_survives():
    frames = '  File "<python>", line 2, in f\n    return f(n - 1)\n' * 1000
    text = f"Traceback (most recent call last):\n{frames}RecursionError: maximum recursion depth exceeded"
    cut = cut_middle(text, 200)
    assert cut.startswith("Traceback (most recent call last):")
    assert cut.endswith("RecursionError: maximum recursion depth exceeded")


def test_a_limit_that_leaves_no_text_is_refused():
    with pytest.raises(ValueError, match="64 characters or more, not 63"):
        cut_middle("a", 63)
