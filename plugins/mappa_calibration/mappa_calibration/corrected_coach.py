"""The coach `bias_corrected`: another coach, less the preferences that are identified apart from merit."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mappa_calibration.actions import REFERENCE, collect_actions, sampled_tokens
from mappa_calibration.bias_model import BiasModel
from mappa_calibration.blind import blind
from mappa_calibration.options import BiasOptions
from mappa_core import MAX_SCORE, Coach, DelegatingCoach, MappaError, Scene, Trajectory, Verdict
from mappa_core.coach import DriftReport, Phase
from mappa_core.redaction import describe_error


class BiasCorrectedCoach(DelegatingCoach):
    """Wraps a coach and subtracts preferences from its scores once they are shown. They are learned from the raw scores
    once an iteration, for every agent, phase and stratifier of the options, by second judgements of the same actions;
    where these do not tell them from merit, the score stays and a note says so. A share of the actions is judged twice:
    blind by the coach itself, or by a `second` one, more of them until preferences are shown or excluded; that verdict
    is kept among the members of the first. A score moves by at most `options.max_points`; `raw_score` keeps the coach's
    own."""

    def __init__(self, coach: Coach, options: BiasOptions, second: Coach | None = None) -> None:
        super().__init__({"coach": coach} if second is None else {"coach": coach, "second": second})
        self._coach = coach
        self._second = second
        self._options = options
        self._model = BiasModel(options)

    async def score(self, scene: Scene) -> Verdict:
        if not self._is_judged_twice([scene]):
            return self._correct(scene, await self._coach.score(scene))
        first, again = await asyncio.gather(self._coach.score(scene), self._judge_again([scene], review=False))
        return self._correct(scene, _with_reference(first, *again))

    async def review(self, scenes: Sequence[Scene]) -> Sequence[Verdict]:
        if not scenes or not self._is_judged_twice(scenes):
            verdicts = await self._coach.review(scenes)
        else:
            first, again = await asyncio.gather(self._coach.review(scenes), self._judge_again(scenes, review=True))
            verdicts = [_with_reference(*pair) for pair in zip(first, again, strict=True)]
        return [self._correct(scene, verdict) for scene, verdict in zip(scenes, verdicts, strict=True)]

    def _is_judged_twice(self, scenes: Sequence[Scene]) -> bool:
        """A function of the first action's id and of what was learned, so that a resumed run asks the same again."""
        if not self._options.identified:
            return False
        number = int.from_bytes(hashlib.blake2b(scenes[0].step.id.encode(), digest_size=8).digest())
        options = self._options
        share = options.share
        if options.initial_share > share and any(
            self._model.is_undecided(_phase(scene), scene.step.agent) for scene in scenes
        ):
            share = options.initial_share
        return number < share * 2**64

    async def _judge_again(self, scenes: Sequence[Scene], *, review: bool) -> Sequence[Verdict]:
        """Judge again, one action as one and several together; what fails is no reference, and leaves the first verdict
        as it is."""
        words = [word for own in self._options.words.values() for word in own]
        shown = scenes if self._second is not None else [blind(scene, words) for scene in scenes]
        coach = self._coach if self._second is None else self._second
        try:
            given = await coach.review(shown) if review else [await coach.score(scene) for scene in shown]
            if len(given) != len(scenes):
                raise TypeError(f"the coach gave {len(given)} verdicts on {len(scenes)} actions")
        except Exception as error:  # noqa: BLE001 - the boundary of coaches
            given = [Verdict.failed(describe_error(error, MappaError, OSError))] * len(scenes)
        return [replace(verdict, coach=REFERENCE) for verdict in given]

    def _correct(self, scene: Scene, verdict: Verdict) -> Verdict:
        if not self._options.correct or verdict.score is None:
            return verdict
        step = scene.step
        bias = self._model.bias(_phase(scene), step.agent, step.strata, sampled_tokens(step))
        if bias == 0:
            return verdict
        raw = verdict.score if verdict.raw_score is None else verdict.raw_score
        return replace(verdict, score=min(max(raw - bias, 0.0), MAX_SCORE), raw_score=raw)

    def learn(self, trajectories: Sequence[Trajectory]) -> DriftReport:
        inner = super().learn(trajectories)
        if not trajectories:
            return inner
        options = self._options
        columns = collect_actions(trajectories, strata=options.strata)
        found = self._model.learn(columns, trajectories[0].iteration)
        return DriftReport.merge([inner, replace(found, pause=self._pause(found))])

    def _pause(self, found: DriftReport) -> str | None:
        if "pause" not in {getattr(self._options.alarms, alarm.kind) for alarm in found.alarms}:
            return None
        alarms = "\n".join(f"  {alarm}" for alarm in found.alarms)
        return (
            f"the coach drifts:\n{alarms}\nAcknowledge what is wanted (alarms.acknowledged of bias_corrected), "
            "or let it be corrected (alarms.level=warn), and go on."
        )

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "model": self._model.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._model.load_state_dict(state["model"])


def _phase(scene: Scene) -> Phase:
    return "live" if scene.later is None else "after"


def _with_reference(first: Verdict, again: Verdict) -> Verdict:
    """Keep a second judgement among the members of the first, with what both cost; replayed ones cost nothing."""
    asked = [verdict for verdict in (first, again) if verdict.usage is not None]
    paid = [verdict for verdict in asked if not verdict.replayed]
    usages = [verdict.usage for verdict in paid or asked if verdict.usage is not None]
    return replace(
        first,
        members=(*first.members, again),
        usage=sum(usages[1:], usages[0]) if usages else None,
        replayed=bool(asked) and not paid,
    )
