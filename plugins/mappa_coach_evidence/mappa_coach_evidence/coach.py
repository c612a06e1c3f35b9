"""The coach `evidence`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mappa_coach_evidence.findings import Finding, Rule
from mappa_coach_evidence.options import EvidenceOptions
from mappa_coach_evidence.rules import RULES
from mappa_coach_evidence.transcript import Transcript, read_transcript
from mappa_core import MAX_SCORE, NOBODY, Coach, Scene, Verdict

_RAN_SCORE = 8.0
_SIDE_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A finding and the rule that made it."""

    rule: Rule
    finding: Finding


class EvidenceCoach(Coach):
    """Blames the action that the first rule with a finding points at.

    Its score is the share of points that the rule's confidence leaves: at 0.6 it is 4. Another action with a finding
    loses half as many points as it would then, and an action whose programs ran gets 8. Where nothing can be checked,
    the coach abstains. Judging a single action (`score`) sees what came before it and nothing after.
    """

    def __init__(self, options: EvidenceOptions) -> None:
        self._presume_failure = options.presume_failure

    @property
    def by_trajectory(self) -> bool:
        return True

    async def score(self, scene: Scene) -> Verdict:
        so_far = [
            Scene(task=scene.task, role=scene.team.get(step.agent, scene.role), step=step) for step in scene.earlier
        ]
        return (await self.review([*so_far, scene]))[-1]

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        transcript = read_transcript(scenes)
        charges = self._find_charges(transcript, failed=self._has_failed(scenes))
        decisive = charges[0] if charges else None
        by_place: dict[int, Charge] = {}
        for charge in charges:
            by_place.setdefault(charge.finding.place, charge)
        return [_judge(transcript, place, decisive, by_place) for place in range(len(scenes))]

    def _has_failed(self, scenes: Sequence[Scene]) -> bool:
        outcome = scenes[-1].outcome if scenes else None
        return max(outcome.values()) <= 0 if outcome else self._presume_failure

    def _find_charges(self, transcript: Transcript, *, failed: bool) -> list[Charge]:
        rules = [rule for rule in RULES if failed or not rule.explains_failure]
        return [Charge(rule=rule, finding=finding) for rule in rules for finding in rule.check(transcript)]


def _judge(transcript: Transcript, place: int, decisive: Charge | None, charges: Mapping[int, Charge]) -> Verdict:
    agent = transcript.agents[place]
    charge = charges.get(place)
    if charge is None or agent in transcript.machines:
        if any(entry.author == place for entry in transcript.outputs):
            return Verdict.scored(_RAN_SCORE, "Its program ran, and no rule finds a fault.", blame=NOBODY)
        return Verdict.abstained("Nothing in this action can be checked.")
    confidence = charge.rule.confidence
    lowest = MAX_SCORE * (1 - (decisive.rule.confidence if decisive is not None else 0.0))
    reason = f"{charge.finding.reason} ({charge.rule.name}, confidence {confidence:.0%})"
    if decisive is not None and place == decisive.finding.place:
        return Verdict.scored(round(lowest, 2), reason, blame=agent)
    side = max(MAX_SCORE * (1 - _SIDE_SHARE * confidence), lowest + 1.0)
    return Verdict.scored(round(min(side, MAX_SCORE), 2), reason)
