"""Ensemble of coaches: every member judges every action, and their scores are combined."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from mappa_core.coaching.options import EnsembleOptions
from mappa_core.config.schema import Use
from mappa_core.errors import ConfigError
from mappa_core.protocols import Bench, Cassette, Coach, Provider
from mappa_core.records import Scene, Trajectory, Verdict

COMBINE_METHODS = ("mean", "median", "trimmed_mean", "min", "weighted")


def build_ensemble(options: EnsembleOptions, build: Callable[[Use], Coach]) -> Ensemble:
    """Build the ensemble of `options`, each coach by `build`. Raises ConfigError for invalid options."""
    _check(options)
    weights = options.weights or [1.0] * len(options.members)
    members = [
        Member(name=name, coach=build(use), weight=weight)
        for name, use, weight in zip(_unique_names(options.members), options.members, weights, strict=True)
    ]
    escalation = options.escalate_to
    return Ensemble(
        members,
        combine=options.combine,
        at_least=options.at_least,
        max_spread=options.max_spread,
        escalate_to=None if escalation is None else Member(name=escalation.use, coach=build(escalation)),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Member:
    """A named coach of an ensemble. `weight` applies to the combination `weighted`."""

    name: str
    coach: Coach
    weight: float = 1.0

    async def score(self, scene: Scene) -> Verdict:
        """Return the coach's verdict under the member's name. An exception of a member becomes its `failed` verdict and
        does not affect the others."""
        (verdict,) = await self._with_name(_score_one(self.coach, scene), 1)
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
            verdicts = [Verdict.failed(f"{type(error).__name__}: {error}")] * count
        return [replace(verdict, coach=self.name) for verdict in verdicts]


class Ensemble(Coach):
    """Asks all members concurrently and combines their scores.

    Its verdicts hold those of the members, so that disagreement is visible. They take the most frequent blame of the
    members that scored (none in a tie), the first correction, and as `usage` what was paid this time.

    If the highest and the lowest score are more than `max_spread` points apart, `escalate_to` is asked and decides
    alone; without it the verdict is `abstained`. With fewer than `at_least` scores the verdict is `failed`, or
    `abstained` if all members abstain.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        combine: str = "median",
        at_least: int = 1,
        max_spread: float | None = None,
        escalate_to: Member | None = None,
    ) -> None:
        """`combine` is one of COMBINE_METHODS, `at_least` 1 or more."""
        self._members = tuple(members)
        self._combine = combine
        self._at_least = at_least
        self._max_spread = max_spread
        self._escalate_to = escalate_to

    async def score(self, scene: Scene) -> Verdict:
        return await self._verdict(scene, await asyncio.gather(*(member.score(scene) for member in self._members)))

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        by_member = await asyncio.gather(*(member.review(scenes) for member in self._members))
        by_scene = zip(scenes, zip(*by_member, strict=True), strict=True)
        return await asyncio.gather(*(self._verdict(scene, verdicts) for scene, verdicts in by_scene))

    @property
    def by_trajectory(self) -> bool:
        """Whether any member judges by trajectory; the others are then asked after the trajectory as well."""
        return any(member.coach.by_trajectory for member in self._members)

    @property
    def providers(self) -> tuple[Provider, ...]:
        return tuple(dict.fromkeys(provider for _, coach in self._coaches() for provider in coach.providers))

    def use_cassette(self, cassette: Cassette) -> None:
        for _, coach in self._coaches():
            coach.use_cassette(cassette)

    def set_bench(self, bench: Bench) -> None:
        for _, coach in self._coaches():
            coach.set_bench(bench)

    def learn(self, trajectories: Sequence[Trajectory]) -> None:
        for _, coach in self._coaches():
            coach.learn(trajectories)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each coach by its position and name."""
        return {key: coach.state_dict() for key, coach in self._coaches()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for key, coach in self._coaches():
            coach.load_state_dict(state[key])

    async def close(self) -> None:
        async with AsyncExitStack() as stack:
            for _, coach in self._coaches():
                stack.push_async_callback(coach.close)

    def _coaches(self) -> Iterator[tuple[str, Coach]]:
        yield from ((f"members.{place}.{member.name}", member.coach) for place, member in enumerate(self._members))
        if self._escalate_to is not None:
            yield f"escalate_to.{self._escalate_to.name}", self._escalate_to.coach

    async def _verdict(self, scene: Scene, verdicts: Sequence[Verdict]) -> Verdict:
        """Combine the verdicts of the members, which are in their order."""
        scored = [
            (one.score, member.weight)
            for one, member in zip(verdicts, self._members, strict=True)
            if one.score is not None
        ]
        if len(scored) < self._at_least:
            return _with_members(self._too_few(verdicts, len(scored)), verdicts)
        scores, weights = zip(*scored, strict=True)
        spread = max(scores) - min(scores)
        if self._max_spread is not None and spread > self._max_spread:
            return await self._resolve_dispute(scene, verdicts, spread)
        verdict = Verdict.scored(
            combine_scores(scores, self._combine, weights),
            f"{self._combine} of {_summarize(verdicts)}\n{_reasons(verdicts)}",
            blame=_majority_blame(verdicts),
            correction=next((one.correction for one in verdicts if one.correction is not None), None),
        )
        return _with_members(verdict, verdicts)

    def _too_few(self, verdicts: Sequence[Verdict], count: int) -> Verdict:
        scored = f"{count} of {len(verdicts)} members scored, {self._at_least} must"
        why = f"{scored}: {_summarize(verdicts)}\n{_reasons(verdicts)}"
        if all(one.status == "abstained" for one in verdicts):
            return Verdict.abstained(why)
        return Verdict.failed(why)

    async def _resolve_dispute(self, scene: Scene, verdicts: Sequence[Verdict], spread: float) -> Verdict:
        why = f"members are {spread:g} points apart: {_summarize(verdicts)}"
        if self._escalate_to is None:
            return _with_members(Verdict.abstained(f"{why}\n{_reasons(verdicts)}"), verdicts)
        decided = await self._escalate_to.score(scene)
        verdict = replace(decided, coach="", reasoning=f"{why}; {self._escalate_to.name} decides\n{decided.reasoning}")
        return _with_members(verdict, (*verdicts, decided))


def combine_scores(scores: Sequence[float], combine: str, weights: Sequence[float]) -> float:
    """Combine one or more scores (points, 0-10); `weights` above 0, one per score, apply to `weighted` only.

    `trimmed_mean` is the mean without the highest and the lowest fifth of the scores, rounded down but at least one at
    each end; for one or two scores it is their mean. `weighted` divides by the sum of the given weights.
    """
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
    counts = Counter(one.blame for one in verdicts if one.score is not None and one.blame is not None).most_common(2)
    if not counts or (len(counts) == 2 and counts[0][1] == counts[1][1]):
        return None
    return counts[0][0]


def _summarize(verdicts: Sequence[Verdict]) -> str:
    """Summarize the members' scores in one line."""
    return ", ".join(f"{one.coach} {one.status if one.score is None else f'{one.score:g}'}" for one in verdicts)


def _reasons(verdicts: Sequence[Verdict]) -> str:
    return "\n".join(f"{one.coach}: {one.error or one.reasoning}" for one in verdicts)


def _with_members(verdict: Verdict, verdicts: Sequence[Verdict]) -> Verdict:
    """Add the members' verdicts and their usage to `verdict`. Replayed members cost nothing now; if all were replayed,
    so is the verdict."""
    asked = [one for one in verdicts if one.usage is not None]
    paid = [one for one in asked if not one.replayed]
    usages = [one.usage for one in paid or asked if one.usage is not None]
    return replace(
        verdict,
        members=tuple(verdicts),
        usage=sum(usages[1:], usages[0]) if usages else None,
        replayed=bool(asked) and not paid,
    )


async def _score_one(coach: Coach, scene: Scene) -> Sequence[Verdict]:
    return (await coach.score(scene),)


def _unique_names(members: Sequence[Use]) -> Iterator[str]:
    """Yield a unique name per member, numbered if an offer occurs twice."""
    seen: Counter[str] = Counter()
    for member in members:
        seen[member.use] += 1
        yield member.use if seen[member.use] == 1 else f"{member.use}-{seen[member.use]}"


def _check(options: EnsembleOptions) -> None:
    o, count = options, len(options.members)
    if count < 2:
        raise ConfigError(f"ensemble: members names {count} of the at least two coaches that it takes")
    for place, member in enumerate(o.members):
        if member in o.members[:place]:
            raise ConfigError(
                f"ensemble: members {o.members.index(member)} and {place} are the same {member.use}, asked the same: "
                "on a cassette the second repeats the first. Give each a model, a rubric or a seed of its own"
            )
    if o.combine not in COMBINE_METHODS:
        raise ConfigError(f"ensemble: combine is {o.combine!r}; it must be one of {', '.join(COMBINE_METHODS)}")
    if (o.combine == "weighted") != bool(o.weights):
        raise ConfigError("ensemble: weights go with combine=weighted, and it with weights")
    if o.weights and (len(o.weights) != count or not all(0.0 < weight < math.inf for weight in o.weights)):
        raise ConfigError(
            f"ensemble: weights is {o.weights}; it must hold a number above 0 for each of {count} members"
        )
    if not 1 <= o.at_least <= count:
        raise ConfigError(f"ensemble: at_least is {o.at_least}; it must lie between 1 and the {count} members")
    if o.max_spread is not None and not 0.0 <= o.max_spread < math.inf:
        raise ConfigError(f"ensemble: max_spread is {o.max_spread:g}; it must be points from 0 on, or null")
    if o.escalate_to is not None and o.max_spread is None:
        raise ConfigError("ensemble: escalate_to is never asked without max_spread: set how far members may be apart")
