"""Convert messages to tokens and completions to messages with the model's own chat template."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
import numpy as np

from mappa_core import Message, ToolCall, ToolSpec
from mappa_core.engine import Completion, message_dict, split_calls, tool_schema
from mappa_engine.arrays import Int32
from mappa_engine.errors import ModelError

_THINK_TAG = re.compile(r"</(think|thinking|thought|reasoning)>")
_PLACEHOLDER_ANSWER = "Answered."
"""Placeholder answer, rendered to find the token by which the template ends an answer."""
_MAX_TAG_TOKENS = 16
"""Prompt tokens at the end that are searched for an open think tag: a tag is a few tokens at most."""
_SENTINEL = "\U0010fffd"
"""Delimiter of the numbers that replace control tokens while a template is rendered: a private-use character."""


class Chat:
    """The tokenizer and the chat template of one model."""

    def __init__(self, tokenizer: Any, *, model_name: str) -> None:
        """`model_name` is the name of the model in error messages."""
        if not tokenizer.chat_template:
            raise ModelError(
                f"{model_name}: the tokenizer has no chat template, so messages cannot be rendered. Use the model's "
                f"instruction-tuned variant, or put its chat_template.jinja into the folder."
            )
        self.tokenizer = tokenizer
        self._model_name = model_name
        template = tokenizer.get_chat_template()
        found = _THINK_TAG.search(template)
        name = found.group(1) if found else "think"
        self._think = (f"<{name}>", f"</{name}>")
        self._calls = "<tool_call>" in template
        control_tokens = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
        longest_first = sorted([*control_tokens, _SENTINEL], key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, longest_first)))

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Int32:
        """Return the prompt tokens (P,). `kwargs` go to the template. One without tool support ignores tools.

        Only the template produces control tokens: `<|im_end|>` in the text of an agent, a tool or a task is tokenized
        as ordinary text, so no text can end its own message and impersonate another role.
        """
        escaped_messages, control_texts = self._replace_control_tokens([message_dict(message) for message in messages])
        try:
            text = self.tokenizer.apply_chat_template(
                escaped_messages,
                tools=[tool_schema(tool) for tool in tools] or None,
                add_generation_prompt=True,
                tokenize=False,
                **(kwargs or {}),
            )
        except jinja2.TemplateError as error:
            raise ModelError(
                f"{self._model_name}: its chat template refuses these messages: {error}. Check roles and order, or "
                "choose a model whose template takes them."
            ) from error
        parts = re.split(f"{_SENTINEL}([0-9]+){_SENTINEL}", text)
        parts[1::2] = [control_texts[int(number)] for number in parts[1::2]]
        tokens = [self._tokenize(part, spell_out=at % 2 == 1) for at, part in enumerate(parts)]
        return np.concatenate([np.asarray(part, dtype=np.int32) for part in tokens])

    def _replace_control_tokens(self, messages: list[dict[str, Any]]) -> tuple[Any, list[str]]:
        """Replace text that looks like a control token by numbered placeholders; return (messages, text per number)."""
        numbers: dict[str, int] = {}

        def replace_token(found: re.Match[str]) -> str:
            return f"{_SENTINEL}{numbers.setdefault(found.group(), len(numbers))}{_SENTINEL}"

        return _map_text(messages, lambda text: self._control_pattern.sub(replace_token, text)), list(numbers)

    def _tokenize(self, text: str, *, spell_out: bool = False) -> list[int]:
        """Tokenize `text`; with `spell_out`, text that looks like a control token becomes ordinary tokens."""
        encoding = self.tokenizer(text, add_special_tokens=False, split_special_tokens=spell_out, verbose=False)
        found: list[int] = encoding["input_ids"]
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode `tokens` losslessly: special tokens are kept and spaces are not cleaned up."""
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def encode(self, text: str, stops: frozenset[int]) -> Int32 | None:
        """Encode `text` as an action that a policy could have sampled: its tokens and a final stop token, (T,).

        Text that looks like a control token (`<|im_end|>`) becomes ordinary tokens. Returns None if the tokens would
        not decode to `text` or would contain a control token. Raises ModelError if the template ends answers with none
        of `stops`.
        """
        found = self._tokenize(text, spell_out=True)
        if not set(found).isdisjoint({*self.tokenizer.all_special_ids, *stops}) or self.decode(found) != text:
            return None
        return np.asarray([*found, self._end_token(stops)], dtype=np.int32)

    def _end_token(self, stops: frozenset[int]) -> int:
        """Return the stop token by which the template ends an assistant message."""
        answered = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _PLACEHOLDER_ANSWER}]
        try:
            text = self.tokenizer.apply_chat_template(answered, tokenize=False)
        except jinja2.TemplateError as error:
            raise ModelError(
                f"{self._model_name}: its chat template refuses an answer: {error}. Choose a model whose template "
                "takes one."
            ) from error
        _, answer, rest = text.rpartition(_PLACEHOLDER_ANSWER)
        tokens = self._tokenize(rest) if answer else []
        end: int | None = next((token for token in tokens if token in stops), None)
        if end is None:
            raise ModelError(
                f"{self._model_name}: its chat template ends an answer with no token that ends sampling, so "
                "corrections cannot be written as the policy would. Set train.supervised.weight=0, or mend the "
                "template."
            )
        return end

    def reply(self, completion: Completion) -> Message:
        """Parse a completion into an assistant message: reasoning text separated, native tool calls parsed."""
        opened = False
        if completion.prompt_tokens is not None:
            opened = self.decode(completion.prompt_tokens[-_MAX_TAG_TOKENS:].tolist()).rstrip().endswith(self._think[0])
        content, reasoning = split_think(completion.text, self._think, opened=opened)
        calls: tuple[ToolCall, ...] = ()
        if self._calls:
            content, calls = split_calls(content)
        return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)


def split_think(text: str, tags: tuple[str, str], *, opened: bool) -> tuple[str, str | None]:
    """Split a reply into (visible text, reasoning text or None). `opened`: the prompt ended in the opening tag.

    A think block that is never closed runs to the end. Text without a think block is returned unchanged.
    """
    begin, end = tags
    rest = begin + text if opened and not text.lstrip().startswith(begin) else text
    if begin not in rest:
        return text, None
    visible, thoughts = [], []
    while begin in rest:
        before, _, rest = rest.partition(begin)
        thought, _, rest = rest.partition(end)
        visible.append(before)
        thoughts.append(thought.strip("\n"))
    return "".join([*visible, rest]).lstrip("\n"), "\n".join(thoughts)


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    """Apply `change` to every string in the JSON value, keys included: an agent writes those of its arguments, too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_text(item, change) for key, item in value.items()}
    return [_map_text(item, change) for item in value] if isinstance(value, list) else value
