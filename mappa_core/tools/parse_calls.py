"""Parse the tool calls in a reply: native calls of the model's chat template, and fenced Python.

Fences follow CommonMark 0.31, except that HTML blocks are not recognised: a tag on the line before a fence, which
models often write, does not hide it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from mappa_core.records import Message, ToolCall

PYTHON = "python"
"""Name of the tool called by fenced Python."""
PYTHON_INFO = frozenset({"python", "py", "python3", "py3"})
"""First words of a fence's info string that make it a call; case-insensitive."""
NOT_CLOSED = "the python block is not closed (its closing fence is missing), so nothing of it ran"

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")


def parse_calls(reply: Message, offered: Sequence[str]) -> tuple[ToolCall, ...]:
    """Return the calls of `reply`: native ones first, then, if `python` is offered, fenced Python in order.

    A call that cannot be run has its `error` set: a tool that is not offered, a block that is not closed. The code of a
    block is the exact text between its fences, without the indentation of its container and of its opening fence.
    """
    native = tuple(_native(call, offered) for call in reply.tool_calls)
    return native + tuple(_fenced(reply.content)) if PYTHON in offered else native


def _native(call: ToolCall, offered: Sequence[str]) -> ToolCall:
    if call.error is not None or call.name in offered:
        return call
    return replace(call, error=f"there is no tool {call.name!r} here (offered: {', '.join(offered) or 'none'})")


def unanswered_calls(reply: Message, answered: Sequence[ToolCall]) -> list[ToolCall]:
    """Return the calls of a reply that are not among those whose answers are recorded, which may have an `error`."""
    known = [replace(call, error=None) for call in answered]
    calls = reply.tool_calls
    # Equal calls are counted: of three of which two were answered, the last was not.
    return [
        call for place, call in enumerate(calls) if calls[:place].count(call) >= known.count(replace(call, error=None))
    ]


def unquoted_arguments(call: ToolCall, text: str) -> dict[str, object]:
    """Return the arguments of a call that no fenced block of a text holds."""
    quoted = {block.arguments.get("code", "").strip() for block in _fenced(text, None)} - {""}
    return {
        key: value for key, value in call.arguments.items() if not isinstance(value, str) or value.strip() not in quoted
    }


def _fenced(text: str, languages: frozenset[str] | None = PYTHON_INFO) -> Iterator[ToolCall]:
    if "```" not in text and "~~~" not in text:
        return
    lines = _LINE.findall(text)
    for token in _parser().parse(text):
        if token.type == "fence" and (languages is None or languages.intersection(token.info.lower().split()[:1])):
            yield _block(token, lines)


def _block(token: Token, lines: Sequence[str]) -> ToolCall:
    assert token.map is not None  # the parser maps every block to its lines
    start, end = token.map
    content = [line for line in _LINE.findall(token.content) if line]
    # With its two fences. A block that is not closed ends with the text, and has one line less.
    if end - start != len(content) + 2:
        return ToolCall(name=PYTHON, error=NOT_CLOSED)
    code = "".join(_as_written(parsed, lines[start + 1 + i]) for i, parsed in enumerate(content))
    return ToolCall(name=PYTHON, arguments={"code": code})


def _as_written(parsed: str, line: str) -> str:
    """A parsed line with the characters that the parser normalises (line ends, NUL) as in the original `line`."""
    body = parsed.rstrip("\n")
    written = line.rstrip("\r\n")
    suffix = written[len(written) - len(body) :]
    # Only a tab that is split by a container is expanded to spaces; in that case the parser's text is right.
    exact = suffix if suffix.replace("\0", "\ufffd") == body else body
    return exact + line[len(written) :]


@cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").disable(["html_block", "inline"])
