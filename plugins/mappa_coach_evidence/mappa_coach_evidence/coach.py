"""The coach `evidence`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from mappa_coach_evidence.evidence import Evidence, collect_evidence, suspicions
from mappa_coach_evidence.findings import Finding, Rule
from mappa_coach_evidence.fitted_on import shipped_questions
from mappa_coach_evidence.habits import describe_habits
from mappa_coach_evidence.options import EvidenceOptions
from mappa_coach_evidence.rules import RULES
from mappa_coach_evidence.transcript import Transcript, read_transcript
from mappa_coach_evidence.weights import WEIGHTS
from mappa_coach_evidence.weights_file import hash_weights, read_weights
from mappa_core import MAX_SCORE, Coach, Scene, Verdict

_RAN_SCORE = 8.0
_LEAST = 0.01
"""Points by which later faults lie above the first one, which decided."""


class EvidenceCoach(Coach):
    """Accuses actions that hard evidence speaks against, and nobody else.

    An action with a fault gets 10 points times the share in which such evidence did not hit the decisive action of
    labelled failures; the first fault of a trajectory has the lowest score. An action without, whose programs ran, gets
    8. From all else it abstains: it cannot tell. Where the trajectory is known to have succeeded, nobody is
    accused; otherwise its actions are ranked by `Verdict.suspicion`, soft evidence included: where to look first.
    Judging a single action (`score`) sees what came before it and nothing after.
    """

    def __init__(self, options: EvidenceOptions) -> None:
        self._own = None if options.weights is None else read_weights(options.weights, rules=hash_weights(WEIGHTS))

    @property
    def by_trajectory(self) -> bool:
        return True

    @property
    def fitted_on(self) -> Collection[str]:
        """The questions that made the shipped weights, and those of weights of one's own, which are drawn to them."""
        return shipped_questions() if self._own is None else shipped_questions().union(self._own.fitted_on)

    async def score(self, scene: Scene) -> Verdict:
        (verdict,) = await self.review([replace(scene, later=None)])
        return verdict

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        transcript = read_transcript(_whole_trajectory(scenes))
        evidence = collect_evidence(transcript, RULES)
        succeeded = _has_succeeded(scenes)
        ranking = {} if succeeded else self._rank(transcript, evidence)
        judge = _Judge(transcript, evidence, ranking, succeeded=succeeded)
        return [judge.judge(len(scene.earlier)) for scene in scenes]

    def _rank(self, transcript: Transcript, evidence: Mapping[int, Evidence]) -> Mapping[int, float]:
        if self._own is None:
            return suspicions(evidence, WEIGHTS)
        habits = describe_habits(transcript, evidence)
        return suspicions(
            {place: replace(found, features={**found.features, **habits[place]}) for place, found in evidence.items()},
            self._own.weights,
        )


def _has_succeeded(scenes: Sequence[Scene]) -> bool:
    """Whether the outcome is known, and a success."""
    last = scenes[-1] if scenes else None
    if last is None or last.outcome is None or last.metric is None or last.metric not in last.outcome:
        return False
    return last.outcome[last.metric] > 0


def _whole_trajectory(scenes: Sequence[Scene]) -> list[Scene]:
    """A scene for every action of the trajectory of `scenes`, as far as it is known: not all of its actions may be
    judged."""
    if not scenes:
        return []
    last = scenes[-1]
    steps = (*last.earlier, last.step, *(last.later or ()))
    return [Scene(task=last.task, role=last.team.get(step.agent, last.role), step=step) for step in steps]


class _Judge:
    """Verdicts on the actions of one transcript."""

    def __init__(
        self,
        transcript: Transcript,
        evidence: Mapping[int, Evidence],
        ranking: Mapping[int, float],
        *,
        succeeded: bool,
    ) -> None:
        self._transcript = transcript
        self._evidence = evidence
        self._succeeded = succeeded
        self._faults = {} if succeeded else {place: found.faults for place, found in evidence.items() if found.faults}
        self._suspicions = ranking
        self._ran = {entry.author for entry in transcript.outputs if not entry.failed}

    def judge(self, place: int) -> Verdict:
        return replace(self._judge(place), suspicion=self._suspicions.get(place))

    def _judge(self, place: int) -> Verdict:
        if place in self._faults:
            return self._accuse(place, *next(iter(self._faults[place].items())))
        soft = "" if self._succeeded else self._soft_reason(place)
        if place in self._ran and self._transcript.agents[place] not in self._transcript.machines:
            return Verdict.scored(_RAN_SCORE, f"Its program or call ran, and no rule finds a fault. {soft}".strip())
        if self._succeeded:
            return Verdict.abstained("The outcome is a success, and nothing in this action can be checked.")
        return Verdict.abstained(f"It cannot tell: no hard evidence speaks against this action. {soft}".strip())

    def _accuse(self, place: int, rule: Rule, finding: Finding) -> Verdict:
        reason = " ".join(found.reason for found in self._faults[place].values())
        if finding.blame is not None:
            # Not the agent's fault, so without a score: it would be learned from.
            return replace(Verdict.abstained(reason), blame=finding.blame, category=rule.category)
        assert rule.precision is not None  # Only hard rules find faults.
        score = MAX_SCORE * (1 - rule.precision) + (0.0 if place == min(self._faults) else _LEAST)
        return replace(
            Verdict.scored(round(score, 2), reason, blame=self._transcript.agents[place]), category=rule.category
        )

    def _soft_reason(self, place: int) -> str:
        found = self._evidence[place].hints if place in self._evidence else {}
        return " ".join(finding.reason for finding in found.values())
