"""OpenTelemetry spans of the GenAI semantic conventions (github.com/open-telemetry/semantic-conventions-genai).

A line is a span as the SDKs print it (`name`, `context`, `attributes`), or an export of OTLP (`resourceSpans`). The
spans of one trace are a trajectory. An action is a span of an agent or a model that says what was written, none of
whose inner spans does. Who acts is `gen_ai.agent.name` of it or of the nearest span around it. Calls of tools are spans
`execute_tool` with the id of a call that an action made, or inside an action.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from mappa_core.errors import InputError
from mappa_core.records import Message, Task, ToolCall, ToolResult, Usage
from mappa_core.studies.importing.mapping import Act, BadLog, Log, Mapped, outcome_of, task_of
from mappa_core.studies.importing.messages import called, finish_of
from mappa_core.studies.importing.spans import Span

T = TypeVar("T")

_WRITES = ("chat", "generate_content", "text_completion", "invoke_agent")
_TOOL = "execute_tool"
_INPUT, _OUTPUT, _SYSTEM = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
_OUTCOME = "mappa.outcome."
_PROMPT, _TASK, _STRATUM = "mappa.task.prompt", "mappa.task", "mappa.stratum"
"""What the tracker `otel` writes is read back without being named."""
_ROLES: Mapping[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_APART = ("tool_call", "tool_call_response", "reasoning")
"""Parts of a message that are no text of it."""
_HOW = (
    "record what is said, with OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true, or `content: true` of the "
    "tracker otel"
)


def logs_of_spans(spans: Sequence[Span], mapped: Mapped) -> list[Log]:
    """A trajectory per trace that holds an action, in the order in which they began.

    Raises:
        InputError: a span makes no sense, or says not what was written; the message names its line, name and key.
    """
    traces: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.began, span.ended)):
        traces.setdefault(span.trace, []).append(span)
    found = (_Trace(trace, mapped).log() for trace in traces.values())
    return [log for log in found if log is not None]


class _Trace:
    """The spans of one trace, in the order in which they began."""

    def __init__(self, spans: Sequence[Span], mapped: Mapped) -> None:
        self._spans = {span.id: span for span in spans}
        self._mapped = mapped

    def log(self) -> Log | None:
        """The trajectory; None where nothing in the trace is an action."""
        writing = [span for span in self._spans.values() if span.operation in _WRITES]
        around = {parent.id for span in writing for parent in self._around(span)}
        acting = [span for span in writing if span.id not in around]
        if not acting:
            return None
        acts = tuple(_blamed(self._act, span) for span in acting)
        root = next((span for span in self._spans.values() if span.parent not in self._spans), acting[0])
        return _blamed(lambda span: self._log(span, acts), root)

    def _log(self, root: Span, acts: tuple[Act, ...]) -> Log:
        known, mapped = root.attributes, self._mapped
        asked = next((one.content for one in acts[0].messages if one.role == "user"), None)
        task = task_of(known, mapped, prompt=root.text(_PROMPT) or asked)
        own = {key.removeprefix(_OUTCOME): key for key in known if key.startswith(_OUTCOME)}
        failed = known.get("error.type") if root.failed else None
        return Log(
            task=_as_told(task, root, mapped),
            acts=acts,
            outcome=outcome_of(known, {**own, **mapped.outcomes}),
            seconds=root.ended - root.began,
            error=str(failed or "the root span has the status error") if root.failed else None,
        )

    def _around(self, span: Span) -> Iterator[Span]:
        """The spans around one, the nearest first."""
        seen = {span.id}
        while span.parent in self._spans and span.parent not in seen:
            span = self._spans[span.parent]
            seen.add(span.id)
            yield span

    def _act(self, span: Span) -> Act:
        known = span.attributes
        written = _messages(span, _OUTPUT)
        if not written:
            raise BadLog(f"{_OUTPUT}: is not there, so nobody knows what was written; {_HOW}")
        reply = written[-1]
        system = [Message(role="system", content=_parts_text(known[_SYSTEM]))] if _SYSTEM in known else []
        named = (one.text("gen_ai.agent.name") for one in (span, *self._around(span)))
        reasons = _value(known.get("gen_ai.response.finish_reasons"))
        return Act(
            agent=next((name for name in named if name), self._mapped.unnamed),
            model=span.text("gen_ai.response.model") or span.text("gen_ai.request.model"),
            messages=(*system, *_messages(span, _INPUT)),
            reply=Message(
                role="assistant", content=reply.content, tool_calls=reply.tool_calls, reasoning=reply.reasoning
            ),
            finish=finish_of(
                reasons[-1] if isinstance(reasons, list) and reasons else None,
                reply.tool_calls,
                "gen_ai.response.finish_reasons",
            ),
            answered=tuple(self._answered(span, reply.tool_calls)),
            usage=_usage(known),
            seconds=span.ended - span.began,
        )

    def _answered(self, action: Span, calls: Sequence[ToolCall]) -> Iterator[tuple[ToolCall, ToolResult]]:
        """The calls of an action with their results."""
        by_id = {call.id: call for call in calls if call.id is not None}
        for span in self._spans.values():
            if span.operation != _TOOL:
                continue
            identity, tool = span.text("gen_ai.tool.call.id"), span.text("gen_ai.tool.name") or span.name
            call = by_id.get(identity) if identity is not None else None
            if call is None and span.parent != action.id:
                continue
            result = _value(span.attributes.get("gen_ai.tool.call.result"))
            answer = result if isinstance(result, str) else "" if result is None else json.dumps(result)
            yield (
                call or called(tool, span.attributes.get("gen_ai.tool.call.arguments"), identity),
                ToolResult(
                    tool=tool,
                    status="error" if span.failed else "ok",
                    stdout=answer,
                    seconds=span.ended - span.began,
                ),
            )


def _blamed(read: Callable[[Span], T], span: Span) -> T:
    """What `read` makes of a span; what is wrong with it is said with its place."""
    try:
        return read(span)
    except BadLog as problem:
        raise InputError(f"{span.place}: span {span.name!r}: {problem}") from None


def _as_told(task: Task, root: Span, mapped: Mapped) -> Task:
    """The task, with the id and stratum that the tracker `otel` wrote, where no option names others."""
    if mapped.task_id is None and (name := root.text(_TASK)):
        task = replace(task, id=name)
    if mapped.stratum is None and (stratum := root.text(_STRATUM)):
        task = replace(task, stratum=stratum)
    return task


def _usage(known: Mapping[str, Any]) -> Usage | None:
    counts = [known.get(f"gen_ai.usage.{name}_tokens") for name in ("input", "output")]
    if all(count is None for count in counts):
        return None
    for name, count in zip(("input", "output"), counts, strict=True):
        if count is not None and not isinstance(count, int):
            raise BadLog(f"gen_ai.usage.{name}_tokens: no number of tokens: {count!r}")
    return Usage(calls=1, prompt_tokens=counts[0], completion_tokens=counts[1])


def _messages(span: Span, key: str) -> list[Message]:
    raw = _value(span.attributes.get(key))
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise BadLog(f"{key}: not a list of messages")
    return [message for place, one in enumerate(raw) for message in _message(one, f"{key}.{place}")]


def _message(raw: Any, place: str) -> Iterator[Message]:
    """A message as the conventions have it: a role and parts. Each answer of a tool becomes a message of its own."""
    role = raw.get("role") if isinstance(raw, Mapping) else None
    parts = raw.get("parts") if isinstance(raw, Mapping) else None
    if not isinstance(role, str) or role not in _ROLES or not isinstance(parts, list):
        raise BadLog(f"{place}: not a message with a role ({', '.join(_ROLES)}) and parts")
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise BadLog(f"{place}.parts: a part has no type")
    answers = [part for part in parts if part["type"] == "tool_call_response"]
    for part in answers:
        answer = part.get("response", part.get("result"))
        text = answer if isinstance(answer, str) else json.dumps(answer)
        yield Message(role="tool", content=text, tool_call_id=part.get("id"))
    if len(answers) == len(parts) and answers:
        return
    reasoning = [str(part.get("content")) for part in parts if part["type"] == "reasoning"]
    yield Message(
        role=_ROLES[role],
        content=_parts_text([part for part in parts if part["type"] not in _APART]),
        name=raw.get("name"),
        tool_calls=tuple(
            called(str(part.get("name")), part.get("arguments"), part.get("id"))
            for part in parts
            if part["type"] == "tool_call"
        ),
        reasoning="\n".join(reasoning) or None,
    )


def _parts_text(raw: Any) -> str:
    parts = _value(raw)
    if isinstance(parts, str):
        return parts
    if not isinstance(parts, list):
        raise BadLog(f"{_SYSTEM}: neither text nor a list of parts")
    told = (part if isinstance(part, Mapping) else {"type": "text", "content": part} for part in parts)
    return "\n".join(
        str(part["content"]) if isinstance(part.get("content"), str) else f"[{part.get('type')}]" for part in told
    )


def _value(raw: Any) -> Any:
    """An attribute's value: most SDKs write lists and objects as JSON text."""
    if isinstance(raw, str) and raw[:1] in ("[", "{"):
        try:
            return json.loads(raw)
        except ValueError:
            return raw
    return raw
