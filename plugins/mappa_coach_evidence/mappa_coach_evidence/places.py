"""Where an action stands: what is known of it before it is read."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from mappa_coach_evidence.transcript import Transcript


def describe_places(transcript: Transcript, keepers: Collection[str]) -> dict[int, Mapping[str, float]]:
    """Features of every action that can be blamed, by its place, in order.

    `lateness` goes from 0 to 1 over the actions after the task was handed on. In a team in which `keepers` keep a
    record of its progress there are instead `worker` (keeps none), and the logarithm of the number of turns before it:
    of workers or, for a keeper, of all.
    """
    places = [entry.place for entry in transcript.spoken if entry.place is not None]
    if keepers:
        return _describe_turns(transcript, places, keepers)
    after = [place for place in places if place != transcript.opening]
    described: dict[int, Mapping[str, float]] = {place: {} for place in places}
    for number, place in enumerate(after):
        described[place] = {"lateness": number / max(len(after) - 1, 1)}
    return described


def _describe_turns(
    transcript: Transcript, places: Iterable[int], keepers: Collection[str]
) -> dict[int, Mapping[str, float]]:
    worked = 0
    described: dict[int, Mapping[str, float]] = {}
    for place in places:
        if transcript.agents[place] in keepers:
            described[place] = {"keeper turns": math.log1p(place)}
        else:
            described[place] = {"worker": 1.0, "worker turns": math.log1p(worked)}
            worked += 1
    return described
