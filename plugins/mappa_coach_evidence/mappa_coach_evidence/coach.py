"""The coach `evidence`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mappa_coach_evidence.evidence import Evidence, chances, collect_evidence
from mappa_coach_evidence.options import EvidenceOptions
from mappa_coach_evidence.rules import RULES
from mappa_coach_evidence.transcript import Transcript, read_transcript
from mappa_coach_evidence.weights import WEIGHTS
from mappa_core import MAX_SCORE, NOBODY, Coach, Scene, Verdict

_RAN_SCORE = 8.0
_LEAST = 0.01
"""Points by which the blamed action lies below all others, and below the highest score."""


class EvidenceCoach(Coach):
    """Blames the action that the evidence makes the likeliest error.

    In a failed trajectory that may be one by its place alone, and the verdict says so. The blamed action and those with
    evidence against them get what their chance to be the decisive error leaves of 10 points: at 60 % it is 4. An action
    without, whose programs ran, gets 8 or more. Where nothing can be checked, the coach abstains. Judging a single
    action (`score`) sees what came before it and nothing after.
    """

    def __init__(self, options: EvidenceOptions) -> None:
        self._presume_failure = options.presume_failure

    @property
    def by_trajectory(self) -> bool:
        return True

    async def score(self, scene: Scene) -> Verdict:
        (verdict,) = await self.review([replace(scene, later=None)])
        return verdict

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        transcript = read_transcript(_whole_trajectory(scenes))
        failed = self._has_failed(scenes)
        rules = [rule for rule in RULES if failed or not rule.explains_failure]
        evidence = collect_evidence(transcript, rules)
        chance = chances(evidence, WEIGHTS, nobody=not failed)
        suspects = [place for place, found in evidence.items() if failed or found.findings]
        blamed = max(suspects, key=chance.__getitem__, default=None)
        judge = _Judge(transcript, evidence, chance, blamed)
        return [judge.judge(len(scene.earlier)) for scene in scenes]

    def _has_failed(self, scenes: Sequence[Scene]) -> bool:
        last = scenes[-1] if scenes else None
        if last is None or last.outcome is None or last.metric is None or last.metric not in last.outcome:
            return self._presume_failure
        return last.outcome[last.metric] <= 0


def _whole_trajectory(scenes: Sequence[Scene]) -> list[Scene]:
    """A scene for every action of the trajectory of `scenes`, as far as it is known: not all of its actions may be
    judged."""
    if not scenes:
        return []
    last = scenes[-1]
    steps = (*last.earlier, last.step, *(last.later or ()))
    return [Scene(task=last.task, role=last.team.get(step.agent, last.role), step=step) for step in steps]


class _Judge:
    """Verdicts on the actions of one transcript, of which the one at `blamed` is to blame."""

    def __init__(
        self, transcript: Transcript, evidence: Mapping[int, Evidence], chance: Mapping[int, float], blamed: int | None
    ) -> None:
        self._transcript = transcript
        self._evidence = evidence
        self._chance = chance
        self._ran = {entry.author for entry in transcript.outputs}
        self._blamed = blamed

    def judge(self, place: int) -> Verdict:
        agent = self._transcript.agents[place]
        if place == self._blamed:
            return Verdict.scored(self._lowest, self._reason(place), blame=agent)
        if place in self._evidence and self._evidence[place].findings:
            return Verdict.scored(max(self._points(place), self._lowest + _LEAST), self._reason(place))
        if place in self._ran and agent not in self._transcript.machines:
            score = max(_RAN_SCORE, (self._lowest + MAX_SCORE) / 2)
            return Verdict.scored(score, "Its program ran, and no rule finds a fault.", blame=NOBODY)
        return Verdict.abstained("Nothing in this action can be checked.")

    @property
    def _lowest(self) -> float:
        return 0.0 if self._blamed is None else min(self._points(self._blamed), MAX_SCORE - _LEAST)

    def _points(self, place: int) -> float:
        return round(MAX_SCORE * (1 - self._chance[place]), 2)

    def _reason(self, place: int) -> str:
        findings = self._evidence[place].findings
        found = " ".join(finding.reason for finding in findings.values()) or "No rule finds a fault in it."
        return f"{found} ({', '.join(findings) or 'its place alone'}: {self._chance[place]:.0%} the decisive error)"
