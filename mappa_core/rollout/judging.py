"""The verdicts of one trajectory: asked for while it goes on, or together when it has ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from mappa_core.calls.spend import Ledger
from mappa_core.errors import ConfigError
from mappa_core.protocols import Bench, Coach
from mappa_core.records import Phase, Scene, Step, Trajectory, Verdict
from mappa_core.rollout.replay import Replay
from mappa_core.rollout.scenes import hindsight, told
from mappa_core.rollout.team import Judge, Recorder, Team


class Judging:
    """Asks the team's coaches. A live verdict is asked for in a task of `background` as soon as its step is done,
    unless its coach judges by trajectory; those, and verdicts in hindsight, are asked for in `finish`. Verdicts that
    `recorded` holds are not asked for again. What the workflow tells of the truth it may look up on `bench`."""

    def __init__(
        self, team: Team, *, recorder: Recorder, background: asyncio.TaskGroup, recorded: Replay, bench: Bench
    ) -> None:
        self._team = team
        self._bench = bench
        self._recorder = recorder
        self._background = background
        self._recorded = recorded
        self._live: dict[str, asyncio.Task[Verdict]] = {}
        self._waiting: list[Scene] = []

    def start(self, scene: Scene) -> None:
        """`scene.step` was just done."""
        judge = self._team.judges.get(scene.step.agent)
        if judge is None:
            return
        if judge.coach.by_trajectory:
            self._waiting.append(scene)
        else:
            self._live[scene.step.id] = self._background.create_task(self._alone(judge, scene))

    async def live(self, step: Step) -> Verdict | None:
        """The live verdict of a step, once it is there; None where nobody judges its agent.

        Raises:
            ConfigError: its coach judges trajectories, so that there is none before the end.
        """
        if step.id in self._live:
            return await asyncio.shield(self._live[step.id])
        if step.agent in self._team.judges:
            raise ConfigError(
                f"the workflow asks for the verdict of {step.agent} while it plays, and its coach judges whole "
                "trajectories when they have ended: set coach.options.batch=step, or turn the feedback off"
            )
        return None

    async def finish(self, trajectory: Trajectory) -> tuple[Verdict, ...]:
        """All verdicts of a trajectory that has ended. One that could not be finished has no outcome to look back
        from: nobody judges it in hindsight."""
        live = await asyncio.gather(*self._live.values())
        late = [self._together("live", self._team.judges[group[0].step.agent], group) for group in self._groups()]
        looking_back = self._team.hindsight
        if looking_back is not None and trajectory.error is None:
            roles, shown = self._team.workflow.agents, self._team.reference_for
            groups = _by_truth(hindsight(trajectory, roles, reference_for=shown))
            late += [self._together("after", looking_back, group) for group in groups]
        return (*live, *(verdict for verdicts in await asyncio.gather(*late) for verdict in verdicts))

    def _groups(self) -> list[list[Scene]]:
        """The actions that wait for the end, by their coach."""
        by_coach: dict[int, list[Scene]] = {}
        for scene in self._waiting:
            by_coach.setdefault(id(self._team.judges[scene.step.agent].coach), []).append(scene)
        return [group for scenes in by_coach.values() for group in _by_truth(scenes)]

    async def _alone(self, judge: Judge, scene: Scene) -> Verdict:
        given = self._recorded.on(scene.step, "live")
        if _stands(given):
            return given[-1]
        (verdict,), seconds = await self._ask(judge, [scene], review=False)
        return self._keep(verdict, judge, scene, "live", len(given), seconds)

    async def _together(self, phase: Phase, judge: Judge, scenes: Sequence[Scene]) -> list[Verdict]:
        given = [self._recorded.on(scene.step, phase) for scene in scenes]
        if all(_stands(verdicts) for verdicts in given):
            return [verdicts[-1] for verdicts in given]
        verdicts, seconds = await self._ask(judge, scenes, review=True)
        return [
            before[-1] if _stands(before) else self._keep(verdict, judge, scene, phase, len(before), seconds)
            for before, verdict, scene in zip(given, verdicts, scenes, strict=True)
        ]

    async def _ask(self, judge: Judge, scenes: Sequence[Scene], *, review: bool) -> tuple[list[Verdict], float]:
        async def asking() -> Sequence[Verdict]:
            shown = [await told(scene, self._team.workflow, self._bench) for scene in scenes]
            return await verdicts_on(shown, judge.coach, review=review)

        return await asked(asking, len(scenes), self._team.ledger, self._team.coach_timeout_s)

    def _keep(self, verdict: Verdict, judge: Judge, scene: Scene, phase: Phase, number: int, seconds: float) -> Verdict:
        identity = f"{scene.step.id}/{judge.name}/{phase}/{number}"
        verdict = replace(verdict, id=identity, step=scene.step.id, coach=judge.name, phase=phase, seconds=seconds)
        self._recorder.verdict(verdict)
        return verdict


async def asked(
    asking: Callable[[], Awaitable[Sequence[Verdict]]], count: int, ledger: Ledger, timeout_s: float
) -> tuple[list[Verdict], float]:
    """Ask for `count` verdicts; they and the seconds it took. This is the boundary of coaches: whatever one raises, a
    spend cap that is reached, and silence beyond `timeout_s` seconds, becomes `failed` verdicts, which carry no
    gradient and count against `coach.max_missing`."""
    started = time.perf_counter()
    try:
        ledger.check()
        async with asyncio.timeout(timeout_s):
            verdicts = list(await asking())
        if len(verdicts) != count:
            raise TypeError(f"the coach gave {len(verdicts)} verdicts on {count} actions")
    except TimeoutError:
        verdicts = [Verdict.failed(f"no verdict within {timeout_s:g} s")] * count
    except Exception as error:  # noqa: BLE001 - the boundary of coaches
        verdicts = [Verdict.failed(f"{type(error).__name__}: {error}")] * count
    for verdict in verdicts:
        if not verdict.replayed:
            ledger.add(verdict.usage)
    return verdicts, time.perf_counter() - started


async def verdicts_on(scenes: Sequence[Scene], coach: Coach, *, review: bool) -> Sequence[Verdict]:
    """What `coach` says of scenes of one trajectory: of all together (`review`), or of one after the other."""
    return await coach.review(scenes) if review else [await coach.score(scene) for scene in scenes]


def _stands(given: Sequence[Verdict]) -> bool:
    """Whether the last verdict that was given need not be asked for again."""
    return bool(given) and given[-1].status != "failed"


def _by_truth(scenes: Sequence[Scene]) -> list[list[Scene]]:
    """Actions whose coach may see the truth apart from those where it may not: one call shows one evidence."""
    groups: dict[bool, list[Scene]] = {}
    for scene in scenes:
        groups.setdefault(scene.task.reference is None, []).append(scene)
    return list(groups.values())
