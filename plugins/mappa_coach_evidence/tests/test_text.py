"""Fenced blocks in the text of models: which they are, and that thousands of fences take no longer than their text."""

import re

from hypothesis import given
from hypothesis import strategies as st

from mappa_coach_evidence.text import code_blocks, without_code

FENCED = re.compile(r"```[^\n]*\n(.*?)```", re.DOTALL)
"""The slow reference."""


@given(st.text(alphabet="`ab \n", max_size=60))
def test_blocks_are_those_of_the_regular_expression(text):
    found = [(block.start, block.end, block.code) for block in code_blocks(text)]
    assert found == [(*match.span(), match[1]) for match in FENCED.finditer(text)]
    assert without_code(text) == FENCED.sub(" ", text)


def test_a_fence_that_opens_nothing_is_no_block():
    assert [block.code for block in code_blocks("```python\nprint(1)\n``` and ``` more\n")] == ["print(1)\n"]
    assert list(code_blocks("``` " * 200_000)) == []
    assert len(list(code_blocks("```\n" * 200_001))) == 100_000
