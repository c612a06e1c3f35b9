"""Wire-independent request and response types."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from mappa_core import Message, Step, ToolCall, ToolSpec
from mappa_core.redaction import redact
from mappa_core.safe_json import parse_untrusted_json
from mappa_gateway.errors import RequestFault

_NEUTRAL: tuple[Any, ...] = (None, False, 0, "", [], {})
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("functions", "audio", "prediction", "suffix", "echo", "min_tokens", "ignore_eos"), _NEUTRAL),
    **dict.fromkeys(("stop_token_ids", "structured_outputs", "continue_final_message", "chat_template"), _NEUTRAL),
    "chat_template_kwargs": _NEUTRAL,
    "function_call": (*_NEUTRAL, "auto", "none"),
    "best_of": (*_NEUTRAL, 1),
    "modalities": (*_NEUTRAL, ["text"]),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
    "add_generation_prompt": (None, True),
}
"""Settings that would make the reply another than the sampled one, each with the values that change nothing."""
_GUIDED = "guided_"
"""How the names of settings begin that let a server of vLLM write by a grammar."""
_HARMLESS = frozenset(
    {
        "user", "metadata", "store", "service_tier", "cache_control", "prompt_cache_key", "prompt_cache_retention",
        "safety_identifier", "stream_options", "max_tool_calls",
    }
)  # fmt: skip
"""Settings that say nothing about the reply, and are not named in the log."""
_Body = TypeVar("_Body")
CREATED_AT = 0
"""Seconds since the epoch, the same in every replay, as an agent may show it to the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """A request in any format: the agent, the messages and tools, texts at which the reply ends, the names of settings
    that are not used, and how to encode the action that it became: as one JSON object, or as the events of a stream."""

    model: str
    messages: tuple[Message, ...]
    own_tools: tuple[ToolSpec, ...]
    stop: tuple[str, ...] = ()
    stream: bool
    ignored: frozenset[str]
    to_json: Callable[[Step], dict[str, Any]]
    to_events: Callable[[Step], Iterator[bytes]]


class ContentPart(msgspec.Struct):
    """One part of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None

    @property
    def words(self) -> str | None:
        """What the part says; None if that is no text."""
        return self.refusal if self.text is None else self.text


def parse_body(body: bytes) -> Any:
    """Parse the JSON of a request. Raises RequestFault if it is none, or exceeds a limit of `mappa_core.safe_json`."""
    try:
        return parse_untrusted_json(redact(body.decode()))
    except ValueError as error:
        raise RequestFault("invalid_request", f"the request cannot be read: {error}") from error


def to_form(request: Any, form: type[_Body]) -> _Body:
    """Convert parsed JSON to a request of type `form`. Raises RequestFault if it has another form."""
    try:
        return msgspec.convert(request, form)
    except msgspec.ValidationError as error:
        raise RequestFault("invalid_request", f"the request cannot be read: {error}") from error


def ignored_settings(request: Mapping[str, Any], form: type[msgspec.Struct]) -> frozenset[str]:
    """Return the settings in a request that its `form` does not use. Raises RequestFault for those that would change
    the reply."""
    given = {key: value for key, value in request.items() if value is not None and key not in form.__struct_fields__}
    refuse_unsupported({key: value not in _REFUSED.get(key, ()) for key, value in given.items() if _is_refused(key)})
    return frozenset(given) - _REFUSED.keys() - _HARMLESS


def _is_refused(key: str) -> bool:
    return key in _REFUSED or key.startswith(_GUIDED)


def refuse_unsupported(wanted: Mapping[str, bool]) -> None:
    """Raise RequestFault for settings that the sampler does not support: the names in `wanted` that are true."""
    if refused := [name for name, given in wanted.items() if given]:
        raise RequestFault(
            "unsupported",
            f"{', '.join(refused)}: the gateway gives what the policy samples, whole and one reply a request, as that "
            "is what it is trained on. Leave this out of the request.",
        )


def refuse_format(wanted: Mapping[str, bool]) -> None:
    """Raise RequestFault for settings that demand a format of the reply: the names in `wanted` that are true."""
    if refused := [name for name, given in wanted.items() if given]:
        raise RequestFault(
            "unsupported",
            f"{', '.join(refused)}: a grammar leaves a policy fewer tokens to choose from, no engine here records "
            "which, and without them learning is biased. Leave it out, ask for the format in the prompt or by a tool, "
            "and let the coach judge whether the reply has it.",
        )


def stop_texts(stop: str | Sequence[str] | None, where: str) -> tuple[str, ...]:
    """Return the texts at which a reply ends. Raises RequestFault for an empty one, which is in every text."""
    texts = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if "" in texts:
        raise RequestFault("invalid_request", f"{where}: an empty text ends nothing")
    return texts


def join_text(content: str | Sequence[ContentPart] | None, where: str) -> str:
    """Join the text of a message. Raises RequestFault for content that is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    other = sorted({part.type for part in content if part.words is None})
    if other:
        raise RequestFault("unsupported", f"{where}: {', '.join(other)}: only text can be shown here")
    return "".join(part.words for part in content if part.words is not None)


def parse_call(name: str, arguments: str, call_id: str | None, where: str) -> ToolCall:
    """Parse an earlier call; `arguments` is JSON text. Raises RequestFault if that is no JSON object."""
    try:
        values = parse_untrusted_json(arguments or "{}")
    except ValueError as error:
        raise RequestFault("invalid_request", f"{where}: arguments cannot be read: {error}") from error
    if not isinstance(values, Mapping):
        raise RequestFault("invalid_request", f"{where}: arguments are no JSON object")
    return ToolCall(name=name, arguments=values, id=call_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseCall:
    """A call for the agent to run; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResponse:
    """An action as the agent receives it."""

    content: str
    reasoning: str | None = None
    calls: tuple[ResponseCall, ...] = ()


def to_response(step: Step, *, parallel: bool = True) -> ActionResponse:
    """Convert an action to a response. Calls without tools, with errors, or several where the request allows one
    (`parallel` is false), stay in the text as the model wrote it, from which its think block is taken where it begins
    with one."""
    reply, calls = step.reply, step.reply.tool_calls
    is_refused = any(call.error is not None for call in calls) or (len(calls) > 1 and not parallel)
    if calls and (not step.own_tools or is_refused):
        rest = _text_after_thoughts(step.completion.text, reply.reasoning)
        if rest is None:
            return ActionResponse(content=step.completion.text)
        return ActionResponse(content=rest, reasoning=reply.reasoning)
    response_calls = (
        ResponseCall(id=f"call_{step.position:03d}_{place}", name=call.name, arguments=json.dumps(dict(call.arguments)))
        for place, call in enumerate(calls)
    )
    return ActionResponse(content=reply.content, reasoning=reply.reasoning, calls=tuple(response_calls))


def _text_after_thoughts(text: str, thoughts: str | None) -> str | None:
    """Return the text after its think block, whose opening tag may stand in the prompt; None if it begins with none."""
    block = None if thoughts is None else re.match(rf"\s*(?:<\w+>)?\n*{re.escape(thoughts)}\n*</\w+>\n*", text)
    return None if block is None else text[block.end() :]


def token_counts(step: Step) -> tuple[int, int] | None:
    """Number of prompt and completion tokens; None if the provider does not report them."""
    sampled = step.completion
    if sampled.usage is not None:
        prompt, written = sampled.usage.prompt_tokens, sampled.usage.completion_tokens
        return None if prompt is None or written is None else (prompt, written)
    if sampled.prompt_tokens is None or sampled.tokens is None:
        return None
    return len(sampled.prompt_tokens), len(sampled.tokens)
