"""Ensemble of coaches: every member judges every action, and their scores are combined."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, median
from typing import Any

from mappa_calibration.ensemble_options import EnsembleOptions
from mappa_calibration.label_calibration import Calibration
from mappa_calibration.outcome_agreement import CHANCE, OutcomeAgreement
from mappa_core import Coach, DelegatingCoach, MappaError, Scene, Trajectory, Use, Verdict
from mappa_core.coach import DriftReport
from mappa_core.redaction import describe_error

_AGREEMENT = "agreement"


def build_ensemble(options: EnsembleOptions, build: Callable[[Use], Coach]) -> Ensemble:
    """Build the ensemble of `options`, each coach by `build`. Raises ConfigError if a calibration does not fit."""
    fitted = Calibration.read(options.calibration, options.members) if options.calibration else None
    names, weights = _unique_names(options.members), options.weights or [1.0] * len(options.members)
    named, dear = zip(names, options.members, weights, strict=True), options.escalate_to
    return Ensemble(
        [Member(name=name, coach=build(use), weight=weight) for name, use, weight in named],
        combine=options.combine,
        at_least=options.at_least,
        max_spread=options.max_spread,
        escalate_to=None if dear is None else Member(name=dear.use, coach=build(dear)),
        judge=partial(fitted.judge, sure=options.abstain_below) if fitted else None,
        agreement=_watch_agreement(options.metric, fitted),
        fitted_on=fitted.fitted_on if fitted else (),
    )


def _watch_agreement(metric: str, fitted: Calibration | None) -> OutcomeAgreement | None:
    """None where it is not known that the jury agrees with its labels more than by chance: then nothing can be lost."""
    if fitted is None or fitted.agreement is None or fitted.agreement <= CHANCE:
        return None
    return OutcomeAgreement(metric, fitted.agreement)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Member:
    """A named coach of an ensemble. `weight` applies to the combination `weighted`."""

    name: str
    coach: Coach
    weight: float = 1.0

    async def score(self, scene: Scene) -> Verdict:
        """Return the coach's verdict under the member's name; its exception becomes a `failed` verdict."""
        (verdict,) = await self._with_name(Coach.review(self.coach, [scene]), 1)
        return verdict

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        """Return the coach's verdicts; one call for all in hindsight or if the coach judges by trajectory."""
        if self.coach.by_trajectory or any(scene.later is not None for scene in scenes):
            return await self._with_name(self.coach.review(scenes), len(scenes))
        return await asyncio.gather(*(self.score(scene) for scene in scenes))

    async def _with_name(self, asking: Awaitable[Sequence[Verdict]], count: int) -> Sequence[Verdict]:
        try:
            verdicts = await asking
            if len(verdicts) != count:
                raise TypeError(f"the coach gave {len(verdicts)} verdicts on {count} actions")
        except Exception as error:  # noqa: BLE001 - the boundary of members
            verdicts = [Verdict.failed(describe_error(error, MappaError, OSError))] * count
        return [replace(verdict, coach=self.name) for verdict in verdicts]


class Ensemble(DelegatingCoach):
    """Asks all members concurrently and combines their scores. A verdict takes the most frequent blame of the members
    that scored (none in a tie), the first correction, and as `usage` what was paid this time. If the highest and the
    lowest score are more than `max_spread` points apart, `escalate_to` is asked and decides alone; without it the
    verdict is `abstained`. With fewer than `at_least` scores it is `failed`, or `abstained` if all members abstain.
    With `judge`, of a calibration, the scores are combined by it, trajectory by trajectory, and their `agreement` with
    outcomes is watched."""

    def __init__(
        self,
        members: Sequence[Member],
        *,
        combine: str = "median",
        at_least: int = 1,
        max_spread: float | None = None,
        escalate_to: Member | None = None,
        judge: Callable[..., Sequence[Verdict]] | None = None,
        agreement: OutcomeAgreement | None = None,
        fitted_on: Collection[str] = (),
    ) -> None:
        coaches = {f"members.{place}.{member.name}": member.coach for place, member in enumerate(members)}
        if escalate_to is not None:
            coaches[f"escalate_to.{escalate_to.name}"] = escalate_to.coach
        super().__init__(coaches)
        self._members = tuple(members)
        self._combine = combine
        self._at_least = at_least
        self._max_spread = max_spread
        self._escalate_to = escalate_to
        self._judge = judge
        self._agreement = agreement
        self._fitted_on = frozenset(fitted_on)

    async def score(self, scene: Scene) -> Verdict:
        verdicts = await asyncio.gather(*(member.score(scene) for member in self._members))
        return await self._verdict(scene, verdicts, *(self._judge([scene], [verdicts]) if self._judge else [None]))

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        by_member = await asyncio.gather(*(member.review(scenes) for member in self._members))
        by_scene = list(zip(*by_member, strict=True))
        combined = self._judge(scenes, by_scene) if self._judge else [None] * len(scenes)
        return await asyncio.gather(*map(self._verdict, scenes, by_scene, combined))

    @property
    def fitted_on(self) -> Collection[str]:
        """The questions of the calibration, and those that a member was fitted on."""
        return self._fitted_on.union(super().fitted_on)

    @property
    def by_trajectory(self) -> bool:
        """Whether any member or a calibration judges by trajectory; all are then asked after it."""
        return self._judge is not None or any(member.coach.by_trajectory for member in self._members)

    def learn(self, trajectories: Sequence[Trajectory]) -> DriftReport:
        inner = super().learn(trajectories)
        note = self._agreement.observe(trajectories) if self._agreement else None
        return inner if note is None else DriftReport.merge([inner, DriftReport(notes=(note,))])

    def state_dict(self) -> dict[str, Any]:
        own = {_AGREEMENT: self._agreement.state_dict()} if self._agreement else {}
        return {**super().state_dict(), **own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self._agreement:
            self._agreement.load_state_dict(state[_AGREEMENT])

    async def _verdict(self, scene: Scene, verdicts: Sequence[Verdict], combined: Verdict | None) -> Verdict:
        pairs = zip(verdicts, self._members, strict=True)
        scored = [(verdict.score, member.weight) for verdict, member in pairs if verdict.score is not None]
        if len(scored) < self._at_least:
            return _with_members(self._too_few(verdicts, len(scored)), verdicts)
        scores, weights = zip(*scored, strict=True)
        spread = max(scores) - min(scores)
        if self._max_spread is not None and spread > self._max_spread:
            return await self._resolve_dispute(scene, verdicts, spread)
        combined = combined or Verdict.scored(combine_scores(scores, self._combine, weights), self._combine)
        followed = verdicts if combined.score is not None else ()
        verdict = replace(
            combined,
            reasoning=f"{combined.reasoning} of {_said(verdicts)}",
            blame=_majority_blame(followed),
            correction=next((verdict.correction for verdict in followed if verdict.correction is not None), None),
        )
        return _with_members(verdict, verdicts)

    def _too_few(self, verdicts: Sequence[Verdict], count: int) -> Verdict:
        make = Verdict.abstained if all(verdict.status == "abstained" for verdict in verdicts) else Verdict.failed
        return make(f"{count} of {len(verdicts)} members scored, {self._at_least} must: {_said(verdicts)}")

    async def _resolve_dispute(self, scene: Scene, verdicts: Sequence[Verdict], spread: float) -> Verdict:
        why = f"members are {spread:g} points apart:"
        if self._escalate_to is None:
            return _with_members(Verdict.abstained(f"{why} {_said(verdicts)}"), verdicts)
        decided = await self._escalate_to.score(scene)
        why = f"{why} {_summarize(verdicts)}; {self._escalate_to.name} decides"
        verdict = replace(decided, coach="", reasoning=f"{why}\n{decided.reasoning}")
        return _with_members(verdict, (*verdicts, decided))


def combine_scores(scores: Sequence[float], combine: str, weights: Sequence[float]) -> float:
    """Combine one or more scores (points, 0-10). `trimmed_mean` is the mean without the highest and the lowest fifth,
    rounded down but at least one at each end; for one or two scores it is their mean. `weights` are for `weighted`."""
    match combine:
        case "mean":
            score = fmean(scores)
        case "median":
            score = median(scores)
        case "trimmed_mean":
            cut = max(len(scores) // 5, 1) if len(scores) > 2 else 0
            score = fmean(sorted(scores)[cut : len(scores) - cut])
        case "min":
            score = min(scores)
        case "weighted":
            score = fmean(scores, weights)
        case _:
            raise ValueError(f"no way to combine scores is called {combine!r}")
    # Rounding may move a mean outside the range of the scores.
    return min(max(score, min(scores)), max(scores))


def _majority_blame(verdicts: Sequence[Verdict]) -> str | None:
    counts = Counter(
        verdict.blame for verdict in verdicts if verdict.score is not None and verdict.blame is not None
    ).most_common(2)
    if not counts or (len(counts) == 2 and counts[0][1] == counts[1][1]):
        return None
    return counts[0][0]


def _summarize(verdicts: Sequence[Verdict]) -> str:
    return ", ".join(
        f"{verdict.coach} {verdict.status if verdict.score is None else f'{verdict.score:g}'}" for verdict in verdicts
    )


def _said(verdicts: Sequence[Verdict]) -> str:
    return "\n".join(
        (_summarize(verdicts), *(f"{verdict.coach}: {verdict.error or verdict.reasoning}" for verdict in verdicts))
    )


def _with_members(verdict: Verdict, verdicts: Sequence[Verdict]) -> Verdict:
    """Add the members' verdicts and usage. Replayed members cost nothing; if all were, so was the verdict."""
    asked = [verdict for verdict in verdicts if verdict.usage is not None]
    paid = [verdict for verdict in asked if not verdict.replayed]
    usages = [verdict.usage for verdict in paid or asked if verdict.usage is not None]
    return replace(
        verdict,
        members=tuple(verdicts),
        usage=sum(usages[1:], usages[0]) if usages else None,
        replayed=bool(asked) and not paid,
    )


def _unique_names(members: Sequence[Use]) -> Iterator[str]:
    """Yield a name per member, numbered from its second occurrence on."""
    uses = [member.use for member in members]
    for place, use in enumerate(uses):
        yield f"{use}-{uses[:place].count(use) + 1}" if use in uses[:place] else use
