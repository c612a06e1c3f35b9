"""What a model may ask for in an investigation, and the schemas and the parser of its replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mappa_core.calls.reply_text import parse_json
from mappa_core.coaching.categories import CATEGORIES
from mappa_core.coaching.reply_parser import BadReply, check_object, nullable, object_schema, parse_score
from mappa_core.records import BLAME_BESIDE_AGENTS, MAX_SCORE, NOBODY

MAX_REQUESTS = 8
"""Requests that are carried out of one reply."""
MAX_FINDINGS = 3
"""Steps that an answer may name."""
MAX_QUOTES = 4
"""Quotes of one of them."""
MIN_QUOTE_CHARACTERS = 8
"""Characters of a quote that is less than a whole line: any text holds shorter ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Lines `first` to `last` of a step, from 1; step 0 is the task, and no `last` is the end."""

    step: int
    first: int
    last: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """Lines that hold any of `texts`, in steps `first_step` to `last_step` (None: the end)."""

    texts: tuple[str, ...]
    first_step: int
    last_step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """The value of an arithmetic expression."""

    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """What the result of a step's `call`, from 1, holds at `path`: keys of objects, and positions in lists from 0."""

    step: int
    call: int
    path: tuple[str, ...]


LogRequest = Read | Search | Compute | LookUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """A reply that goes on: what to keep in mind, and what to look at."""

    notes: str
    requests: tuple[LogRequest, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    step: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A step that an answer names, with its points from 0 to 10 (None where nobody is blamed) and what proves it."""

    step: int
    reason: str
    score: float | None
    quotes: tuple[Quote, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A reply that ends the investigation. `blame` is an agent, one of BLAME_BESIDE_AGENTS, or None: unknown.
    The first of `findings` is the step that decided; the others are suspects, in their order."""

    reason: str
    blame: str | None
    category: str | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvestigationSchema:
    """The required form of a reply about the steps of `agents`, in order. `must_answer`: requests are over."""

    agents: tuple[str, ...]
    team: tuple[str, ...]
    must_answer: bool = False

    @property
    def json_schema(self) -> Mapping[str, Any]:
        """Portable JSON schema, as of `ReplySchema.json_schema`; it is shared and must not be modified."""
        return _schema(self.team, self.must_answer)

    def parse(self, text: str) -> Inquiry | Answer:
        """Parse a reply. An answer counts and not the requests beside it. Raises BadReply."""
        try:
            reply = parse_json(text)
        except ValueError as error:
            raise BadReply(str(error)) from error
        if self.must_answer:
            check_object(reply, ("answer",))
        else:
            check_object(reply, ("notes", "requests", "answer"))
        if reply["answer"] is not None:
            return self._parse_answer(reply["answer"])
        if self.must_answer:
            raise BadReply("`answer` must be an object")
        notes = _text(reply["notes"], "notes")
        requests = tuple(_parse_request(entry) for entry in _list(reply["requests"], "requests"))
        if not requests:
            raise BadReply("there is neither a request nor an answer")
        return Inquiry(notes=notes, requests=requests)

    def _parse_answer(self, entry: Any) -> Answer:
        check_object(entry, ("reason", "blame", "category", "steps"))
        reason, blame, category = _text(entry["reason"], "reason"), entry["blame"], entry["category"]
        if not reason.strip():
            raise BadReply("`reason` must be text that is not empty")
        if blame is not None and blame not in (*self.team, *BLAME_BESIDE_AGENTS):
            raise BadReply("`blame` must be an agent of the team, user, environment, task, nobody or null")
        if category is not None and category not in CATEGORIES:
            raise BadReply(f"`category` must be one of {', '.join(CATEGORIES)}, or null")
        findings = tuple(self._parse_finding(finding) for finding in _list(entry["steps"], "steps"))
        self._check_findings(blame, findings)
        return Answer(reason=reason, blame=blame, category=category, findings=findings)

    def _parse_finding(self, entry: Any) -> Finding:
        check_object(entry, ("step", "reason", "quotes", "score"))
        step = _whole(entry["step"], "step")
        if not 1 <= step <= len(self.agents):
            raise BadReply(f"a step of the answer must be from 1 to {len(self.agents)}")
        quotes = []
        for quote in _list(entry["quotes"], "quotes"):
            check_object(quote, ("step", "text"))
            quotes.append(Quote(step=_whole(quote["step"], "step"), text=_text(quote["text"], "text")))
        if not 1 <= len(quotes) <= MAX_QUOTES:
            raise BadReply(f"each of `steps` must have 1 to {MAX_QUOTES} `quotes`")
        score = parse_score(entry["score"])
        return Finding(step=step, reason=_text(entry["reason"], "reason"), score=score, quotes=tuple(quotes))

    def _check_findings(self, blame: str | None, findings: Sequence[Finding]) -> None:
        """Raise BadReply unless the steps of an answer agree with each other and with whom it blames."""
        if len(findings) > MAX_FINDINGS or len({finding.step for finding in findings}) < len(findings):
            raise BadReply(f"`steps` must be at most {MAX_FINDINGS}, each another")
        if blame is None:
            return
        if not findings or any(finding.score is None for finding in findings):
            raise BadReply("who blames somebody, or says that nobody is to blame, must name a step with a score")
        first, *others = findings
        if blame not in BLAME_BESIDE_AGENTS and blame != self.agents[first.step - 1]:
            raise BadReply("the first of `steps` must be one of the agent in `blame`")
        # The step with the lowest score is taken for the one that decided, wherever verdicts are read.
        if blame != NOBODY and any(_points(other) <= _points(first) for other in others):
            raise BadReply("the first of `steps` must have a lower score than the others")


def _points(finding: Finding) -> float:
    assert finding.score is not None
    return finding.score


def _parse_request(entry: Any) -> LogRequest:
    tool = entry.get("tool") if isinstance(entry, dict) else None
    if not isinstance(tool, str) or tool not in _TOOLS:
        raise BadReply(f"every entry of `requests` must have a `tool`: {', '.join(_TOOLS)}")
    keys, parse = _TOOLS[tool]
    check_object(entry, ("tool", *keys))
    return parse(entry)


def _parse_read(entry: Mapping[str, Any]) -> Read:
    first, last = _whole(entry["first"], "first"), _whole_or_none(entry["last"], "last")
    return Read(step=_whole(entry["step"], "step"), first=first, last=last)


def _parse_search(entry: Mapping[str, Any]) -> Search:
    texts = tuple(_text(text, "texts") for text in _list(entry["texts"], "texts"))
    first, last = _whole(entry["first_step"], "first_step"), _whole_or_none(entry["last_step"], "last_step")
    return Search(texts=texts, first_step=first, last_step=last)


def _parse_compute(entry: Mapping[str, Any]) -> Compute:
    return Compute(expression=_text(entry["expression"], "expression"))


def _parse_look_up(entry: Mapping[str, Any]) -> LookUp:
    path = tuple(_text(key, "path") for key in _list(entry["path"], "path"))
    return LookUp(step=_whole(entry["step"], "step"), call=_whole(entry["call"], "call"), path=path)


_TOOLS: Mapping[str, tuple[tuple[str, ...], Callable[[Mapping[str, Any]], LogRequest]]] = {
    "read": (("step", "first", "last"), _parse_read),
    "search": (("texts", "first_step", "last_step"), _parse_search),
    "compute": (("expression",), _parse_compute),
    "look_up": (("step", "call", "path"), _parse_look_up),
}


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise BadReply(f"`{name}` must be text")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadReply(f"`{name}` must be a list")
    return value


def _whole(value: Any, name: str) -> int:
    # By exact type, as True is an int.
    if type(value) is not int:
        raise BadReply(f"`{name}` must be a whole number")
    return value


def _whole_or_none(value: Any, name: str) -> int | None:
    return None if value is None else _whole(value, name)


_INTEGER: Mapping[str, Any] = {"type": "integer"}
_STRING: Mapping[str, Any] = {"type": "string"}
_STRINGS: Mapping[str, Any] = {"type": "array", "items": _STRING}


@lru_cache(maxsize=64)
def _schema(team: tuple[str, ...], must_answer: bool) -> Mapping[str, Any]:
    blamed = list(dict.fromkeys((*team, *sorted(BLAME_BESIDE_AGENTS))))
    # In the order of generation: what was found, with its proof, comes before the points.
    finding = object_schema(
        {
            "step": _INTEGER,
            "reason": _STRING,
            "quotes": {"type": "array", "items": object_schema({"step": _INTEGER, "text": _STRING})},
            "score": nullable({"type": "number"}, f"0 to {MAX_SCORE:g} points; null where blame is null."),
        }
    )
    answer = object_schema(
        {
            "reason": _STRING,
            "blame": nullable({"type": "string", "enum": blamed}, "Null where it cannot be told."),
            "category": nullable({"type": "string", "enum": list(CATEGORIES)}, "The kind of failure."),
            "steps": {"type": "array", "items": finding},
        }
    )
    if must_answer:
        return object_schema({"answer": answer})
    last = nullable(_INTEGER, "Null for the end.")
    variants: Mapping[str, Mapping[str, Any]] = {
        "read": {"step": _INTEGER, "first": _INTEGER, "last": last},
        "search": {"texts": _STRINGS, "first_step": _INTEGER, "last_step": last},
        "compute": {"expression": _STRING},
        "look_up": {"step": _INTEGER, "call": _INTEGER, "path": _STRINGS},
    }
    requests = [object_schema({"tool": {"type": "string", "enum": [tool]}, **keys}) for tool, keys in variants.items()]
    return object_schema(
        {
            "notes": {"type": "string", "description": "All that you will remember of what you saw."},
            "requests": {"type": "array", "items": {"anyOf": requests}},
            "answer": nullable(answer, "Null to go on."),
        }
    )
