"""Counts what of a log is in the run, and what is not: every text, call and result of a log is in one of the two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mappa.look.importing.documents import Document
from mappa.look.importing.log_mapping import LoggedAction, LoggedTrajectory
from mappa_core import ToolCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Of a file: the different `texts` that were written or shown and the `thoughts`, `calls` and `results` of actions.
    `notes` count by kind what is not in the run, or not as it was written."""

    texts: int
    thoughts: int
    calls: int
    results: int
    notes: Mapping[str, int]


def name_files(logs: Iterable[LoggedTrajectory], documents: Sequence[Document]) -> list[LoggedTrajectory]:
    """The logs with their files: a log stands at the place of an object, or at one inside it."""
    files = {document.place: str(document.file) for document in documents}
    return [replace(log, file=files.get(log.place) or files[log.place.rpartition(": ")[0]]) for log in logs]


def count_by_file(logs: Iterable[LoggedTrajectory]) -> dict[str, Ledger]:
    """The ledger of each file, in order of their first rollout."""
    groups: dict[str, list[LoggedTrajectory]] = {}
    for log in logs:
        groups.setdefault(log.file, []).append(log)
    return {file: _join(map(count_log, group)) for file, group in groups.items()}


def count_log(log: LoggedTrajectory) -> Ledger:
    """The ledger of a rollout."""
    results = [result.stdout for act in log.acts for _, result in act.results]
    answers, texts = set[str](), set[str]()
    # By identity first: of a conversation, every action is shown the same messages again.
    for message in {id(message): message for act in log.acts for message in act.messages}.values():
        if message.role == "tool":
            answers.add(message.content)
        elif message.content:
            texts.add(message.content)
    texts |= {act.reply.content for act in log.acts if act.reply.content}
    return Ledger(
        texts=len(texts),
        thoughts=sum(act.reply.reasoning is not None for act in log.acts),
        calls=sum(1 for act in log.acts for _ in _calls(act)),
        results=len(results) + len(answers.difference(results)),
        notes=dict(log.notes),
    )


def _calls(act: LoggedAction) -> Iterator[ToolCall]:
    """The calls of a reply, and those that are known by their results alone."""
    yield from act.reply.tool_calls
    yield from (call for call, _ in act.results if call not in act.reply.tool_calls)


def _join(ledgers: Iterable[Ledger]) -> Ledger:
    found, notes = tuple(ledgers), Counter[str]()
    for one in found:
        notes.update(one.notes)
    return Ledger(
        texts=sum(one.texts for one in found),
        thoughts=sum(one.thoughts for one in found),
        calls=sum(one.calls for one in found),
        results=sum(one.results for one in found),
        notes=dict(notes.most_common()),
    )
