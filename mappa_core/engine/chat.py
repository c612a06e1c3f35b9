"""Messages to tokens and back, by the model's own chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import numpy as np

from mappa_core.errors import ModelError
from mappa_core.records import Completion, Int32, Message, ToolCall, ToolSpec

_THINK_TAG = re.compile(r"</(think|thinking|thought|reasoning)>")
_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)
_SAID = "Answered."
"""Stands for any answer where the template is asked how it ends one."""
_TAIL = 16
"""Prompt tokens that are looked at to see whether the template opened a think tag: a tag is a few tokens at most."""
_MARK = "\U0010fffd"
"""Fences the numbers that stand for control tokens while a template is rendered: a character without a meaning."""


class Chat:
    """The tokenizer and the chat template of one model."""

    def __init__(self, tokenizer: Any, *, where: str) -> None:
        """`where` names the model in messages."""
        if not tokenizer.chat_template:
            raise ModelError(
                f"{where}: the tokenizer has no chat template, so messages cannot be rendered. Use the model's "
                f"instruction-tuned variant, or put its chat_template.jinja into the folder."
            )
        self.tokenizer = tokenizer
        self._where = where
        template = tokenizer.get_chat_template()
        found = _THINK_TAG.search(template)
        name = found.group(1) if found else "think"
        self._think = (f"<{name}>", f"</{name}>")
        self._calls = "<tool_call>" in template
        controls = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        longest_first = sorted([*controls, _MARK], key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first)))

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Int32:
        """Prompt tokens (P,). `kwargs` go to the template as they are. A template that knows no tools ignores them.

        Control tokens come from the template alone: `<|im_end|>` in what an agent, a tool or a task wrote is spelt out
        in ordinary ones, so no text can end its own message and speak as somebody else.
        """
        written, spelt = self._without_controls([message_dict(message) for message in messages])
        try:
            text = self.tokenizer.apply_chat_template(
                written,
                tools=[tool_schema(tool) for tool in tools] or None,
                add_generation_prompt=True,
                tokenize=False,
                **(kwargs or {}),
            )
        except jinja2.TemplateError as error:
            raise ModelError(f"{self._where}: its chat template refuses these messages: {error}") from error
        parts = re.split(f"{_MARK}([0-9]+){_MARK}", text)
        parts[1::2] = [spelt[int(number)] for number in parts[1::2]]
        tokens = [self._tokenize(part, spell=at % 2 == 1) for at, part in enumerate(parts)]
        return np.concatenate([np.asarray(part, dtype=np.int32) for part in tokens])

    def _without_controls(self, messages: list[dict[str, Any]]) -> tuple[Any, list[str]]:
        """(`messages` with fenced numbers in place of what looks like a control token, what each number stands for)."""
        numbers: dict[str, int] = {}

        def fenced(found: re.Match[str]) -> str:
            return f"{_MARK}{numbers.setdefault(found.group(), len(numbers))}{_MARK}"

        return _map_text(messages, lambda text: self._control.sub(fenced, text)), list(numbers)

    def _tokenize(self, text: str, *, spell: bool = False) -> list[int]:
        """The tokens of `text`; with `spell`, what looks like a control token is spelt out in ordinary ones."""
        encoding = self.tokenizer(text, add_special_tokens=False, split_special_tokens=spell, verbose=False)
        found: list[int] = encoding["input_ids"]
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens` to the byte: special tokens are kept and no space is tidied away."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def encode(self, text: str, stops: frozenset[int]) -> Int32 | None:
        """`text` as an action that a policy might have sampled: its tokens and the one of `stops` that ends it, (T,).

        What looks like a control token (`<|im_end|>`) is spelt out. None where the tokens would not decode to `text`,
        or a control token cannot be kept out. Raises ModelError where the template ends no answer with a stop.
        """
        found = self._tokenize(text, spell=True)
        if not set(found).isdisjoint({*self.tokenizer.all_special_ids, *stops}) or self.decode(found) != text:
            return None
        return np.asarray([*found, self._end(stops)], dtype=np.int32)

    def _end(self, stops: frozenset[int]) -> int:
        """The token by which the template ends what an assistant said."""
        answered = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _SAID}]
        try:
            text = self.tokenizer.apply_chat_template(answered, tokenize=False)
        except jinja2.TemplateError as error:
            raise ModelError(f"{self._where}: its chat template refuses an answer: {error}") from error
        _, said, rest = text.rpartition(_SAID)
        tokens = self._tokenize(rest) if said else []
        end: int | None = next((token for token in tokens if token in stops), None)
        if end is None:
            raise ModelError(
                f"{self._where}: its chat template ends an answer with no token that ends sampling, so corrections "
                "cannot be written as the policy would. Set train.supervised.weight=0, or mend the template."
            )
        return end

    def reply(self, completion: Completion) -> Message:
        """The completion as an assistant message: think text apart, native tool calls parsed."""
        opened = False
        if completion.prompt_tokens is not None:
            opened = self.decode(completion.prompt_tokens[-_TAIL:].tolist()).rstrip().endswith(self._think[0])
        content, reasoning = split_think(completion.text, self._think, opened=opened)
        calls: tuple[ToolCall, ...] = ()
        if self._calls:
            content, calls = split_calls(content)
        return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)


def split_think(text: str, tags: tuple[str, str], *, opened: bool) -> tuple[str, str | None]:
    """(what others see, think text or None). `opened`: the prompt ended in the opening tag.

    Think text that is never closed runs to the end. Text without think text is returned as it is.
    """
    begin, end = tags
    rest = begin + text if opened and not text.lstrip().startswith(begin) else text
    if begin not in rest:
        return text, None
    said, thoughts = [], []
    while begin in rest:
        before, _, rest = rest.partition(begin)
        thought, _, rest = rest.partition(end)
        said.append(before)
        thoughts.append(thought.strip("\n"))
    return "".join([*said, rest]).lstrip("\n"), "\n".join(thoughts)


def split_calls(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """(text without calls, calls in order). A call that cannot be read has an `error`; it is answered, not run."""
    calls = tuple(_parse_call(match.group(1), closed=bool(match.group(2))) for match in _CALL.finditer(text))
    return (_CALL.sub("", text).rstrip() if calls else text), calls


def _parse_call(body: str, *, closed: bool) -> ToolCall:
    if not closed:
        return ToolCall(name="", error="the call is cut off: <tool_call> is not closed")
    try:
        call = json.loads(body)
    except json.JSONDecodeError as error:
        return ToolCall(name="", error=f"the call is not JSON: {error}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ToolCall(name="", error='the call is not of the form {"name": …, "arguments": {…}}')
    if not isinstance(call.get("arguments"), dict):
        return ToolCall(name=call["name"], error='the call\'s "arguments" are not a JSON object')
    return ToolCall(name=call["name"], arguments=call["arguments"])


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    """JSON's `value` with `change` done to every text in it but the names of fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _map_text(one, change) for key, one in value.items()}
    return [_map_text(one, change) for one in value] if isinstance(value, list) else value


def message_dict(message: Message) -> dict[str, Any]:
    """The message in the form that chat templates read."""
    entry: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        entry["name"] = message.name
    if message.tool_call_id is not None:
        entry["tool_call_id"] = message.tool_call_id
    if message.reasoning is not None:
        entry["reasoning_content"] = message.reasoning
    if message.tool_calls:
        entry["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call in message.tool_calls
        ]
    return entry


def tool_schema(tool: ToolSpec) -> dict[str, Any]:
    """The tool in the form that chat templates read."""
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.schema)}
    return {"type": "function", "function": function}
