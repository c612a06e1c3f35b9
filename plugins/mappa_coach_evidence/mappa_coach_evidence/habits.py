"""How an action looks from outside: what only labels of the own team can weigh.

Nothing of this speaks against an action anywhere; the shipped weights leave it out. But teams fail by habit: always the
same agent, in the last step, in the long reply with many figures. A few labels are enough to find that out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from mappa_coach_evidence.transcript import Transcript

AGENT = "agent "
HABITS = ("first action", "last action", "actions before", "actions after", "length", "numbers")
"""Names of the features, beside one for each agent that begins with `AGENT`. Counts are logarithms; `length` is scaled,
so that all vary about as much as a feature of 0 or 1 does."""
_LENGTH_SCALE = 0.5
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def is_habit(name: str) -> bool:
    """Whether a feature is one of these."""
    return name in HABITS or name.startswith(AGENT)


def describe_habits(transcript: Transcript, places: Iterable[int]) -> dict[int, dict[str, float]]:
    """Features of the actions at `places`, which are in order; 0 is left out."""
    ordered = tuple(places)
    written = _read_written(transcript)
    found = {}
    for number, place in enumerate(ordered):
        text = written.get(place, "")
        values = {
            "first action": float(number == 0),
            "last action": float(number == len(ordered) - 1),
            "actions before": math.log1p(number),
            "actions after": math.log1p(len(ordered) - 1 - number),
            "length": _LENGTH_SCALE * math.log1p(len(text)),
            "numbers": math.log1p(sum(1 for _ in _NUMBER.finditer(text))),
            AGENT + transcript.agents[place]: 1.0,
        }
        found[place] = {name: value for name, value in values.items() if value}
    return found


def _read_written(transcript: Transcript) -> Mapping[int, str]:
    """What each action wrote: its text, and the arguments of the calls that were answered."""
    written: dict[int, str] = {}
    for entry in transcript.entries:
        if entry.is_output:
            place, text = entry.author, "" if entry.call is None else str(dict(entry.call.arguments))
        else:
            place, text = entry.place, entry.text
        if place is not None:
            written[place] = f"{written.get(place, '')}\n{text}"
    return written
