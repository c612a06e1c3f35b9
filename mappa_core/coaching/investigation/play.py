"""A play as documents to read line by line: the task, and what is recorded of every step; and its outline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mappa_core.coaching.data_fences import neutralize, quote_name
from mappa_core.coaching.evidence import Exhibit, record_exhibits
from mappa_core.records import Scene, Step, ToolResult
from mappa_core.tools.parse_calls import unanswered_calls

LINE_CHARACTERS = 400
"""Length at which a line of the log is continued on the next, so that a range of lines bounds what is read."""
OUTLINE_CHARACTERS = 32_000
"""Maximum characters of the outline, which every question repeats."""
MIN_OUTLINE_LINE, MAX_OUTLINE_LINE = 60, 200
NAME_CHARACTERS = 40
"""Characters that the outline shows of the name of an agent or a tool."""
OUTCOME_WORDS = {"ok": "ok", "error": "failed", "timeout": "timed out"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A part of a document: a `title` in our words over its lines [start, end), which may be none."""

    title: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Lines of text of strangers, safe for a fence. A line whose number is in `continued` is the rest of the one before
    it. `results` are those of a step's tool calls."""

    lines: tuple[str, ...]
    passages: tuple[Passage, ...]
    continued: frozenset[int]
    results: tuple[ToolResult, ...] = ()

    @property
    def characters(self) -> int:
        return sum(map(len, self.lines))

    def join(self, start: int, end: int) -> str:
        """The text of the lines [start, end)."""
        parts = []
        for number in range(start, end):
            separator = "" if number == start or number in self.continued else "\n"
            parts.append(separator + self.lines[number])
        return "".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """Documents by number: 0 is the task, the others are the steps from 1 on, by `agents[number - 1]`."""

    documents: tuple[Document, ...]
    agents: tuple[str, ...]
    outline: tuple[str, ...]


def build_play(last: Scene, truths: Mapping[str, str]) -> Play:
    """Build the play up to `last.step`, and beyond it where later steps are known. `truths` are what the workflow
    reveals of steps, by their ids."""
    steps = (*last.earlier, last.step, *(last.later or ()))
    task = [Exhibit(kind="task", title="What was asked:", data=last.task.prompt.rstrip())]
    if last.task.files:
        names = "\n".join(map(quote_name, last.task.files))
        task.append(Exhibit(kind="files", title="It came with files:", data=names))
    # What the task says is not shown again as a message of the first step.
    seen = {last.task.prompt.strip()}
    documents = [_build_document(task)]
    for place, step in enumerate(steps):
        exhibits = [*_new_messages(step, seen), *record_exhibits(step, steps[:place])]
        if step.id in truths:
            exhibits.append(Exhibit(kind="truth", title="The truth about this step:", data=truths[step.id]))
        documents.append(_build_document(exhibits, step.results))
        seen.add(step.reply.content.strip())
        seen.update(text.strip() for result in step.results for text in (result.stdout, result.stderr))
    return Play(
        documents=tuple(documents),
        agents=tuple(step.agent for step in steps),
        outline=tuple(_build_outline(steps, documents[1:])),
    )


def _new_messages(step: Step, seen: set[str]) -> Iterator[Exhibit]:
    """What `step` was shown and no earlier step wrote, printed or was shown: of a chat, each message once."""
    some_known = False
    for message in step.messages:
        text = message.content.strip()
        if not text or text in seen:
            some_known = True
            continue
        seen.add(text)
        yield Exhibit(kind="shown", title=f"It was shown, from {message.role}:", data=message.content.rstrip())
    if some_known:
        yield Exhibit(kind="fact", title="It was also shown messages that are the task or of earlier steps.")


def _build_document(exhibits: Sequence[Exhibit], results: tuple[ToolResult, ...] = ()) -> Document:
    lines: list[str] = []
    passages, continued = [], set()
    for exhibit in exhibits:
        start = len(lines)
        for line in () if exhibit.data is None else neutralize(exhibit.data).split("\n"):
            for place in range(0, max(1, len(line)), LINE_CHARACTERS):
                if place:
                    continued.add(len(lines))
                lines.append(line[place : place + LINE_CHARACTERS])
        # Headings of the evidence are of a whole action; here each is a line of its own.
        title = exhibit.title.replace("## ", "").replace("\n\n", ": ")
        passages.append(Passage(title=title, start=start, end=len(lines)))
    return Document(lines=tuple(lines), passages=tuple(passages), continued=frozenset(continued), results=results)


def _build_outline(steps: Sequence[Step], documents: Sequence[Document]) -> Iterator[str]:
    """One line per step; of a play of too many steps, the first and the last ones."""
    width = max(MIN_OUTLINE_LINE, min(MAX_OUTLINE_LINE, OUTLINE_CHARACTERS // max(1, len(steps))))
    shown = OUTLINE_CHARACTERS // width
    hidden = range(shown // 2, len(steps) - shown // 2) if len(steps) > shown else range(0)
    for place, (step, document) in enumerate(zip(steps, documents, strict=True)):
        if place not in hidden:
            yield _outline_line(place + 1, step, document)[:width]
        elif place == hidden.start:
            yield f"(steps {hidden.start + 1} to {hidden.stop} are not listed, and can be searched and read)"


def _outline_line(number: int, step: Step, document: Document) -> str:
    outcomes = [
        *(
            f"{_one_line(call.name)} {_call_outcome(call.error, result)}"
            for call, result in zip(step.calls, step.results, strict=True)
        ),
        *(f"{_one_line(call.name)} without a recorded answer" for call in unanswered_calls(step.reply, step.calls)),
    ]
    facts = [
        f"{len(document.lines)} lines, {document.characters} characters",
        *([f"calls: {', '.join(outcomes)}"] if outcomes else []),
        *(["cut off"] if step.truncated else []),
        *(["broken contract"] if step.breaches else []),
    ]
    text = _one_line(step.reply.content, MAX_OUTLINE_LINE) or ("no text" if outcomes else "empty")
    return neutralize(f"{number} {_one_line(step.agent)} ({'; '.join(facts)}): {text}")


def _call_outcome(error: str | None, result: ToolResult) -> str:
    return "not run" if error is not None else OUTCOME_WORDS[result.status]


def _one_line(text: str, limit: int = NAME_CHARACTERS) -> str:
    # Cut first: the text may be as long as all of the log.
    return " ".join(text[: 4 * limit].split())[:limit]
