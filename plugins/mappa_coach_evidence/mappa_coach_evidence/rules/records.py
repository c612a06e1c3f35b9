"""Rules about what tools answered in records: JSON objects, and lines of text with a name and figures."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mappa_coach_evidence.findings import Finding
from mappa_coach_evidence.text import numbers, to_number, word_set
from mappa_coach_evidence.transcript import Transcript

MAX_RECORDS = 400
"""Records of a transcript that claims are held against, the latest first."""
_CLAUSE = re.compile(r"(?<=[.!?;])\s+|\n|, (?:and|but|while|which)\b")
_FIGURE = re.compile(r"(?<![\w.#-])[$€£]?(\d[\d,]*(?:\.\d+)?)(?![\w-]|\.\d)")
_WORD = re.compile(r"[^\W\d_]{3,}")
_NAMING = re.compile(
    r"(?:^|[_ ])(?:name|id|title|number|no|code|label|hotel|tour|item|product|reference|flight|order"
    r"|reservation|booking|user"
    r"|customer|account|symbol|sku|model|event|place|restaurant|company|employee|city|country|ticket|patient|course)$",
    re.IGNORECASE,
)
"""Keys whose values name what a record is about; other texts (a currency, an airport, a state) are shared by many."""
_LEAST_NAME = 3
_MAX_NAME = 60
_REFUSED = word_set(
    "failed failure error declined rejected denied pending unavailable expired closed inactive refused unpaid invalid"
)
_ACCOMPLISHED = re.compile(
    r"\b(?:confirmed|booked|approved|paid|successful(?:ly)?|completed|accepted|reserved|available|delivered"
    r"|shipped|active)\b",
    re.IGNORECASE,
)
_RELATIVE = re.compile(
    r"\b(?:would|could|remaining|left|after|before|difference|discount(?:ed)?|minus|less|plus|refund(?:ed)?"
    r"|used|instead|more|than"
    r"|if|about|around|approximately|roughly|total|each way|extra|fee|up to|at least|at most|under|over"
    r"|between)\b|[~≈±]",
    re.IGNORECASE,
)
"""Words of a clause whose figures need not be those of a record."""
_DENIED = re.compile(
    r"\b(?:not|n't|no|never|fail(?:ed|s|ure)?|declined|rejected|denied|pending|cancell?ed|unavailable|unable"
    r"|cannot|could ?n[o']t"
    r"|if|once|when|until|unless|however|but|will|would|should|check|whether|please|need|try)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An object that an output holds: its `names` in lower case, its `figures` and its other values by key."""

    names: frozenset[str]
    figures: Mapping[str, float]
    states: Mapping[str, str]


def contradicted_records(transcript: Transcript) -> Iterator[Finding]:
    """An action states a figure of something that a tool described, which is another one there, and which nobody gave
    or could derive."""
    records: list[Record] = []
    given = numbers(transcript.task)
    known: set[float] = set(given)
    accused: set[float] = set()
    for entry in transcript.entries:
        if entry.is_output:
            if entry.author is not None and not entry.failed:
                records = [*read_records(entry.text), *records][:MAX_RECORDS]
            known |= numbers(entry.text)
            continue
        if entry.place is not None and records:
            for clause in _CLAUSE.split(entry.claims):
                if _RELATIVE.search(clause):
                    continue
                for record, key, said in _contradictions(clause, records, known, given):
                    if said not in accused:
                        accused.add(said)
                        name = max(record.names, key=len)
                        reason = (
                            f"“{_quote(clause)}”, it says; the tool gave {record.figures[key]:g} as {key} of {name}."
                        )
                        yield Finding(place=entry.place, reason=reason)
        known |= numbers(entry.text)


def contradicted_states(transcript: Transcript) -> Iterator[Finding]:
    """An action says that something is done or there, of which a tool's latest record says that it is not."""
    records: list[Record] = []
    for entry in transcript.entries:
        if entry.is_output:
            if entry.author is not None and not entry.failed:
                records = [*read_records(entry.text), *records][:MAX_RECORDS]
            continue
        if entry.place is None:
            continue
        for clause in _CLAUSE.split(entry.claims):
            claim = _ACCOMPLISHED.search(clause)
            if claim is None or _DENIED.search(clause):
                continue
            record = next((known for known in records if _names_one(clause, known)), None)
            refused = None if record is None else _find_refusal(record)
            if record is not None and refused is not None:
                key, value = refused
                reason = (
                    f"“{_quote(clause)}”, it says; the tool gave “{value}” as {key} of {max(record.names, key=len)}."
                )
                yield Finding(place=entry.place, reason=reason)


def read_records(text: str) -> list[Record]:
    """The records of an output, in the order in which they stand there."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return list(_walk(found))


def _walk(value: Any, depth: int = 0) -> Iterator[Record]:
    if depth > 8:
        return
    if isinstance(value, list):
        for item in value:
            yield from _walk(item, depth + 1)
    elif isinstance(value, dict):
        yield from _read_record(value)
        for key, item in value.items():
            if isinstance(item, dict) and not any(isinstance(inner, str) for inner in item.values()):
                yield from _read_record({"name": key, **item})
            yield from _walk(item, depth + 1)


def _read_record(value: Mapping[str, Any]) -> Iterator[Record]:
    names, figures, states = set(), {}, {}
    for key, item in value.items():
        if isinstance(item, bool):
            states[key] = str(item).lower()
        elif isinstance(item, int | float):
            figures[key] = float(item)
        elif isinstance(item, str):
            states[key] = item.lower()
            is_number = re.fullmatch(r"[$€£]?\d[\d,]*(?:\.\d+)?", item)
            if is_number:
                figures[key] = to_number(item.lstrip("€£"))
            elif _LEAST_NAME <= len(item) <= _MAX_NAME and _NAMING.search(key):
                names.add(item.lower())
    if names and (figures or states):
        yield Record(names=frozenset(names), figures=figures, states=states)


def _contradictions(
    clause: str, records: list[Record], known: set[float], given: frozenset[float]
) -> Iterator[tuple[Record, str, float]]:
    """Figures of a clause that stand for a field of a record that it names, and are others there.

    `known` are all figures so far; `given` are those of the task, by which those of the record may be multiplied.
    """
    named = [record for record in records if _names_one(clause, record)]
    words = {word.lower() for word in _WORD.findall(clause)}
    for found in _FIGURE.finditer(clause) if named else ():
        said = to_number(found[1])
        if any(said in record.figures.values() for record in named):
            continue
        record = named[0]
        key = _matching_key(record, words)
        if key is None:
            continue
        is_others = len(named) == 1 and any(other.figures.get(key) == said for other in records if other is not record)
        if is_others or (said not in known and not _follows(said, record, given)):
            yield record, key, said


def _follows(value: float, record: Record, given: frozenset[float]) -> bool:
    """Whether a value comes from the figures of a record: as a sum or a difference of two, or times or by one of those
    that were given."""
    own = record.figures.values()
    results = [result for left in own for right in own for result in (left + right, left - right)]
    results += [result for left in own for right in given for result in (left * right, left / right if right else left)]
    return any(abs(result - value) < 0.006 for result in results)


def _matching_key(record: Record, words: set[str]) -> str | None:
    """The key of the one figure of a record that words are about: they hold all of the key's, or two of them."""
    about = []
    for key in record.figures:
        own = {word.lower() for word in _WORD.findall(key.replace("_", " "))}
        if own and (own <= words or len(own & words) > 1):
            about.append(key)
    return about[0] if len(about) == 1 else None


def _names_one(clause: str, record: Record) -> bool:
    lower = clause.lower()
    return any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", lower) for name in record.names)


def _find_refusal(record: Record) -> tuple[str, str] | None:
    for key, value in record.states.items():
        words = set(re.findall(r"[a-z]+", value))
        if re.search(r"status|(?:^|_)state$|result|outcome", key.lower()):
            if words & _REFUSED:
                return key, value
        elif value == "false" and re.search(r"available|confirmed|success|approved|paid|booked|in_?stock", key.lower()):
            return key, value
    return None


def _quote(text: str, limit: int = 160) -> str:
    return " ".join(text.split())[:limit]
