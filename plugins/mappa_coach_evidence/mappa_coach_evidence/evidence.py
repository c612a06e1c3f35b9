"""What speaks against the actions of a transcript, and the chance of each to be the decisive error.

The chances are those of a conditional logit (McFadden 1974): an action's odds are the product of what each piece of
evidence against it weighs, and the chances of all actions of a transcript add up to 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mappa_coach_evidence.findings import Finding, Rule
from mappa_coach_evidence.places import describe_places
from mappa_coach_evidence.rules.progress import find_keepers
from mappa_coach_evidence.transcript import Transcript

FIRST = ", first"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence about one action: `features` by name, and what rules found, by the name of the rule."""

    features: Mapping[str, float]
    findings: Mapping[str, Finding]


def collect_evidence(transcript: Transcript, rules: Iterable[Rule]) -> dict[int, Evidence]:
    """Evidence about every action that can be blamed, by its place, in order.

    A finding is the feature of its rule's name; a rule's first one is another feature besides.
    """
    keepers = find_keepers(transcript)
    features = {place: dict(described) for place, described in describe_places(transcript, keepers).items()}
    findings: dict[int, dict[str, Finding]] = {place: {} for place in features}
    for rule in rules:
        if keepers and not rule.beside_record:
            continue
        own = [finding for finding in rule.check(transcript) if finding.place in findings]
        for finding in own:
            findings[finding.place].setdefault(rule.name, finding)
            features[finding.place][rule.name] = 1.0
        for finding in own[:1]:
            features[finding.place][rule.name + FIRST] = 1.0
    return {place: Evidence(features=features[place], findings=findings[place]) for place in features}


def chances(evidence: Mapping[int, Evidence], weights: Mapping[str, float], *, nobody: bool) -> dict[int, float]:
    """The chance of each action to be the decisive error. With `nobody`, it is one more answer that there is none."""
    odds = {place: math.exp(_weigh(found.features, weights)) for place, found in evidence.items()}
    total = sum(odds.values()) + (1.0 if nobody else 0.0)
    return {place: value / total for place, value in odds.items()}


def _weigh(features: Mapping[str, float], weights: Mapping[str, float]) -> float:
    return sum(weights[name] * value for name, value in features.items())
