"""A trajectory as a list of entries: what agents said, and what executions gave back.

An execution is a tool call of a step with its result, or the answer to a call that the workflow itself made, or, in
conversations that were imported as text, a message of AutoGen's executors, which answers the latest fenced program
before it. Another agent that writes in that form only writes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mappa_coach_evidence.text import code_blocks, last_line, squeeze, without_code
from mappa_core import Breach, Scene, ToolCall, ToolResult
from mappa_core.coach import find_error_text

_EXIT = re.compile(r"\s*exitcode: *(-?\d+)[^\n]*\n?(?:Code output: *)?", re.IGNORECASE)
_IDLE = re.compile(r"\s*There is no code from the last \d+ messages? for me to execute", re.IGNORECASE)
_DONE = re.compile(
    r"\bTERMINATE\b|\b(?:final|the) answer\b(?: is\b|:)|\bfinal (?:result|report|plan|response)\b|\\boxed\b|</?answer>",
    re.IGNORECASE,
)
_REPORT = re.compile(r"submit|finish|answer|respond|reply|report|send|message|notify|done|complete", re.IGNORECASE)
_BARE_DONE = re.compile(r"\W*TERMINATE\W*")
_QUOTED = 200  # Characters of a task that a message must hold to quote it; tasks may end in attachments.


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Something said, or the output of an execution. `place` counts actions; None: a message that is no action.
    `author` of an output is the place of the action whose program ran; None: unknown. `call` is the tool call that an
    output answers, None for a program in a text; `error` is what the output says went wrong. `sent` are the texts that
    an action hands in by calls such as `submit`."""

    place: int | None
    text: str
    is_output: bool = False
    author: int | None = None
    call: ToolCall | None = None
    error: str | None = None
    sent: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        return self.error is not None

    @property
    def claims(self) -> str:
        """All that an action says to people: its text without programs, and the texts that it hands in by calls."""
        return "\n".join((without_code(self.text), *self.sent))

    @property
    def source(self) -> int | None:
        """Place of the action that answers for the text."""
        return self.author if self.is_output else self.place

    @property
    def concludes(self) -> bool:
        """Whether it says that the team is done."""
        return not self.is_output and bool(_DONE.search(self.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """Entries of a trajectory in order. `agents` act at the places 0, 1, …; `machines` are those of them that only
    execute; the actions in `cut_off` ended at their token limit; `opening` is the place of an action that hands on the
    task in full, None if there is none."""

    task: str
    agents: tuple[str, ...]
    entries: tuple[Entry, ...]
    breaches: tuple[tuple[int, Breach], ...] = ()
    cut_off: tuple[int, ...] = ()
    machines: frozenset[str] = frozenset()
    opening: int | None = None

    @property
    def spoken(self) -> tuple[Entry, ...]:
        """What agents said, without announcements that they are done."""
        return tuple(
            entry
            for entry in self.entries
            if not entry.is_output
            and entry.place is not None
            and self.agents[entry.place] not in self.machines
            and not _BARE_DONE.fullmatch(entry.text)
        )

    @property
    def outputs(self) -> tuple[Entry, ...]:
        """Outputs of executions whose program is known."""
        return tuple(entry for entry in self.entries if entry.is_output and entry.author is not None)

    @property
    def concluded(self) -> bool:
        """Whether the last entry says that the team is done."""
        return bool(self.entries) and self.entries[-1].concludes


def read_transcript(scenes: Sequence[Scene]) -> Transcript:
    """The transcript of the scenes of one trajectory, which are in order."""
    reader = _Reader(scenes)
    task = scenes[0].task.prompt if scenes else ""
    first = scenes[0].step.reply.content if scenes else ""
    head = squeeze(task)[:_QUOTED]
    return Transcript(
        task=task,
        agents=tuple(scene.step.agent for scene in scenes),
        entries=tuple(reader.entries),
        breaches=tuple((place, breach) for place, scene in enumerate(scenes) for breach in scene.step.breaches),
        cut_off=tuple(place for place, scene in enumerate(scenes) if scene.step.truncated),
        machines=frozenset(scenes[place].step.agent for place in reader.machine_places),
        opening=0 if head and head in squeeze(first) else None,
    )


class _Reader:
    def __init__(self, scenes: Sequence[Scene]) -> None:
        self.entries: list[Entry] = []
        self.machine_places: set[int] = set()
        self._last_program: int | None = None
        self._executions: Counter[str] = Counter()
        self._open_calls: dict[str, tuple[int, ToolCall]] = {}
        self._machines = _find_machines(scenes)
        for place, scene in enumerate(scenes):
            self._read_messages(scene)
            self._read_action(place, scene)

    def _read_messages(self, scene: Scene) -> None:
        """Outputs among what the action saw that no action and no earlier message held."""
        shown = Counter(
            message.content
            for message in scene.step.messages
            if message.role != "assistant" and _is_execution(message.content)
        )
        for content, count in shown.items():
            for _ in range(count - self._executions[content]):
                self._add_text(None, content)
        for message in scene.step.messages:
            if message.role == "tool" and message.tool_call_id in self._open_calls:
                place, call = self._open_calls.pop(message.tool_call_id)
                error = find_error_text(message.content)
                self._add_output(place, call, message.content, error)

    def _read_action(self, place: int, scene: Scene) -> None:
        step = scene.step
        texts = tuple(
            text
            for call in step.reply.tool_calls
            if _REPORT.search(call.name)
            for text in call.arguments.values()
            if isinstance(text, str)
        )
        if step.agent in self._machines:
            self._add_text(place, step.reply.content)
        else:
            self._add_speech(place, step.reply.content, sent=texts)
        for call, result in zip(step.calls, step.results, strict=True):
            output = "\n".join(part for part in (result.stdout, result.stderr) if part)
            self._add_output(place, call, output, _find_error(result, output))
        answered = {call.id for call in step.calls}
        for call in step.reply.tool_calls:
            if call.id is not None and call.id not in answered:
                self._open_calls[call.id] = place, call

    def _add_output(self, author: int, call: ToolCall, text: str, error: str | None) -> None:
        self.entries.append(Entry(place=None, text=text, is_output=True, author=author, call=call, error=error))

    def _add_speech(self, place: int | None, text: str, *, sent: tuple[str, ...] = ()) -> None:
        self.entries.append(Entry(place=place, text=text, sent=sent))
        if any(code_blocks(text)):
            self._last_program = place

    def _add_text(self, place: int | None, text: str) -> None:
        if not _is_execution(text):
            self._add_speech(place, text)
            return
        self._executions[text] += 1
        if place is not None:
            self.machine_places.add(place)
        exit_code = _EXIT.match(text)
        ran = None if exit_code is None else self._last_program
        output = "" if exit_code is None else text[exit_code.end() :]
        failed = exit_code is not None and exit_code[1] != "0"
        error = (last_line(output) or f"exit code {exit_code[1]}") if failed and exit_code is not None else None
        self.entries.append(Entry(place=place, text=output, is_output=True, author=ran, error=error))


def _find_machines(scenes: Sequence[Scene]) -> frozenset[str]:
    """Agents that only execute: all that they write has the form of an executor's answer, to a program that waits for
    one. An agent who writes such a text by itself only says what an executor would."""
    suspects = {scene.step.agent for scene in scenes}
    waiting = False
    for scene in scenes:
        step = scene.step
        waiting |= any(any(code_blocks(message.content)) for message in step.messages if message.role != "assistant")
        answers = bool(_EXIT.match(step.reply.content)) and waiting
        if step.reply.tool_calls or step.calls or not (answers or _IDLE.match(step.reply.content)):
            suspects.discard(step.agent)
        waiting = any(code_blocks(step.reply.content)) or (waiting and not answers)
    return frozenset(suspects)


def _find_error(result: ToolResult, output: str) -> str | None:
    said = find_error_text(output)
    if result.status == "ok":
        return said
    return said or last_line(output) or {"timeout": "timed out"}.get(result.status, "it failed")


def _is_execution(text: str) -> bool:
    return bool(_EXIT.match(text) or _IDLE.match(text))
