"""Rules about single claims: sums that come to something else, outputs that say otherwise, answers that change,
and faults that an action admits."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping

from mappa_coach_evidence.findings import Finding
from mappa_coach_evidence.text import holds_number, numbers, to_number, without_code
from mappa_coach_evidence.transcript import Transcript

_OPERATORS: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_SIGNS = (
    (r"\times", "*"),
    (r"\cdot", "*"),
    (r"\div", "/"),
    ("\u00d7", "*"),
    ("\u00b7", "*"),
    ("\u00f7", "/"),
    ("\u2212", "-"),
)
_VALUE = r"\$?\d[\d,]*(?:\.\d+)?"
_SUM = re.compile(rf"(?<![\d.*/+^-] )(?<![\w.*/+^-])({_VALUE}) *([-+*/]) *({_VALUE}) *= *(-?{_VALUE})(?! *[\d*/+^%-])")
_OUTPUT_CLAIM = re.compile(
    r"\b(?:output|printed|program|code)\b[^.\n]{0,40}?\b(?:is|was|gives|gave|shows|printed|returned) \**"
    rf"(-?{_VALUE})\b"
)
_ADMITTED = re.compile(
    r"\b(?:not found|no results|unable to|could not|couldn't|cannot (?:access|find|load|open)|failed|errors?"
    r"|did not (?:match|work)|no longer available|access denied|unfortunately|404)\b",
    re.IGNORECASE,
)
_ANSWER = re.compile(rf"(?:\\boxed\{{|FINAL ANSWER:? *|\banswer is:? *)\**\\?(-?{_VALUE})")


def wrong_sums(transcript: Transcript) -> Iterator[Finding]:
    """Sums of two numbers that come to something else when they are computed again."""
    for entry in transcript.spoken:
        text = without_code(entry.text)
        for written, sign in _SIGNS:
            text = text.replace(written, sign)
        for left, sign, right, result in _SUM.findall(text):
            if sign == "/" and to_number(right) == 0:
                continue
            value, claim = _OPERATORS[sign](to_number(left), to_number(right)), to_number(result)
            decimals = len(result.partition(".")[2])
            if abs(value - claim) > 0.51 * 10.0**-decimals and entry.place is not None:
                reason = f"{left} {sign} {right} is {value:g}, not {result}."
                yield Finding(place=entry.place, reason=reason)


def contradicted_outputs(transcript: Transcript) -> Iterator[Finding]:
    """An action says what a program printed, and the output before it says otherwise."""
    output: str | None = None
    for entry in transcript.entries:
        if entry.is_output:
            output = entry.text if entry.author is not None and not entry.failed else None
            continue
        held = numbers(output) if output is not None else frozenset()
        claim = _OUTPUT_CLAIM.search(without_code(entry.text))
        if claim and len(held) == 1 and entry.place is not None and not holds_number(to_number(claim[1]), held):
            yield Finding(
                place=entry.place, reason=f"It says that {claim[1]} was printed; the output was {min(held):g}."
            )


def changed_answers(transcript: Transcript) -> Iterator[Finding]:
    """An answer differs from the one before, and nothing was executed between the two."""
    answer: float | None = None
    for entry in transcript.entries:
        if entry.is_output:
            if entry.author is not None:
                answer = None
            continue
        said = _ANSWER.findall(without_code(entry.text))
        if not said or entry.place is None:
            continue
        if answer is not None and to_number(said[-1]) != answer:
            reason = f"The answer changes from {answer:g} to {said[-1]} without new evidence."
            yield Finding(place=entry.place, reason=reason)
        answer = to_number(said[-1])


def admitted_failures(transcript: Transcript) -> Iterator[Finding]:
    """An action says that something did not work or was not found. What hands on the task says it of the task."""
    for entry in transcript.spoken:
        admitted = _ADMITTED.search(without_code(entry.text))
        if admitted and entry.place is not None and entry.place != transcript.opening:
            yield Finding(place=entry.place, reason=f"“{admitted[0]}”, it says.")
