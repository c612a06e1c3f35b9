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
from typing import Any, TypeVar

from mappa.look.importing.chat_messages import (
    answer_result,
    name_unknown_finish,
    read_finish,
    read_token_count,
)
from mappa.look.importing.content import Answer, Content, make_call, read_answer, read_content
from mappa.look.importing.documents import decode_embedded
from mappa.look.importing.log_mapping import (
    LogFormatError,
    LoggedAction,
    LoggedTrajectory,
    LogMapping,
    count_odd_scores,
    read_outcome,
    read_task,
)
from mappa.look.importing.message_forms import (
    ROLES,
    NormalMessage,
    find_role,
    group_items,
    is_langchain,
    merge_messages,
    pair_answers,
    read_message,
    unwrap,
)
from mappa.look.importing.spans import AROUND, Span
from mappa_core import InputError, Message, Task, ToolCall, ToolResult, Usage

T = TypeVar("T")

_ACTION_OPERATIONS = ("chat", "generate_content", "text_completion", "invoke_agent")
_TOOL_OPERATION = "execute_tool"
_INPUT, _OUTPUT, _SYSTEM = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
_FINISH, _CHOICES = "gen_ai.response.finish_reasons", "gen_ai.request.choice.count"
_OUTCOME_PREFIX = "mappa.outcome."
_PROMPT, _TASK, _STRATUM = "mappa.task.prompt", "mappa.task", "mappa.stratum"
"""Attributes that the tracker `otel` writes; they are read back without an option that names them."""
FAILED = "calls of a model that failed"
"""Why a span that has the status error and no output is no action."""
CANDIDATES, OTHERS = "other candidates of a reply", "messages of others in a reply"
NO_CALL = "results of tools whose call the log does not have"
"""What of a trace is not in the run."""
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
        return replace(
            log, entries=len(spans), left_out=left_out, place=root.place, run=root.trace, unread=unread,
            notes={**self._count_notes(), **log.notes},
        )  # fmt: skip

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
            error=str(failed or root.error or "the root span has the status error") if root.failed else None,
            notes=count_odd_scores({name: known.get(key) for name, key in {**own, **mapping.outcomes}.items()}),
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
        reply = self._replies[span.id].content
        system = [Message(role="system", content=_read_system(known))] if _SYSTEM in known else []
        around = (span, *self._ancestors(span))
        keys = [key for key in (self._mapping.agent_from, "gen_ai.agent.name") if key is not None]
        named = (one.text(key) for key in keys for one in around)
        return LoggedAction(
            agent=next((name for name in named if name and name.strip()), self._mapping.default_agent),
            model=span.text("gen_ai.response.model") or span.text("gen_ai.request.model"),
            messages=(*system, *self._shown[span.id]),
            reply=Message(
                role="assistant", content=reply.text, tool_calls=reply.calls, reasoning=reply.thinking or None
            ),
            finish=read_finish(_finish_reason(span), reply.calls),
            results=tuple(self._tool_results(span, reply)),
            usage=_read_usage(known),
            seconds=span.end - span.start,
            span=span.id,
        )

    def _tool_results(self, action: Span, reply: Content) -> Iterator[tuple[ToolCall, ToolResult]]:
        """The tool calls of an action with their results: from the reply itself, from a span with the id of the call,
        from the next span of that tool without an id, or from a later message that answers the call."""
        own = pair_answers([reply]).get(0, {})
        for place, call in enumerate(reply.calls):
            span = self._find_tool_span(action, call)
            if span is not None:
                self._claimed.add(span.id)
            if place in own:
                yield call, answer_result(call.name, own[place].text, failed=own[place].failed)
            elif span is not None:
                yield call, _read_tool_result(span)
            elif (answer := self._find_answer(action, reply, place)) is not None:
                yield call, answer_result(call.name, answer.text, failed=answer.failed)
        for span in self._tools:
            if span.parent == action.id and span.id not in self._claimed:
                self._claimed.add(span.id)
                yield _tool_call(span), _read_tool_result(span)

    def _find_tool_span(self, action: Span, call: ToolCall) -> Span | None:
        free = [span for span in self._tools if span.id not in self._claimed]
        same_id = (span for span in free if call.id is not None and span.text("gen_ai.tool.call.id") == call.id)
        after = [
            span
            for span in free
            if span.text("gen_ai.tool.call.id") is None and span.start >= action.end and _tool_name(span) == call.name
        ]
        # Calls at once may end, and stand in the log, in any order.
        same_arguments = (span for span in after if _tool_call(span).arguments == call.arguments)
        return next(same_id, None) or next(same_arguments, None) or next(iter(after), None)

    def _find_answer(self, action: Span, reply: Content, place: int) -> Answer | None:
        """The answer to a call among the messages that were shown to models. Where its id is used more than once, or it
        has none, a later span that shows the call itself says it: its first answer behind the last such call."""
        call = reply.calls[place]
        later = list(islice(dropwhile(lambda identity: identity != action.id, self._given), 1, None))
        if call.id is None:
            unnamed = (_find_unnamed(self._given[identity], reply, place) for identity in later)
            return next((answer for answer in unnamed if answer is not None), None)
        if call.id not in self._answers:
            return None
        if self._uses[call.id] == 1 and _first_answer(self._given[action.id], call.id) is None:
            return self._answers[call.id]
        found = (_first_answer(_behind(self._given[identity], call), call.id) for identity in later)
        return next((answer for answer in found if answer is not None), None)

    @cached_property
    def _given(self) -> Mapping[str, Sequence[NormalMessage]]:
        """The messages that models and agents were shown, by span, in order of their start."""
        models = (span for span in self._spans.values() if span.operation in _ACTION_OPERATIONS)
        return {span.id: _with_place(lambda one: _read_messages(one, _INPUT), span) for span in models}

    @cached_property
    def _shown(self) -> Mapping[str, Sequence[Message]]:
        return {
            identity: [message for one in given for message in one.to_messages()]
            for identity, given in self._given.items()
        }

    @cached_property
    def _written(self) -> Mapping[str, Sequence[NormalMessage]]:
        """What each action wrote, as the log has it."""
        actions = (self._spans[identity] for identity, why in self._why_no_action.items() if not why)
        return {span.id: _with_place(_read_output, span) for span in actions}

    @cached_property
    def _replies(self) -> Mapping[str, NormalMessage]:
        return {identity: _join_reply(self._spans[identity], written) for identity, written in self._written.items()}

    @cached_property
    def _answers(self) -> Mapping[str, Answer]:
        """The first answer of a tool to each id of a call."""
        found: dict[str, Answer] = {}
        for answer in (answer for given in self._given.values() for one in given for answer in one.content.answers):
            if answer.call is not None:
                found.setdefault(answer.call, answer)
        return found

    @cached_property
    def _uses(self) -> Mapping[str | None, int]:
        """How many calls of the actions have an id."""
        return Counter(call.id for reply in self._replies.values() for call in reply.content.calls)

    def _count_notes(self) -> Mapping[str, int]:
        """What was left out of replies, and once of each message that was shown; other candidates, and results that
        stand nowhere."""
        notes = Counter[str]()
        for identity, reply in self._replies.items():
            notes.update(reply.content.notes)
            written = self._written[identity]
            if _are_candidates(self._spans[identity], written):
                notes[CANDIDATES] += len(written) - 1
            else:
                notes[OTHERS] += sum(one.role not in ("assistant", "tool") for one in written)
        shown = [one for identity in self._replies for one in self._given[identity]]
        # A message is shown again in every later span, and so is what the actions themselves wrote.
        own = {repr(piece) for written in self._written.values() for one in written for piece in one.pieces}
        pieces = {repr(piece): piece.notes for one in shown for piece in one.pieces if piece.notes}
        for held in (noted for key, noted in pieces.items() if key not in own):
            notes.update(held)
        told = {answer.text for one in shown for answer in one.content.answers}
        free = (_read_tool_result(span).stdout for span in self._tools if span.id not in self._claimed)
        notes[NO_CALL] += sum(bool(text) and text not in told for text in free)
        return dict(+notes)


def _finish_reason(span: Span) -> Any:
    reasons = decode_embedded(span.attributes.get(_FINISH))
    return reasons[-1] if isinstance(reasons, list) and reasons else None


def _tool_name(span: Span) -> str:
    return span.text("gen_ai.tool.name") or span.name


def _tool_call(span: Span) -> ToolCall:
    identity = span.text("gen_ai.tool.call.id")
    (call,) = make_call(_tool_name(span), span.attributes.get("gen_ai.tool.call.arguments"), identity).calls
    return call


def _read_tool_result(span: Span) -> ToolResult:
    value = span.attributes.get("gen_ai.tool.call.result")
    decoded = decode_embedded(value)
    if isinstance(decoded, Mapping) and is_langchain(decoded):
        content = read_message(unwrap(decoded), "tool", None, "gen_ai.tool.call.result", "content").content
        text, failed = "\n".join(one.text for one in content.answers), any(one.failed for one in content.answers)
    else:
        text, _, failed = read_answer(decoded)
        # Data keep the text in which they stand.
        text = value if isinstance(value, str) and text == json.dumps(decoded, ensure_ascii=False) else text
    failed = failed or span.failed
    text = text or (span.error if failed else "")
    return answer_result(_tool_name(span), text, failed=failed, seconds=span.end - span.start)


def _has_output(span: Span) -> bool:
    return bool(decode_embedded(span.attributes.get(_OUTPUT)))


def _first_answer(given: Sequence[NormalMessage], identity: str) -> Answer | None:
    answers = (answer for one in given for answer in one.content.answers)
    return next((answer for answer in answers if answer.call == identity), None)


def _find_unnamed(given: Sequence[NormalMessage], reply: Content, place: int) -> Answer | None:
    """The answer to a call without an id, where its reply was shown last."""
    contents = [message.content for message in given]
    shown = [number for number, content in enumerate(contents) if content.calls == reply.calls]
    return pair_answers(contents).get(shown[-1], {}).get(place) if shown else None


def _behind(given: Sequence[NormalMessage], call: ToolCall) -> Sequence[NormalMessage]:
    """The messages from the last one with a call. Of a model that is shown answers without any call of its id all, of
    one that is shown other calls of its id none."""
    last = max((number for number, one in enumerate(given) if call in one.content.calls), default=None)
    if last is not None:
        return given[last:]
    return () if any(other.id == call.id for one in given for other in one.content.calls) else given


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


def _read_messages(span: Span, key: str) -> list[NormalMessage]:
    raw = decode_embedded(span.attributes.get(key))
    if raw is None:
        return []
    if not isinstance(raw, list):
        raise LogFormatError(f"{key}: not a list of messages")
    groups = group_items([unwrap(one) if isinstance(one, Mapping) else one for one in raw])
    return [
        merge_messages([_read_message(one, f"{key}.{start + place}") for place, one in enumerate(group)])
        for start, group in groups
    ]


def _read_message(raw: Any, place: str) -> NormalMessage:
    role = find_role(raw) if isinstance(raw, Mapping) else None
    if not isinstance(role, str) or role not in ROLES:
        raise LogFormatError(f"{place}: not a message with a role ({', '.join(ROLES)}): {str(raw)[:80]}")
    name = raw.get("name")
    return read_message(raw, ROLES[role], name if isinstance(name, str) and "role" in raw else None, place, "content")


def _read_output(span: Span) -> list[NormalMessage]:
    written = _read_messages(span, _OUTPUT)
    if not written:
        raise LogFormatError(f"{_OUTPUT}: is not there, so nobody knows what was written; {_CAPTURE_HINT}")
    return written


def _join_reply(span: Span, written: Sequence[NormalMessage]) -> NormalMessage:
    """A reply is one message or, of parallel calls and of an agent that called tools, several: those of the model and
    of its tools are joined. Of several candidates it is the last."""
    if len(written) == 1 or _are_candidates(span, written):
        return written[-1]
    own = [one for one in written if one.role in ("assistant", "tool")] or written[-1:]
    return merge_messages(own)


def _are_candidates(span: Span, written: Sequence[NormalMessage]) -> bool:
    """Whether the messages of an output are alternatives, of which the span asked for several."""
    asked, reasons = span.attributes.get(_CHOICES), decode_embedded(span.attributes.get(_FINISH))
    several = isinstance(asked, int) and asked > 1
    return len(written) > 1 and (several or (isinstance(reasons, list) and len(reasons) == len(written)))


def _read_system(known: Mapping[str, Any]) -> str:
    return read_content(decode_embedded(known[_SYSTEM]), _SYSTEM).text
