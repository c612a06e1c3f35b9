"""Reads trajectories from OpenTelemetry spans of the GenAI semantic conventions
(github.com/open-telemetry/semantic-conventions-genai).

A line is a span as the SDKs print it (`name`, `context`, `attributes`), or an OTLP export (`resourceSpans`). The spans
of one trace are a trajectory. An action is an innermost span of an agent or model operation; it must record its output,
unless it failed: a failed one without an output is no action. Its agent is `gen_ai.agent.name` of the span or of its
nearest ancestor that has one. Results of tools come from `execute_tool` spans that have the id of an action's tool call
or are children of an action, and from the messages that later spans show.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import dropwhile, islice
from typing import Any, Literal, TypeVar

from mappa.look.importing.chat_messages import (
    answer_result,
    make_tool_call,
    name_unknown_finish,
    read_finish,
    read_token_count,
)
from mappa.look.importing.documents import decode_embedded
from mappa.look.importing.log_mapping import (
    LogFormatError,
    LoggedAction,
    LoggedTrajectory,
    LogMapping,
    read_outcome,
    read_task,
)
from mappa.look.importing.spans import AROUND, Span
from mappa_core import InputError, Message, Task, ToolCall, ToolResult, Usage

T = TypeVar("T")

_ACTION_OPERATIONS = ("chat", "generate_content", "text_completion", "invoke_agent")
_TOOL_OPERATION = "execute_tool"
_INPUT, _OUTPUT, _SYSTEM = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
_FINISH = "gen_ai.response.finish_reasons"
_OUTCOME_PREFIX = "mappa.outcome."
_PROMPT, _TASK, _STRATUM = "mappa.task.prompt", "mappa.task", "mappa.stratum"
"""Attributes that the tracker `otel` writes; they are read back without an option that names them."""
_ROLES: Mapping[str, Literal["system", "user", "assistant", "tool"]] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "developer": "system",
}
_NON_TEXT_PARTS = ("tool_call", "tool_call_response", "reasoning")
"""Types of message parts that are not part of its text."""
FAILED = "calls of a model that failed"
"""Why a span that has the status error and no output is no action."""
_CAPTURE_HINT = (
    "record what is said: OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=span_only with "
    "OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental, or `content: true` of the tracker otel"
)


def read_traces(spans: Sequence[Span], mapping: LogMapping) -> list[LoggedTrajectory]:
    """Read a trajectory from each trace, in order of their start; one without an action has none and counts its spans.

    Raises:
        InputError: a span is invalid or does not record its output; the message names its line, name and key.
    """
    traces: dict[str, list[Span]] = {}
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        traces.setdefault(span.trace, []).append(span)
    return [_Trace(trace, mapping).read() for trace in traces.values()]


class _Trace:
    """The spans of one trace, in order of their start."""

    def __init__(self, spans: Sequence[Span], mapping: LogMapping) -> None:
        self._spans = {span.id: span for span in spans}
        self._mapping = mapping
        self._tools = [span for span in spans if span.operation == _TOOL_OPERATION]
        self._claimed: set[str] = set()
        """Spans of tools whose call is known."""

    def read(self) -> LoggedTrajectory:
        """Read the trajectory."""
        spans, why = list(self._spans.values()), self._why_no_action
        left_out = Counter(reason for reason in why.values() if reason)
        acting = {identity: number for number, (identity, reason) in enumerate(why.items()) if not reason}
        if not acting:
            return LoggedTrajectory(
                task=Task(id="", prompt=""), acts=(), outcome={}, entries=len(spans), left_out=left_out,
                place=spans[0].place, run=spans[0].trace,
            )  # fmt: skip
        acts = tuple(
            replace(_with_place(self._read_action, self._spans[identity]), number=number)
            for identity, number in acting.items()
        )
        root = next((span for span in spans if span.parent not in self._spans), self._spans[next(iter(acting))])
        log = _with_place(lambda span: self._build(span, acts), root)
        ends = (_finish_reason(self._spans[identity]) for identity in acting)
        unread = tuple(dict.fromkeys(name for end in ends for name in name_unknown_finish(end, _FINISH)))
        return replace(log, entries=len(spans), left_out=left_out, place=root.place, run=root.trace, unread=unread)

    def _build(self, root: Span, acts: tuple[LoggedAction, ...]) -> LoggedTrajectory:
        known, mapping = root.attributes, self._mapping
        question = next((one.content for one in acts[0].messages if one.role == "user"), None)
        task = read_task(known, mapping, prompt=root.text(_PROMPT) or question)
        own = {
            key.removeprefix(_OUTCOME_PREFIX): key
            for key in known
            if key.startswith(_OUTCOME_PREFIX) and key not in mapping.outcomes.values()
        }
        failed = known.get("error.type") if root.failed else None
        return LoggedTrajectory(
            task=_with_tracker_ids(task, root, mapping),
            acts=acts,
            outcome=read_outcome(known, {**own, **mapping.outcomes}),
            seconds=root.end - root.start,
            error=str(failed or "the root span has the status error") if root.failed else None,
        )

    @cached_property
    def _why_no_action(self) -> Mapping[str, str]:
        """Why a span is no action, by its id, in order of their start; empty for those that are actions."""
        models = [span for span in self._spans.values() if span.operation in _ACTION_OPERATIONS]
        silent = {span.id for span in models if span.failed and not _has_output(span)}
        around_written = {one.id for span in models if span.id not in silent for one in self._ancestors(span)}
        around_silent = {one.id for span in models if span.id in silent for one in self._ancestors(span)}

        def explain(span: Span) -> str:
            if span.operation == _TOOL_OPERATION:
                return "calls of tools"
            if span.operation not in _ACTION_OPERATIONS:
                return span.note or "of no model and no tool"
            # An agent may have written something of its own when its model failed.
            if span.id in around_written or (span.id in around_silent and not _has_output(span)):
                return AROUND
            return FAILED if span.id in silent else ""

        return {span.id: explain(span) for span in self._spans.values()}

    def _ancestors(self, span: Span) -> Iterator[Span]:
        """The ancestors of a span, the nearest first."""
        seen = {span.id}
        while span.parent in self._spans and span.parent not in seen:
            span = self._spans[span.parent]
            seen.add(span.id)
            yield span

    def _read_action(self, span: Span) -> LoggedAction:
        known = span.attributes
        written = _read_messages(span, _OUTPUT)
        if not written:
            raise LogFormatError(f"{_OUTPUT}: is not there, so nobody knows what was written; {_CAPTURE_HINT}")
        reply = written[-1]
        system = [Message(role="system", content=_join_parts(known[_SYSTEM]))] if _SYSTEM in known else []
        around = (span, *self._ancestors(span))
        keys = [key for key in (self._mapping.agent_from, "gen_ai.agent.name") if key is not None]
        named = (one.text(key) for key in keys for one in around)
        return LoggedAction(
            agent=next((name for name in named if name and name.strip()), self._mapping.default_agent),
            model=span.text("gen_ai.response.model") or span.text("gen_ai.request.model"),
            messages=(*system, *_read_messages(span, _INPUT)),
            reply=Message(
                role="assistant", content=reply.content, tool_calls=reply.tool_calls, reasoning=reply.reasoning
            ),
            finish=read_finish(_finish_reason(span), reply.tool_calls),
            results=tuple(self._tool_results(span, reply.tool_calls)),
            usage=_read_usage(known),
            seconds=span.end - span.start,
        )

    def _tool_results(self, action: Span, calls: Sequence[ToolCall]) -> Iterator[tuple[ToolCall, ToolResult]]:
        """The tool calls of an action with their results: from a span with the id of the call, from the next span of
        that tool without an id, or from a later message that answers the call."""
        for call in calls:
            span = self._find_tool_span(action, call)
            if span is not None:
                self._claimed.add(span.id)
                yield call, _read_tool_result(span)
            elif (answer := self._find_answer(action, call)) is not None:
                yield call, answer_result(call.name, answer)
        for span in self._tools:
            if span.parent == action.id and span.id not in self._claimed:
                result, identity = _read_tool_result(span), span.text("gen_ai.tool.call.id")
                yield make_tool_call(result.tool, span.attributes.get("gen_ai.tool.call.arguments"), identity), result

    def _find_tool_span(self, action: Span, call: ToolCall) -> Span | None:
        free = [span for span in self._tools if span.id not in self._claimed]
        same_id = (span for span in free if call.id is not None and span.text("gen_ai.tool.call.id") == call.id)
        after = (
            span
            for span in free
            if span.text("gen_ai.tool.call.id") is None and span.start >= action.end and _tool_name(span) == call.name
        )
        return next(same_id, None) or next(after, None)

    def _find_answer(self, action: Span, call: ToolCall) -> str | None:
        """The answer to a call among the messages that were shown to models. Where its id is used more than once, a
        later span that shows the call itself says it: its first answer behind the last such call."""
        if call.id is None or call.id not in self._answers:
            return None
        if self._uses[call.id] == 1 and _first_answer(self._shown[action.id], call.id) is None:
            return self._answers[call.id]
        later = islice(dropwhile(lambda identity: identity != action.id, self._shown), 1, None)
        found = (_first_answer(_behind(self._shown[identity], call), call.id) for identity in later)
        return next((answer for answer in found if answer is not None), None)

    @cached_property
    def _shown(self) -> Mapping[str, Sequence[Message]]:
        """The messages that models and agents were shown, by span, in order of their start."""
        models = (span for span in self._spans.values() if span.operation in _ACTION_OPERATIONS)
        return {span.id: _with_place(lambda one: _read_messages(one, _INPUT), span) for span in models}

    @cached_property
    def _answers(self) -> Mapping[str, str]:
        """The first answer of a tool to each id of a call."""
        shown = (message for messages in self._shown.values() for message in messages if message.role == "tool")
        found: dict[str, str] = {}
        for one in shown:
            if one.tool_call_id is not None:
                found.setdefault(one.tool_call_id, one.content)
        return found

    @cached_property
    def _uses(self) -> Mapping[str | None, int]:
        """How many calls of the actions have an id."""
        actions = (self._spans[identity] for identity, why in self._why_no_action.items() if not why)
        written = (_with_place(lambda one: _read_messages(one, _OUTPUT), span)[-1:] for span in actions)
        return Counter(call.id for replies in written for reply in replies for call in reply.tool_calls)


def _finish_reason(span: Span) -> Any:
    reasons = decode_embedded(span.attributes.get(_FINISH))
    return reasons[-1] if isinstance(reasons, list) and reasons else None


def _tool_name(span: Span) -> str:
    return span.text("gen_ai.tool.name") or span.name


def _read_tool_result(span: Span) -> ToolResult:
    result = decode_embedded(span.attributes.get("gen_ai.tool.call.result"))
    answer = result if isinstance(result, str) else "" if result is None else json.dumps(result)
    return answer_result(_tool_name(span), answer, failed=span.failed, seconds=span.end - span.start)


def _has_output(span: Span) -> bool:
    return bool(decode_embedded(span.attributes.get(_OUTPUT)))


def _first_answer(shown: Sequence[Message], identity: str) -> str | None:
    return next((one.content for one in shown if one.role == "tool" and one.tool_call_id == identity), None)


def _behind(shown: Sequence[Message], call: ToolCall) -> Sequence[Message]:
    """The messages behind the last one with a call. Of a model that is shown answers without any call of its id all,
    of one that is shown other calls of its id none."""
    last = max((number for number, one in enumerate(shown) if call in one.tool_calls), default=None)
    if last is not None:
        return shown[last + 1 :]
    return () if any(other.id == call.id for one in shown for other in one.tool_calls) else shown


def _with_place(read: Callable[[Span], T], span: Span) -> T:
    """Apply `read` to a span and add the span's place to its errors."""
    try:
        return read(span)
    except LogFormatError as problem:
        raise InputError(f"{span.place}: span {span.name!r}: {problem}") from None


def _with_tracker_ids(task: Task, root: Span, mapping: LogMapping) -> Task:
    """The task with the id and stratum that the tracker `otel` wrote, unless options name other keys."""
    if mapping.task_id is None and (name := root.text(_TASK)):
        task = replace(task, id=name)
    if mapping.stratum is None and (stratum := root.text(_STRATUM)):
        task = replace(task, stratum=stratum)
    return task


def _read_usage(known: Mapping[str, Any]) -> Usage | None:
    keys = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
    prompt, completion = (read_token_count(known.get(key), key) for key in keys)
    if prompt is None and completion is None:
        return None
    return Usage(calls=1, prompt_tokens=prompt, completion_tokens=completion)


def _read_messages(span: Span, key: str) -> list[Message]:
    raw = decode_embedded(span.attributes.get(key))
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise LogFormatError(f"{key}: not a list of messages")
    return [message for place, one in enumerate(raw) for message in _read_message(one, f"{key}.{place}")]


def _read_message(raw: Any, place: str) -> Iterator[Message]:
    """Read a message of the conventions: a role and parts. Each tool answer becomes a message of its own."""
    role = raw.get("role") if isinstance(raw, Mapping) else None
    parts = raw.get("parts") if isinstance(raw, Mapping) else None
    if not isinstance(role, str) or role not in _ROLES or not isinstance(parts, list):
        raise LogFormatError(f"{place}: not a message with a role ({', '.join(_ROLES)}) and parts")
    for part in parts:
        if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
            raise LogFormatError(f"{place}.parts: a part has no type")
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
        content=_join_parts([part for part in parts if part["type"] not in _NON_TEXT_PARTS]),
        name=raw.get("name"),
        tool_calls=tuple(
            make_tool_call(str(part.get("name")), part.get("arguments"), part.get("id"))
            for part in parts
            if part["type"] == "tool_call"
        ),
        reasoning="\n".join(reasoning) or None,
    )


def _join_parts(raw: Any) -> str:
    parts = decode_embedded(raw)
    if isinstance(parts, str):
        return parts
    if not isinstance(parts, list):
        raise LogFormatError(f"{_SYSTEM}: neither text nor a list of parts")
    objects = (part if isinstance(part, Mapping) else {"type": "text", "content": part} for part in parts)
    return "\n".join(
        str(part["content"]) if isinstance(part.get("content"), str) else f"[{part.get('type')}]" for part in objects
    )
