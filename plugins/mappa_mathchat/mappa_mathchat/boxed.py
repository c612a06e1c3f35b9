"""Where the final answer of a text stands: the last boxed expression outside think text."""

from __future__ import annotations

import re

_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>")
_BOX = re.compile(r"\\boxed\s*\{")


def without_thoughts(text: str) -> str:
    """`text` without its think text.

    A closing tag that was never opened ends thoughts that began before the text (chat templates that open the tag
    themselves); an opening tag that is never closed begins thoughts that were cut off.
    """
    outside: list[str] = []
    start: int | None = 0  # of the text outside; None inside thoughts
    for tag in _THINK_TAG.finditer(text):
        closes = tag.group(1) == "/"
        if closes:
            if start is not None:
                outside.clear()
            start = tag.end()
        elif start is not None:
            outside.append(text[start : tag.start()])
            start = None
    if start is not None:
        outside.append(text[start:])
    return "".join(outside)


def final_answer(text: str) -> str | None:
    r"""The content of the last `\boxed{}` outside think text; None where there is none, or where it is cut off."""
    text = without_thoughts(text)
    starts = [box.end() for box in _BOX.finditer(text)]
    if not starts:
        return None
    end = closing_brace(text, starts[-1])
    return None if end is None else text[starts[-1] : end].strip()


def closing_brace(text: str, start: int) -> int | None:
    r"""Where the group whose content begins at `start` closes; `\{` and `\}` are characters, not groups."""
    depth, position = 1, start
    while position < len(text):
        match text[position]:
            case "\\":
                position += 1
            case "{":
                depth += 1
            case "}":
                depth -= 1
                if depth == 0:
                    return position
        position += 1
    return None
