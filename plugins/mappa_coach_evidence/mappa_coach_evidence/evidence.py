"""What speaks against the actions of a transcript, and in which order to look at them.

The order is that of a conditional logit (McFadden 1974): an action's odds to be the decisive error are the product of
what each piece of evidence against it weighs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mappa_coach_evidence.findings import Finding, Rule
from mappa_coach_evidence.places import describe_places
from mappa_coach_evidence.rules.progress import find_keepers
from mappa_coach_evidence.transcript import Transcript

FIRST = ", first"
ACCUSED = "accused"
"""The feature of the first action that a hard rule finds a fault in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence about one action: `features` by name, what hard rules found (`faults`) and what soft ones did (`hints`),
    the first finding of each."""

    features: Mapping[str, float]
    faults: Mapping[Rule, Finding]
    hints: Mapping[Rule, Finding]


def collect_evidence(transcript: Transcript, rules: Iterable[Rule]) -> dict[int, Evidence]:
    """Evidence about every action that can be blamed, by its place, in order.

    A finding is the feature of its rule's name; a soft rule's first one is another feature besides.
    """
    keepers = find_keepers(transcript)
    features = {place: dict(described) for place, described in describe_places(transcript, keepers).items()}
    faults: dict[int, dict[Rule, Finding]] = {place: {} for place in features}
    hints: dict[int, dict[Rule, Finding]] = {place: {} for place in features}
    for rule in rules:
        found = [finding for finding in rule.check(transcript) if finding.place in features]
        if rule.hard:
            for finding in found:
                faults[finding.place].setdefault(rule, finding)
        elif rule.beside_record or not keepers:
            for finding in found:
                hints[finding.place].setdefault(rule, finding)
                features[finding.place][rule.name] = 1.0
            for finding in found[:1]:
                features[finding.place][rule.name + FIRST] = 1.0
    for place in [place for place, own in faults.items() if own][:1]:
        features[place][ACCUSED] = 1.0
    return {place: Evidence(features=features[place], faults=faults[place], hints=hints[place]) for place in features}


def weigh(name: str, weights: Mapping[str, float]) -> float:
    """What a feature weighs; one that has no weight says nothing."""
    return weights[name] if name in weights else 0.0  # noqa: SIM401  zero odds, and no missing number


def suspicions(evidence: Mapping[int, Evidence], weights: Mapping[str, float]) -> dict[int, float]:
    """The log-odds of each action, up to a constant of the transcript, to be its decisive error."""
    return {
        place: sum(weigh(name, weights) * value for name, value in found.features.items())
        for place, found in evidence.items()
    }
