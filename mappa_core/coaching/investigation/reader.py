"""Carries out a model's requests to see a part of a log, within a budget, and remembers what it was shown."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from mappa_core.coaching.data_fences import neutralize
from mappa_core.coaching.investigation.inquiry import (
    MAX_REQUESTS,
    MIN_QUOTE_CHARACTERS,
    Answer,
    Compute,
    LogRequest,
    LookUp,
    Quote,
    Read,
    Search,
)
from mappa_core.coaching.investigation.play import Document, Play
from mappa_core.coaching.reply_parser import BadReply
from mappa_core.safe_arithmetic import ExpressionError, evaluate_expression, format_result
from mappa_core.safe_json import parse_untrusted_json

TURN_CHARACTERS = 16_000
"""Maximum characters of the log that one reply may get."""
REQUEST_CHARACTERS = 300
"""Characters that are shown of a request beside its result."""
MAX_SEARCH_TEXTS = 16
MAX_SEARCH_HITS = 40
OVER = "There is no more to read: the budget of characters is spent."
INVENTED = "it quotes what is not there, or was not read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A part of what a request gives: a `title` in our words, and `lines` of data, safe for a fence, if any."""

    title: str
    lines: tuple[str, ...] | None = None


class LogReader:
    """What one investigation may read, and has read, of a play."""

    def __init__(self, play: Play, characters: int) -> None:
        self._play = play
        self._left = characters
        self._left_now = 0
        self._lines_shown: dict[int, set[int]] = defaultdict(set)
        self._values_shown: dict[int, list[str]] = defaultdict(list)

    @property
    def characters_left(self) -> int:
        return self._left

    @property
    def steps_shown(self) -> tuple[int, ...]:
        """Steps of which something was shown, in order; 0 is the task."""
        return tuple(sorted({*self._lines_shown, *self._values_shown}))

    def begin(self, characters: int) -> list[Shown]:
        """Return the task, up to `characters` of it, which are no part of the budget."""
        self._left += characters
        self._left_now = characters
        shown = list(self._read(Read(step=0, first=1, last=None)))
        self._left -= self._left_now
        return shown

    def carry_out(self, requests: Sequence[LogRequest]) -> list[Shown]:
        """Carry out the requests of one reply. What cannot be carried out says why."""
        self._left_now = min(self._left, TURN_CHARACTERS)
        shown: list[Shown] = []
        for number, request in enumerate(requests[:MAX_REQUESTS], 1):
            shown.append(Shown(title=f"## Request {number}", lines=(_describe(request),)))
            shown += self._carry_out(request)
        if len(requests) > MAX_REQUESTS:
            left_out = f"{len(requests) - MAX_REQUESTS} further requests were left out: at most {MAX_REQUESTS} at once."
            shown.append(Shown(title=left_out))
        return shown

    def check_quotes(self, answer: Answer) -> None:
        """Raise BadReply if `answer` quotes what was not shown of the step that it names."""
        for finding in answer.findings:
            for quote in finding.quotes:
                self._check_quote(quote)

    def _carry_out(self, request: LogRequest) -> Iterator[Shown]:
        match request:
            case Read():
                yield from self._read(request)
            case Search():
                yield from self._search(request)
            case Compute():
                yield self._compute(request)
            case LookUp():
                yield from self._look_up(request)

    def _read(self, request: Read) -> Iterator[Shown]:
        document = self._document(request.step)
        if document is None:
            yield Shown(title=self._no_step)
            return
        total = len(document.lines)
        last = total if request.last is None else min(request.last, total)
        start = max(request.first, 1) - 1
        if start >= last and total:
            yield Shown(title=f"There are no such lines: step {request.step} has lines 1 to {total}.")
            return
        end = start + self._affordable(document.lines[start:last])
        if end > start or not total:
            self._lines_shown[request.step].update(range(start, end))
            range_shown = f"lines {start + 1} to {end} of {total}" if total else "no lines"
            yield Shown(title=f"Step {request.step}, {range_shown}.")
            for part in _passages(document, start, end):
                # What we say over the lines may be long, too, as of a step of a thousand calls.
                if len(part.title) <= self._left_now:
                    self._spend(len(part.title))
                    yield part
                elif part.lines is not None:
                    yield replace(part, title="(more of it)")
        if end < last:
            yield Shown(title=f"Lines {end + 1} to {last} are not shown: {self._why_cut}")

    def _search(self, request: Search) -> Iterator[Shown]:
        texts = [text.casefold().split("*") for text in request.texts[:MAX_SEARCH_TEXTS] if text.strip("* ")]
        if not texts:
            yield Shown(title="There is no text to search for.")
            return
        if len(request.texts) > MAX_SEARCH_TEXTS:
            yield Shown(title=f"Only the first {MAX_SEARCH_TEXTS} texts were searched for.")
        count = len(self._play.documents)
        last = count - 1 if request.last_step is None else min(request.last_step, count - 1)
        hits = [
            (step, line)
            for step in range(max(request.first_step, 0), last + 1)
            for line, text in enumerate(self._folded[step])
            if any(_holds(text, parts) for parts in texts)
        ]
        if not hits:
            yield Shown(title="No line holds any of it.")
            return
        lines = [f"step {step}, line {line + 1}: {self._play.documents[step].lines[line]}" for step, line in hits]
        shown = self._affordable(lines[:MAX_SEARCH_HITS])
        for step, line in hits[:shown]:
            self._lines_shown[step].add(line)
        rest = "" if shown == len(hits) else f"; the first {shown} are shown"
        yield Shown(title=f"{len(hits)} lines hold some of it{rest}.", lines=tuple(lines[:shown]) or None)
        if shown < min(len(hits), MAX_SEARCH_HITS):
            yield Shown(title=self._why_cut)

    def _compute(self, request: Compute) -> Shown:
        try:
            value = format_result(evaluate_expression(request.expression))
        except ExpressionError as error:
            return Shown(title="It cannot be computed:", lines=tuple(neutralize(str(error)).split("\n")))
        return self._afford_value("Its value:", value, None)

    def _look_up(self, request: LookUp) -> Iterator[Shown]:
        document = self._document(request.step)
        if document is None or not 1 <= request.call <= len(document.results):
            calls = 0 if document is None else len(document.results)
            yield Shown(title=self._no_step if document is None else f"Step {request.step} has {calls} answered calls.")
            return
        try:
            value = parse_untrusted_json(document.results[request.call - 1].stdout)
        except ValueError:
            yield Shown(title="The standard output of this call is no JSON: read it.")
            return
        title = "What is there:"
        for place, key in enumerate(request.path, 1):
            if not _has(value, key):
                title = f"Key {place} of the path leads nowhere. What is there before it:"
                break
            value = value[int(key)] if isinstance(value, list) else value[key]
        yield self._afford_value(title, json.dumps(value, ensure_ascii=False, indent=1), request.step)

    def _afford_value(self, title: str, text: str, step: int | None) -> Shown:
        """Show `text`, as far as there is room; it may be quoted as of `step`."""
        if self._left_now <= 0:
            return Shown(title=self._why_cut)
        text = neutralize(text)
        shown = text[: max(0, self._left_now - 1)]
        self._spend(len(shown) + 1)
        if step is not None:
            self._values_shown[step].append(shown)
        cut = "" if len(shown) == len(text) else f" (the first {len(shown)} of {len(text)} characters)"
        return Shown(title=f"{title}{cut}", lines=tuple(shown.split("\n")))

    def _affordable(self, lines: Sequence[str]) -> int:
        """How many of `lines`, from the first on, there is room for; they are paid."""
        for number, line in enumerate(lines):
            if len(line) + 1 > self._left_now:
                return number
            self._spend(len(line) + 1)
        return len(lines)

    def _spend(self, characters: int) -> None:
        self._left -= characters
        self._left_now -= characters

    def _document(self, step: int) -> Document | None:
        return self._play.documents[step] if 0 <= step < len(self._play.documents) else None

    @property
    def _no_step(self) -> str:
        return f"There is no such step: steps are 1 to {len(self._play.agents)}, and 0 is the task."

    @property
    def _why_cut(self) -> str:
        if self._left <= self._left_now:
            return OVER
        return "there is room for so much at once. Ask for the rest if you need it."

    @cached_property
    def _folded(self) -> Sequence[Sequence[str]]:
        """The lines of each document, folded for comparison without case."""
        return [[line.casefold() for line in document.lines] for document in self._play.documents]

    def _check_quote(self, quote: Quote) -> None:
        wanted = _squeeze("\n".join(line.removeprefix("| ") for line in quote.text.split("\n")))
        document = self._document(quote.step)
        if document is None or not wanted:
            raise BadReply(INVENTED)
        if not any(wanted in text for text in self._texts_shown(quote.step)):
            raise BadReply(INVENTED)
        lines = (document.lines[number] for number in self._lines_shown.get(quote.step, ()))
        if len(wanted) < MIN_QUOTE_CHARACTERS and not any(_squeeze(line) == wanted for line in lines):
            raise BadReply(f"a quote is too short: quote a whole line, or {MIN_QUOTE_CHARACTERS} characters")

    def _texts_shown(self, step: int) -> Iterator[str]:
        """What was shown of a step: runs of lines, and values of records."""
        lines, document = sorted(self._lines_shown.get(step, ())), self._play.documents[step]
        start = 0
        for place in range(1, len(lines) + 1):
            if place == len(lines) or lines[place] != lines[place - 1] + 1:
                yield _squeeze(document.join(lines[start], lines[place - 1] + 1))
                start = place
        yield from map(_squeeze, self._values_shown.get(step, ()))


def _passages(document: Document, start: int, end: int) -> Iterator[Shown]:
    """The parts of a document that the lines [start, end) are in."""
    for passage in document.passages:
        if passage.start == passage.end:
            if start <= passage.start <= end:
                yield Shown(title=passage.title)
        elif passage.start < end and passage.end > start:
            first, last = max(passage.start, start), min(passage.end, end)
            yield Shown(title=passage.title, lines=document.lines[first:last])


def _holds(text: str, parts: Sequence[str]) -> bool:
    """Whether `text` holds the `parts` one after another, which takes linear time."""
    place = 0
    for part in parts:
        place = text.find(part, place)
        if place < 0:
            return False
        place += len(part)
    return True


def _has(value: Any, key: str) -> bool:
    if isinstance(value, list):
        return key.isascii() and key.isdigit() and len(key) < 10 and int(key) < len(value)
    return isinstance(value, dict) and key in value


def _describe(request: LogRequest) -> str:
    text = json.dumps({type(request).__name__: asdict(request)}, ensure_ascii=False)
    return neutralize(text[:REQUEST_CHARACTERS])


def _squeeze(text: str) -> str:
    return " ".join(text.split())
