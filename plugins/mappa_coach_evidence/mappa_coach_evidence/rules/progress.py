"""Rules about teams that keep a record of their own progress in JSON, as Magentic-One's orchestrator does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from mappa_coach_evidence.findings import Finding
from mappa_coach_evidence.transcript import Entry, Transcript

State = Literal["done", "stuck", "going"]
_DONE_WORDS = ("satisfied", "complete", "done")


def recorded_progress(transcript: Transcript) -> Iterator[Finding]:
    """The team's record first says that it is done, or else that it makes no progress: the action before that of an
    agent that keeps no record; or else the last such action."""
    states = _find_states(transcript)
    keepers = find_keepers(transcript)
    if not states:
        return
    for wanted, reason in (
        ("done", "With it the team's own record calls the task done, which it is not."),
        ("stuck", "After it the team's own record says for the first time that there is no progress."),
    ):
        flagged = next((place for place, state in states.items() if state == wanted), None)
        if flagged is not None:
            yield from _last_before(transcript, keepers, flagged, reason)
            return
    end = len(transcript.agents)
    yield from _last_before(transcript, keepers, end, "It is the last action that brought something in.")


def find_keepers(transcript: Transcript) -> frozenset[str]:
    """The agents that keep a record of progress; empty if nobody does."""
    return frozenset(transcript.agents[place] for place in _find_states(transcript))


def _find_states(transcript: Transcript) -> dict[int, State]:
    """What the record says, by the place of the action that says it."""
    return {
        entry.place: state
        for entry in transcript.spoken
        if entry.place is not None and (state := read_state(entry.text)) is not None
    }


def read_state(text: str) -> State | None:
    """What a JSON object in the text says of progress; None without one."""
    start = text.find("{")
    if start < 0:
        return None
    try:
        record, _ = json.JSONDecoder().raw_decode(text[start:])
    except ValueError:
        return None
    answers = {str(key).lower(): _answer(value) for key, value in record.items()}
    if not any("progress" in key for key in answers):
        return None
    if any(value is True for key, value in answers.items() if any(word in key for word in _DONE_WORDS)):
        return "done"
    stuck = any(value is False for key, value in answers.items() if "progress" in key)
    looping = any(value is True for key, value in answers.items() if "loop" in key)
    return "stuck" if stuck or looping else "going"


def _answer(value: object) -> object:
    return value.get("answer") if isinstance(value, dict) else value


def _last_before(transcript: Transcript, keepers: frozenset[str], end: int, reason: str) -> Iterator[Finding]:
    before = [entry for entry in transcript.spoken if entry.place is not None and entry.place < end]
    workers = [entry for entry in before if transcript.agents[_place(entry)] not in keepers]
    for entry in (workers or before)[-1:]:
        yield Finding(place=_place(entry), reason=reason)


def _place(entry: Entry) -> int:
    assert entry.place is not None  # `spoken` holds actions alone.
    return entry.place
