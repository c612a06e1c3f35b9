"""Extracts the final answer of a text: the last boxed expression outside think text."""

from __future__ import annotations

import re

_THINK_TAG = re.compile(r"<(/?)think(?:ing)?>")
_BOX = re.compile(r"\\boxed\s*\{")


def strip_thinking(text: str) -> str:
    """Remove the think text from `text`.

    A closing tag without an opening one ends think text that began before `text` (some chat templates open the tag
    themselves); an opening tag without a closing one begins think text that was truncated.
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


def extract_final_answer(text: str) -> str | None:
    r"""Return the content of the last `\boxed{}` outside think text; None without one, or where it is truncated."""
    text = strip_thinking(text)
    starts = [box.end() for box in _BOX.finditer(text)]
    if not starts:
        return None
    end = find_closing_brace(text, starts[-1])
    return None if end is None else text[starts[-1] : end].strip()


def find_closing_brace(text: str, start: int) -> int | None:
    r"""Return where the group whose content begins at `start` closes; `\{` and `\}` are characters, not groups."""
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
