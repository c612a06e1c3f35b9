"""A trajectory as a list of entries: what agents said, and what executions gave back.

An execution is a tool call of a step with its result, or, in conversations that were imported as text, a message in one
of the forms of AutoGen's executors, which answers the latest fenced program before it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mappa_coach_evidence.text import code_blocks, squeeze
from mappa_core import Breach, Scene

_EXIT = re.compile(r"\s*exitcode: *(-?\d+)[^\n]*\n?(?:Code output: *)?", re.IGNORECASE)
_IDLE = re.compile(r"\s*There is no code from the last \d+ messages? for me to execute", re.IGNORECASE)
_DONE = re.compile(r"\bTERMINATE\b|\bFINAL ANSWER\b|\\boxed\b")
_BARE_DONE = re.compile(r"\W*TERMINATE\W*")
_QUOTED = 200  # Characters of a task that a message must hold to quote it; tasks may end in attachments.


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Something said, or the output of an execution. `place` counts actions; None: a message that is no action.
    `author` of an output is the place of the action whose program ran; None: unknown."""

    place: int | None
    text: str
    is_output: bool = False
    author: int | None = None
    failed: bool = False

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
        for place, scene in enumerate(scenes):
            self._read_messages(scene)
            self._read_action(place, scene)

    def _read_messages(self, scene: Scene) -> None:
        """Outputs among what the action saw that no action and no earlier message held."""
        shown = Counter(message.content for message in scene.step.messages if _is_execution(message.content))
        for content, count in shown.items():
            for _ in range(count - self._executions[content]):
                self._add_text(None, content)

    def _read_action(self, place: int, scene: Scene) -> None:
        step = scene.step
        self._add_text(place, step.reply.content)
        for result in step.results:
            output = "\n".join(part for part in (result.stdout, result.stderr) if part)
            self.entries.append(
                Entry(place=None, text=output, is_output=True, author=place, failed=result.status != "ok")
            )

    def _add_text(self, place: int | None, text: str) -> None:
        if not _is_execution(text):
            self.entries.append(Entry(place=place, text=text))
            if any(code_blocks(text)):
                self._last_program = place
            return
        self._executions[text] += 1
        if place is not None:
            self.machine_places.add(place)
        exit_code = _EXIT.match(text)
        ran = None if exit_code is None else self._last_program
        failed = exit_code is not None and exit_code[1] != "0"
        output = "" if exit_code is None else text[exit_code.end() :]
        self.entries.append(Entry(place=place, text=output, is_output=True, author=ran, failed=failed))


def _is_execution(text: str) -> bool:
    return bool(_EXIT.match(text) or _IDLE.match(text))
