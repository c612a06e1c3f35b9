"""Rules about calls of tools: whose fault a failed one is, and what is said after it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from mappa_coach_evidence.findings import Finding
from mappa_coach_evidence.transcript import Entry, Transcript
from mappa_core import ToolCall
from mappa_core.coach import ENVIRONMENT

_UNAVAILABLE = re.compile(
    r"time[sd]?[ -]?out|temporar|unavailable|connect|refused|reset by peer|rate.?limit|too many requests"
    r"|\b429\b|\b50[0-4]\b"
    r"|internal (?:server )?error|bad gateway|overloaded|quota|network|\bdns\b|out of memory|no space left"
    r"|try again later"
    r"|maintenance|service (?:is )?down|unreachable|ssl",
    re.IGNORECASE,
)
_WRONG_ARGUMENTS = re.compile(
    r"not (?:found|exist|a valid|valid|recogni[sz]ed|defined|allowed|supported)|does ?n[o']t exist|no such"
    r"|unknown|invalid"
    r"|missing|required|must be|expected|unexpected|unrecogni[sz]ed|malformed|cannot parse|could not parse"
    r"|schema|out of range"
    r"|no (?:match|\w+ (?:found|named|called|with))|not one of|bad request|\b400\b|\b404\b|\b422\b|type ?error"
    r"|value ?error"
    r"|key ?error|name ?error|syntax ?error|attribute ?error|mismatch|too (?:long|short|large|many arguments)",
    re.IGNORECASE,
)
_SUCCESS = re.compile(
    r"\b(?:success(?:ful|fully)?|all set|(?:is|are|was|were|been|have|has|now|trip|order|everything)(?: now"
    r"| been| all)?"
    r" (?:done|completed?|booked|confirmed|saved|sent|created|finished|deployed|submitted|placed|reserved"
    r"|cancell?ed|updated"
    r"|processed|approved|fixed|paid|refunded|exchanged|returned)|(?:booking|reservation|order|payment"
    r"|deployment|task|job"
    r"|migration|upload|transfer) (?:complete|confirmed|done|placed|succeeded))\b",
    re.IGNORECASE,
)
_RESERVED = re.compile(
    r"\b(?:not|n't|no|never|fail(?:ed|s|ure|ures|ing)?|errors?|unable|could ?n[o']t|cannot|can't|without"
    r"|however|but|unfortunately"
    r"|most(?:ly)?|some|issues?|problems?|retry|again|pending|partial(?:ly)?|partly|incomplete|will|would|once"
    r"|after|if|when|let me|need to"
    r"|should|going to|try(?:ing)?|next|instead)\b",
    re.IGNORECASE,
)
_PROGRAM_ARGUMENTS = frozenset({"code", "program", "script", "source", "python"})
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n")
_LEAST_VALUE = 3  # Characters of an argument that can be told from other words.


def wrong_calls(transcript: Transcript) -> Iterator[Finding]:
    """A call failed because of its arguments, and no later call of that tool worked: the action that first named what
    was wrong, or else the caller."""
    for number, entry in _unrepaired(transcript):
        if is_callers_fault(entry.error or "") and entry.author is not None:
            origin = _find_origin(transcript, number, entry)
            source = entry.author if origin is None else origin
            said = f"“{entry.error}”, {_name(entry)} answered"
            reason = f"{said}, and no later call of it worked."
            if origin is not None and origin != entry.author:
                reason = f"It named what {_name(entry)} was then called with: {said}."
            yield Finding(place=source, reason=reason)


def unavailable_tools(transcript: Transcript) -> Iterator[Finding]:
    """A call failed though nothing speaks against its arguments, and no later one of that tool worked."""
    for _, entry in _unrepaired(transcript):
        # A program that runs out of time is its author's.
        is_program = entry.call is not None and not _PROGRAM_ARGUMENTS.isdisjoint(entry.call.arguments)
        if entry.author is not None and not is_program and _UNAVAILABLE.search(entry.error or ""):
            reason = f"“{entry.error}”, {_name(entry)} answered, and no later call of it worked."
            yield Finding(place=entry.author, reason=reason, blame=ENVIRONMENT)


def repeated_calls(transcript: Transcript) -> Iterator[Finding]:
    """A call that failed because of its arguments is made again at once, unchanged, and fails again: whatever is called
    in between may have changed what it depends on."""
    last: Entry | None = None
    for entry in transcript.entries:
        if entry.call is None or entry.author is None:
            continue
        again = last is not None and last.call is not None and _key(last.call) == _key(entry.call)
        if again and last is not None and last.error is not None and entry.failed and is_callers_fault(last.error):
            reason = f"It calls {_name(entry)} again as before, which had answered “{last.error}”."
            yield Finding(place=entry.author, reason=reason)
        last = entry


def claimed_successes(transcript: Transcript) -> Iterator[Finding]:
    """An action claims success of what failed just before, and nothing worked since."""
    failure: Entry | None = None
    for entry in transcript.entries:
        if entry.is_output:
            if entry.author is not None and entry.call is not None:
                failure = entry if entry.failed else None
            continue
        if failure is None or entry.place is None:
            continue
        claim = next(
            (
                sentence
                for sentence in _SENTENCE.split(entry.claims)
                if _SUCCESS.search(sentence) and not _RESERVED.search(sentence)
            ),
            None,
        )
        if claim is not None and not _RESERVED.search(_first_sentence(entry.text)):
            reason = f"“{_quote(claim)}”, it says, after {_name(failure)} had answered “{failure.error}”."
            yield Finding(place=entry.place, reason=reason)
            return


def is_callers_fault(error: str) -> bool:
    """Whether an error says that the call was wrong, and not that what it asks for cannot be had now."""
    return bool(_WRONG_ARGUMENTS.search(error)) and not _UNAVAILABLE.search(error)


def _unrepaired(transcript: Transcript) -> Iterator[tuple[int, Entry]]:
    """Outputs of calls that failed, with their place among the entries, after which no call of that tool worked."""
    worked: dict[str, int] = {}
    for number, entry in enumerate(transcript.entries):
        if entry.call is not None and not entry.failed:
            worked[entry.call.name] = number
    for number, entry in enumerate(transcript.entries):
        if entry.call is None or not entry.failed:
            continue
        if entry.call.name not in worked or worked[entry.call.name] < number:
            yield number, entry


def _find_origin(transcript: Transcript, number: int, failed: Entry) -> int | None:
    """The place of the first action that named the argument that the error quotes; None if the task or an output named
    it, or if no argument is quoted."""
    assert failed.call is not None  # `_unrepaired` gives outputs of calls alone.
    error = (failed.error or "").lower()
    for value in sorted(_values(failed.call.arguments), key=len, reverse=True):
        if value.lower() not in error:
            continue
        if value.lower() in transcript.task.lower():
            return None
        for entry in transcript.entries[:number]:
            if value.lower() in entry.text.lower():
                return None if entry.is_output else entry.place
    return None


def _values(arguments: Any) -> Iterator[str]:
    """Scalar values of arguments as text, at any depth."""
    if isinstance(arguments, dict):
        for value in arguments.values():
            yield from _values(value)
    elif isinstance(arguments, list | tuple):
        for value in arguments:
            yield from _values(value)
    elif isinstance(arguments, str | int | float) and not isinstance(arguments, bool):
        yield from (text for text in (str(arguments),) if len(text) >= _LEAST_VALUE)


def _key(call: ToolCall) -> str:
    return json.dumps([call.name, call.arguments], sort_keys=True, default=str)


def _name(entry: Entry) -> str:
    return "the program" if entry.call is None else f"the tool {entry.call.name}"


def _first_sentence(text: str) -> str:
    return _SENTENCE.split(text.strip(), maxsplit=1)[0]


def _quote(text: str, limit: int = 160) -> str:
    return " ".join(text.split())[:limit]
