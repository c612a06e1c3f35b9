"""Rules about single claims: sums that come to something else, outputs that say otherwise, answers that change,
and faults that an action admits."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from mappa_coach_evidence.dates import wrong_dates
from mappa_coach_evidence.equations import equations, wrong_equations
from mappa_coach_evidence.findings import Finding
from mappa_coach_evidence.text import holds_number, numbers, squeeze, to_number, without_code
from mappa_coach_evidence.transcript import Transcript

_VALUE = r"\$?\d[\d,]*(?:\.\d+)?"
_OUTPUT_CLAIM = re.compile(
    r"\b(?:output|printed|program|code)\b[^.\n]{0,40}?\b(?:is|was|gives|gave|shows|printed|returned) \**"
    rf"(-?{_VALUE})\b"
)
_ADMITTED = re.compile(
    r"\b(?:not found|no results|unable to|could not|couldn't|cannot (?:access|find|load|open)|failed|errors?"
    r"|did not (?:match|work)|no longer available|access denied|unfortunately|404)\b",
    re.IGNORECASE,
)
_RESULT = re.compile(
    rf"\b(?:total|answer|result|sum|altogether|in all|overall|grand total)\b[^.\n\d]{{0,40}}?(-?{_VALUE})(?!\.?\d|%)",
    re.IGNORECASE,
)
_BARE_NUMBER = re.compile(rf"\s*(-?{_VALUE})\s*")
_ANSWER = re.compile(rf"(?:\\boxed\{{|FINAL ANSWER:? *|\banswer is:? *)\**\\?(-?{_VALUE})")


def wrong_sums(transcript: Transcript) -> Iterator[Finding]:
    """Equations that do not hold when they are computed again: the first action that states each."""
    stated: set[str] = set()
    given = {wrong.text for wrong in wrong_equations(transcript.task)}
    for entry in transcript.spoken:
        for wrong in wrong_equations(without_code(entry.text)):
            if entry.place is not None and wrong.text not in stated | given:
                yield Finding(place=entry.place, reason=f"“{wrong.text}”, it says; the left side is {wrong.value:g}.")
            stated.add(wrong.text)


def wrong_days(transcript: Transcript) -> Iterator[Finding]:
    """Days of the week, and numbers of days, that the calendar contradicts."""
    for entry in transcript.spoken:
        for reason in wrong_dates(without_code(entry.text)):
            if entry.place is not None:
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


def contradicted_results(transcript: Transcript) -> Iterator[Finding]:
    """The last thing said calls a figure the result that is none: neither was it given, printed or stated before, nor
    does it follow from such figures, and somebody else, or a tool, had computed another one."""
    said = transcript.spoken
    if not said or said[-1].place is None or any(True for _ in equations(said[-1].claims)):
        return
    known = set(numbers(transcript.task))
    computed: list[tuple[int | None, float]] = []
    for entry in transcript.entries:
        if entry is said[-1]:
            break
        known |= numbers(entry.text if entry.is_output else entry.claims)
        if entry.is_output and (printed := _BARE_NUMBER.fullmatch(entry.text)):
            computed.append((None, to_number(printed[1])))
        elif not entry.is_output:
            computed += [(entry.place, equation.claimed) for equation in equations(without_code(entry.text))]
    others = [
        value
        for place, value in computed
        if place is None or transcript.agents[place] != transcript.agents[said[-1].place]
    ]
    for found in _RESULT.finditer(said[-1].claims) if others else ():
        if not _adds_up(to_number(found[1]), known):
            reason = f"“{squeeze(found[0])}”, it says; what had been computed last was {others[-1]:g}."
            yield Finding(place=said[-1].place, reason=reason)
            return


def _adds_up(value: float, known: Collection[float]) -> bool:
    """Whether a total is among the figures, or the sum or product of two."""
    return any(
        abs(result - value) < 0.005
        for left in known
        for right in known
        for result in (left, left + right, left * right)
    )
