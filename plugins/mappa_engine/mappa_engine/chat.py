"""Convert messages to tokens and completions to messages with the model's own chat template."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import jinja2
import numpy as np

from mappa_core import Message, ToolCall, ToolSpec
from mappa_core.engine import Completion, message_dict, split_calls, tool_schema
from mappa_engine.arrays import Int32
from mappa_engine.control_tokens import ControlTokens
from mappa_engine.errors import ModelError

_THINK_TAG = re.compile(r"</(think|thinking|thought|reasoning)>")
_PLACEHOLDER_ANSWER = "Answered."
"""Placeholder answer, rendered to find the token by which the template ends an answer."""
_MAX_TAG_TOKENS = 16
"""Prompt tokens at the end that are searched for an open think tag: a tag is a few tokens at most."""
_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What rendering raises: a template is a program, which adds a number to a text as others do."""


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
        written = [*_sources(tokenizer), *self._sample_renderings()]
        self._control = ControlTokens(tokenizer, written, model_name=model_name)

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Int32:
        """Return the prompt tokens (P,). `kwargs` go to the template. One without tool support ignores tools.

        Only the template produces control tokens: `<|im_end|>` in the text of an agent, a tool or a task is tokenized
        as ordinary text, so no text can end its own message and impersonate another role.
        """
        schemas = [tool_schema(tool) for tool in tools]
        (escaped, shown), replaced = self._control.replace([[message_dict(message) for message in messages], schemas])
        text = self._apply(escaped, tools=shown or None, add_generation_prompt=True, **(kwargs or {}))
        return np.asarray(self._control.tokenize(text, replaced), dtype=np.int32)

    def _apply(self, messages: list[dict[str, Any]], **kwargs: Any) -> str:
        """Render with the chat template. Raises ModelError if it does not take these messages."""
        try:
            text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
        except _TEMPLATE_ERRORS as error:
            raise ModelError(
                f"{self._model_name}: its chat template refuses these messages: {error}. Check roles and order, or "
                "choose a model whose template takes them."
            ) from error
        return text

    def _sample_renderings(self) -> Iterator[str]:
        """Render a few conversations: a template may put a control token together from pieces (`'<|' + role + '|>'`).
        Those that it refuses are left out."""
        call = {"id": "call00000", "type": "function", "function": {"name": "look_up", "arguments": {"word": "a"}}}
        asked = [{"role": "user", "content": "?"}]
        answered = [{"role": "assistant", "content": _PLACEHOLDER_ANSWER, "reasoning_content": "So."}]
        called = [{"role": "assistant", "content": "", "tool_calls": [call]}]
        told = [{"role": "tool", "content": "b", "name": "look_up", "tool_call_id": "call00000"}]
        shown = [tool_schema(ToolSpec(name="look_up", description="looks up", schema={"type": "object"}))]
        for messages in ([{"role": "system", "content": "Be brief."}, *asked], asked + answered, asked + called + told):
            for tools in (None, shown):
                with suppress(ModelError):
                    yield self._apply(messages, tools=tools, add_generation_prompt=True)

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
        found = self._control.spell_out(text)
        if not stops.isdisjoint(found) or self.decode(found) != text:
            return None
        return np.asarray([*found, self._end_token(stops)], dtype=np.int32)

    def _end_token(self, stops: frozenset[int]) -> int:
        """Return the stop token by which the template ends an assistant message."""
        asked = {"role": "user", "content": "?"}
        answered = [asked, {"role": "assistant", "content": _PLACEHOLDER_ANSWER}]
        # Some templates end no answer: the role of the next message is the stop token.
        for messages in (answered, [*answered, asked]):
            _, answer, rest = self._apply(messages).rpartition(_PLACEHOLDER_ANSWER)
            for token in self._control.tokenize(rest, []) if answer else []:
                if token in stops:
                    return token
        raise ModelError(
            f"{self._model_name}: its chat template ends an answer with no token that ends sampling, so corrections "
            "cannot be written as the policy would. Set train.supervised.weight=0, or mend the template."
        )

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


def _sources(tokenizer: Any) -> list[str]:
    """The sources of all templates of a tokenizer; some have one of its own for tools."""
    templates = tokenizer.chat_template
    return list(templates.values()) if isinstance(templates, dict) else [templates]
