"""Convert messages to tokens and completions to messages with the model's own chat template."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any

import jinja2
import numpy as np

from mappa_core import Message, ToolSpec
from mappa_core.engine import Completion, message_dict, tool_schema
from mappa_core.sandbox import PYTHON
from mappa_engine.arrays import Int32
from mappa_engine.call_formats import read_channels
from mappa_engine.control_tokens import ControlTokens
from mappa_engine.errors import ModelError
from mappa_engine.template_probe import probe_template

_THINK_TAGS = re.compile(r"<(/)((?:seed:)?think|thinking|thought|reasoning)>|\[(/)(THINK)\]|<\|END_THINKING\|>")
_PLACEHOLDER_ANSWER = "Answered."
"""Placeholder answer, rendered to find the token by which the template ends an answer."""
_MAX_TAG_TOKENS = 16
"""Prompt tokens at the end that are searched for an open think tag: a tag is a few tokens at most."""
_ANSWER_MARKS = {"<|channel|>final<|message|>": "", "<|START_RESPONSE|>": "<|END_RESPONSE|>"}
"""What some families (gpt-oss, Cohere) write before the text of an answer, and after it."""
_SHORT_ID = re.compile("[A-Za-z0-9]{9}")
_TODAY = datetime(2025, 1, 1)
"""The day that templates print, unless `date_string` says another."""
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
        sources = _sources(tokenizer)
        self._think = _think_tags(sources[0])
        channels = any("<|channel|>" in source and "<|message|>" in source for source in sources)
        self._probe = probe_template(self._try, channels=channels)
        self._control = ControlTokens(tokenizer, [*sources, *self._probe.renderings], model_name=model_name)
        written = "".join([*sources, *self._probe.renderings])
        self._answer = next((marks for marks in _ANSWER_MARKS.items() if marks[0] in written), ("", ""))
        self._schemas: dict[str, Mapping[str, Any]] = {}

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Int32:
        """Return the prompt tokens (P,). `kwargs` go to the template.

        Only the template produces control tokens: `<|im_end|>` in the text of an agent, a tool or a task is tokenized
        as ordinary text, so no text can end its own message and impersonate another role. A template that prints the
        date prints `date_string` of `kwargs`, by default a fixed day, so that tokens are the same tomorrow. Raises
        ModelError if the template cannot show what there is: tools other than python, their results, system messages.
        """
        self._check(messages, tools)
        # Between tags there is no telling the text 42 from the number: the schema does, when the reply comes.
        self._schemas |= {tool.name: tool.schema for tool in tools}
        schemas = [tool_schema(tool) for tool in tools]
        (escaped, shown), replaced = self._control.replace([self._entries(messages), schemas])
        text = self._apply(escaped, tools=shown or None, add_generation_prompt=True, **(kwargs or {}))
        return np.asarray(self._control.tokenize(text, replaced), dtype=np.int32)

    def _check(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> None:
        """Check that the template shows what these messages need: most drop the rest in silence."""
        # Python is called by fenced blocks, which need no template.
        called = [tool.name for tool in tools if tool.name != PYTHON]
        if called and not self._probe.tools:
            raise self._lacks(f"drops tools, so {', '.join(called)} cannot be called: use python blocks instead")
        if called and self._probe.calls is None:
            raise self._lacks(
                f"writes calls of {', '.join(called)} in no form that is known: use python blocks instead"
            )
        roles = {message.role for message in messages}
        if (called or "tool" in roles) and not self._probe.results:
            raise self._lacks("drops the results of tools: use python blocks, and tell results as user messages")
        if "system" in roles and not self._probe.system:
            raise self._lacks("takes no system messages: say in the first user message what the agent should know")

    def _lacks(self, what: str) -> ModelError:
        return ModelError(f"{self._model_name}: its chat template {what}, or choose another model")

    def _entries(self, messages: Sequence[Message]) -> list[dict[str, Any]]:
        """The messages as this template reads them."""
        entries = [message_dict(message) for message in messages]
        for entry in entries:
            if self._probe.reasoning_key != "reasoning_content" and "reasoning_content" in entry:
                entry[self._probe.reasoning_key] = entry.pop("reasoning_content")
            if self._probe.channels and entry.get("thinking") and entry.get("tool_calls"):
                # Before a call harmony's template takes one text, and refuses two.
                entry["thinking"] = "\n".join(filter(None, (entry["thinking"], entry["content"])))
                entry["content"] = ""
        if not self._probe.lone_calls:
            write_lone_calls(entries)
        number_calls(entries, short=self._probe.short_ids)
        return entries

    def _apply(self, messages: Sequence[dict[str, Any]], **kwargs: Any) -> str:
        """Render with the chat template. Raises ModelError if it does not take these messages."""

        def strftime_now(form: str) -> str:
            return kwargs.get("date_string") or _TODAY.strftime(form)

        try:
            text: str = self.tokenizer.apply_chat_template(
                messages, tokenize=False, **{"strftime_now": strftime_now, **kwargs}
            )
        except _TEMPLATE_ERRORS as error:
            raise ModelError(
                f"{self._model_name}: its chat template refuses these messages: {error}. Check roles and order, or "
                "choose a model whose template takes them."
            ) from error
        return text

    def _try(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, due: bool) -> str | None:
        try:
            return self._apply(messages, tools=tools, add_generation_prompt=due)
        except ModelError:
            return None

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
        head, foot = (self._control.tokenize(mark, []) for mark in self._answer)
        return np.asarray([*head, *found, *foot, self._end_token(stops)], dtype=np.int32)

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
        if self._probe.channels:
            content, reasoning, calls = read_channels(completion.text, self._schemas)
            return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)
        opened = False
        if completion.prompt_tokens is not None:
            opened = self.decode(completion.prompt_tokens[-_MAX_TAG_TOKENS:].tolist()).rstrip().endswith(self._think[0])
        content, reasoning = split_think(completion.text, self._think, opened=opened)
        calls = ()
        if self._probe.calls is not None:
            content, calls = self._probe.calls(content, self._schemas)
        for mark in filter(None, self._answer):
            content = content.replace(mark, "")
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


def write_lone_calls(entries: Sequence[dict[str, Any]]) -> None:
    """Turn calls that no result of a tool follows into text. A workflow may tell results in user messages, and some
    templates (Mistral's) refuse these after a call: that an agent called a tool would end the run."""
    roles = [*(entry["role"] for entry in entries[1:]), None]
    for entry, following in zip(entries, roles, strict=True):
        if "tool_calls" in entry and following != "tool":
            calls = [json.dumps(call["function"], ensure_ascii=False) for call in entry.pop("tool_calls")]
            entry["content"] = "\n".join(filter(None, [entry["content"], *calls]))


def number_calls(entries: Sequence[dict[str, Any]], *, short: bool) -> None:
    """Give every call, and every result, that has no id one. `short`: ids that are not of nine letters and digits,
    which Mistral's templates refuse, are replaced."""
    fresh = (f"call{number:05d}" for number in count())
    renamed: defaultdict[str, str] = defaultdict(lambda: next(fresh))
    waiting: list[str] = []

    def taken(known: str | None) -> str:
        if known is None:
            return next(fresh)
        return renamed[known] if short and not _SHORT_ID.fullmatch(known) else known

    for entry in entries:
        for call in entry.get("tool_calls", ()):
            call["id"] = taken(call["id"])
            waiting.append(call["id"])
        if entry["role"] == "tool":
            known = entry.get("tool_call_id")
            # Results without an id are those of the calls in their order.
            found = waiting[0] if known is None and waiting else taken(known)
            entry["tool_call_id"] = found
            if found in waiting:
                waiting.remove(found)


def _think_tags(source: str) -> tuple[str, str]:
    """The tags between which a template's source has reasoning."""
    found = _THINK_TAGS.search(source)
    if found is None:
        return "<think>", "</think>"
    return found[0].replace("/", "", 1).replace("END", "START", 1), found[0]


def _sources(tokenizer: Any) -> list[str]:
    """The sources of all templates of a tokenizer, the usual one first; some have one of its own for tools."""
    templates = tokenizer.chat_template
    others = list(templates.values()) if isinstance(templates, dict) else []
    return [tokenizer.get_chat_template(), *others]
