"""Verdicts of one trajectory: requested while it runs, or together when it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from mappa.rollout.named_coach import NamedCoach
from mappa.rollout.replay import Replay
from mappa.rollout.scenes import hindsight_scenes, with_truth
from mappa.rollout.team import Recorder, Team
from mappa_core.errors import ConfigError
from mappa_core.protocols import Bench
from mappa_core.records import Phase, Scene, Step, Trajectory, Verdict


class VerdictCollector:
    """Requests verdicts of the team's coaches, and reuses those in `recorded`. A live verdict is requested in a task of
    `background` as soon as its step is done, unless its coach judges whole trajectories; those, and hindsight verdicts,
    are requested in `finish`. The workflow may run programs on `bench` to describe the truth."""

    def __init__(
        self, team: Team, *, recorder: Recorder, background: asyncio.TaskGroup, recorded: Replay, bench: Bench
    ) -> None:
        self._team = team
        self._bench = bench
        self._recorder = recorder
        self._background = background
        self._recorded = recorded
        self._live: dict[str, asyncio.Task[list[Verdict]]] = {}  # By step.
        # By `id` of the coach, as agents may share one: it judges their actions in one request.
        self._waiting: dict[int, tuple[NamedCoach, list[Scene]]] = {}

    def start(self, scene: Scene) -> None:
        """Start judging `scene.step`, which was just done."""
        judge = self._team.coach_of.get(scene.step.agent)
        if judge is None:
            return
        if judge.coach.by_trajectory:
            _, scenes = self._waiting.setdefault(id(judge.coach), (judge, []))
            scenes.append(scene)
        else:
            judging = self._judge("live", judge, [scene], review=False)
            self._live[scene.step.id] = self._background.create_task(judging)

    async def live_verdict(self, step: Step) -> Verdict | None:
        """Wait for the live verdict of a step; None if no coach judges its agent. Raises ConfigError if its coach
        judges whole trajectories."""
        if step.id in self._live:
            # Shielded: a workflow that stops waiting, as by a timeout of its own, must not cancel the verdict.
            (verdict,) = await asyncio.shield(self._live[step.id])
            return verdict
        if step.agent in self._team.coach_of:
            raise ConfigError(
                f"the workflow asks for the verdict of {step.agent} while it plays, and its coach judges whole "
                "trajectories when they have ended: set coach.options.batch=step, or turn the feedback off"
            )
        return None

    async def finish(self, trajectory: Trajectory) -> tuple[Verdict, ...]:
        """All verdicts of a trajectory that has ended; without an outcome, a failed one gets none in hindsight."""
        live = await asyncio.gather(*self._live.values())
        reviews = [self._judge("live", judge, scenes) for judge, scenes in self._waiting.values()]
        hindsight = self._team.hindsight
        if hindsight is not None and trajectory.error is None:
            workflow, shown = self._team.workflow, self._team.reference_for
            scenes = hindsight_scenes(trajectory, workflow.agents, metric=workflow.metric, reference_for=shown)
            reviews.append(self._judge("after", hindsight, scenes))
        reviewed = await asyncio.gather(*reviews)
        return tuple(chain.from_iterable([*live, *reviewed]))

    async def _judge(
        self, phase: Phase, judge: NamedCoach, scenes: Sequence[Scene], *, review: bool = True
    ) -> list[Verdict]:
        team = self._team
        recorded = [self._recorded.verdicts_on(scene.step, phase) for scene in scenes]
        if all(_is_settled(verdicts) for verdicts in recorded):
            return [verdicts[-1] for verdicts in recorded]
        show = partial(with_truth, workflow=team.workflow, bench=self._bench)
        # All of them, also where only one is missing: a coach that reviews judges actions by one another.
        given = await judge.judge(scenes, review=review, ledger=team.ledger, timeout_s=team.coach_timeout_s, show=show)
        # A recorded verdict stands: what was learned from it, or fed back to agents, cannot be taken back.
        return [
            earlier[-1] if _is_settled(earlier) else self._record(verdict, phase, number=len(earlier))
            for earlier, verdict in zip(recorded, given, strict=True)
        ]

    def _record(self, verdict: Verdict, phase: Phase, number: int) -> Verdict:
        verdict = replace(verdict, id=f"{verdict.step}/{verdict.coach}/{phase}/{number}", phase=phase)
        self._recorder.record_verdict(verdict)
        return verdict


def _is_settled(verdicts: Sequence[Verdict]) -> bool:
    """Whether the last verdict stands. One that failed is asked for again after a resume."""
    return bool(verdicts) and verdicts[-1].status != "failed"
