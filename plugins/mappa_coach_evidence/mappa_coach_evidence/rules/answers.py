"""Rules about the answer: where its values came from, and what was said without looking anything up."""

from __future__ import annotations

import re
from collections.abc import Iterator

from mappa_coach_evidence.findings import Finding
from mappa_coach_evidence.text import content_words, holds_number, numbers, without_code
from mappa_coach_evidence.transcript import Entry, Transcript

_LOOKED_UP = re.compile(
    r"\b(?:I|we)(?:'ve| have)(?: (?:now|successfully|carefully|also|manually|just))* (?:verified|located|checked"
    r"|reviewed|found|gathered|searched|looked up|accessed|visited|obtained|retrieved|transcribed|examined|inspected"
    r"|consulted|confirmed)\b",
    re.IGNORECASE,
)
_OWN_TASK = re.compile(r"\btask\b", re.IGNORECASE)
_LEAST_SHARED = 0.1


def lost_task(transcript: Transcript) -> Iterator[Finding]:
    """The first action sets the others a task that has hardly a word of the one that was given."""
    words = content_words(transcript.task)
    for entry in transcript.spoken[:1]:
        shared = len(words & content_words(entry.text)) / len(words) if words else 1.0
        if entry.place == 0 and shared < _LEAST_SHARED and _OWN_TASK.search(entry.text):
            yield Finding(place=0, reason=f"It sets a task with {shared:.0%} of the words of the one that was given.")


def pretended_checks(transcript: Transcript) -> Iterator[Finding]:
    """Somebody claims to have looked something up, and nothing was executed in the whole trajectory."""
    if not transcript.concluded or transcript.outputs:
        return
    for entry in _assertions(transcript):
        if entry.place is not None and (claim := _LOOKED_UP.search(without_code(entry.text))):
            yield Finding(place=entry.place, reason=f"“{claim[0]}”, it says, and nothing was executed.")


def made_up_values(transcript: Transcript) -> Iterator[Finding]:
    """Values of the answer that neither the task nor an output holds: the first action that says one."""
    yield from _trace_answer(transcript, in_outputs=False)


def computed_values(transcript: Transcript) -> Iterator[Finding]:
    """Values of the answer that come from an output: the action whose program printed the first of them."""
    yield from _trace_answer(transcript, in_outputs=True)


def unproved_claims(transcript: Transcript) -> Iterator[Finding]:
    """Nothing was executed at all: the first action after the task was handed on."""
    if not transcript.outputs:
        for entry in _assertions(transcript)[:1]:
            if entry.place is not None:
                yield Finding(place=entry.place, reason="What it says rests on no execution, and nothing checks it.")


def _assertions(transcript: Transcript) -> tuple[Entry, ...]:
    """What was said after the task was handed on."""
    return tuple(entry for entry in transcript.spoken if entry.place != transcript.opening)


def _trace_answer(transcript: Transcript, *, in_outputs: bool) -> Iterator[Finding]:
    """The origin of each value of the answer, earliest action first."""
    if not transcript.concluded or not transcript.spoken:
        return
    final = transcript.spoken[-1]
    known = numbers(transcript.task)
    if transcript.opening is not None:
        known |= numbers(transcript.spoken[0].text)
    origins: dict[int, float] = {}
    for value in numbers(without_code(final.text)) - known:
        origin = _find_origin(transcript, final, value)
        if origin is not None and origin.is_output == in_outputs and origin.source is not None:
            origins[origin.source] = value
    for place, value in sorted(origins.items()):
        where = "its program printed" if in_outputs else "no output before it held"
        yield Finding(place=place, reason=f"The answer uses {value:g}, which {where}.")


def _find_origin(transcript: Transcript, final: Entry, value: float) -> Entry | None:
    """The first entry with `value`, up to the `final` one. An output may hold it with more decimals."""
    for entry in transcript.entries:
        held = numbers(entry.text)
        if value in held or (entry.is_output and holds_number(value, held)):
            return entry if entry.source is not None else None
        if entry is final:
            break
    return None
