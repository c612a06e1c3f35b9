"""Plays a team, plants faults in plays that succeeded, plays on from there, and asks the coach who is to blame."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

from mappa.config.compose import ComposedConfig
from mappa.look.crash_test.faults import Fault, PlantSite, load_faults, plant_fault
from mappa.look.crash_test.figures import CrashFigures, FoundRate, PlantedPlay, compute_found_rate
from mappa.look.interventions import (
    LOST,
    SUCCESS,
    Blame,
    Intervention,
    InterventionPlayer,
    TrajectoryJudge,
    find_blame,
    judging_limits,
)
from mappa.session.builder import open_session
from mappa.session.runtime import create_folder_for, record_session_events
from mappa.session.stored_runs import StoredScenes, open_coach
from mappa_core import RunError, Step, Trajectory, Workflow
from mappa_core.plugins import Registry
from mappa_core.transport import Provider

FAILED_CALL, BREACH, CUT_OFF = "a call failed", "a hand-off contract was broken", "a reply was cut off"
OTHER_ANSWER = "an action gave another answer than the team"
REMARKED = "the workflow's inspection of its files found something"
WORTHLESS = "a figure of its outcome is 0"
UNSTEADY = "it fails where a later action is sampled anew"
NO_PLACE = "no place for the fault"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashSize:
    """How much is played: `plays` tasks at first, then each kind of fault `samples` times in every agent."""

    plays: int
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashTest:
    """A finished crash test, and the run folder that holds its plays."""

    folder: Path
    figures: CrashFigures
    planted: tuple[PlantedPlay, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Planting:
    fault: Fault
    step: Step
    intervention: Intervention


async def run_crash_test(
    composed: ComposedConfig,
    registry: Registry,
    size: CrashSize,
    *,
    on_providers: Callable[[Sequence[Provider]], None] | None = None,
    on_play: Callable[[Trajectory], None] | None = None,
) -> CrashTest:
    """Crash-test the coach that the section `coach` of the config names, on held-out tasks of its team.

    Raises:
        ConfigError, PluginError: the config cannot be built.
        RunError: no play succeeds without a fault of its own, so that there is nothing to plant faults in.
    """
    composed.require_installed()
    config, faults = composed.config, load_faults()
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(open_session(composed, registry, learning=False, coach=False))
        tasks = session.tasks("eval")[: size.plays]
        folder = stack.enter_context(create_folder_for(composed, purpose="crash", name=config.run.name))
        record_session_events(session, folder.store)
        bench = session.team.bench(folder.files)
        limits = judging_limits(config, session.team.ledger)
        named = await stack.enter_async_context(open_coach(config, registry, folder.path, bench))
        if on_providers is not None:
            on_providers((*session.providers, *named.coach.providers))
        scenes = StoredScenes.of(session.workflow, bench, config, session.source_tasks())
        judge = TrajectoryJudge(named, scenes, limits)
        player = InterventionPlayer(session, folder, "eval", on_play)
        plays = await player.play_tasks(tasks)
        crash = _CrashTester(session.workflow, faults, player, judge, Random(config.seed))
        return await crash.run(folder.path, named.name, plays, size.samples)


class _CrashTester:
    def __init__(
        self,
        workflow: Workflow,
        faults: Sequence[Fault],
        player: InterventionPlayer,
        judge: TrajectoryJudge,
        random: Random,
    ) -> None:
        self._workflow = workflow
        self._faults = faults
        self._player = player
        self._judge = judge
        self._random = random
        self._left_out = Counter[str]()
        self._numbers: defaultdict[tuple[str, int], Iterator[int]] = defaultdict(count)

    async def run(self, folder: Path, coach: str, plays: Sequence[Trajectory], samples: int) -> CrashTest:
        succeeded = [one for one in plays if self._succeeds(one)]
        faultless = await self._select_steady(self._select_clean(succeeded))
        if not faultless:
            raise RunError(
                f"{folder}: none of {len(plays)} plays succeeded without a fault ({_reasons(self._left_out)}): "
                "play more (--plays), or a team that was trained (policies.default.from=RUN@last)"
            )
        blames = await self._find_blames(faultless)
        plantings = list(self._plant(faultless, samples))
        played = await self._player.play([one.intervention for one in plantings])
        kept = [(one, play) for one, play in zip(plantings, played, strict=True) if self._is_known(play)]
        found = await self._find_blames([play for _, play in kept])
        planted = tuple(self._to_planted(*pair, blame) for pair, blame in zip(kept, found, strict=True))
        figures = CrashFigures(
            coach=coach,
            plays=len(plays),
            succeeded=len(succeeded),
            faultless=len(faultless),
            blamed_faultless=tuple(one.id for one, blame in zip(faultless, blames, strict=True) if blame is not None),
            kinds=len({one.kind for one in planted}),
            overall=compute_found_rate(planted),
            by_kind=_group(planted, lambda one: one.kind),
            by_agent=_group(planted, lambda one: one.agent),
            left_out=dict(self._left_out),
        )
        return CrashTest(folder=folder, figures=figures, planted=planted)

    def _succeeds(self, one: Trajectory) -> bool:
        metric = self._workflow.metric
        return one.error is None and metric in one.outcome and one.outcome[metric] > SUCCESS

    def _select_clean(self, plays: Sequence[Trajectory]) -> list[Trajectory]:
        found = {one.id: find_own_fault(self._workflow, one) for one in plays}
        self._left_out.update(f"success not used: {reason}" for reason in found.values() if reason is not None)
        return [one for one in plays if found[one.id] is None]

    async def _select_steady(self, plays: Sequence[Trajectory]) -> list[Trajectory]:
        """The plays that succeed again with each later action sampled anew: where a later action made an earlier fault
        good by luck, that does not happen twice."""
        again = [self._intervene(play, step.position, None) for play in plays for step in play.steps[1:]]
        failed = {
            one.trajectory.id
            for one, played in zip(again, await self._player.play(again), strict=True)
            if not self._succeeds(played)
        }
        if failed:
            self._left_out[f"success not used: {UNSTEADY}"] += len(failed)
        return [play for play in plays if play.id not in failed]

    def _intervene(self, play: Trajectory, position: int, text: str | None) -> Intervention:
        number = next(self._numbers[play.id, position])
        return Intervention(trajectory=play, position=position, number=number, text=text)

    def _is_known(self, one: Trajectory) -> bool:
        if one.error is None and self._workflow.metric in one.outcome:
            return True
        self._left_out[LOST] += 1
        return False

    async def _find_blames(self, plays: Sequence[Trajectory]) -> list[Blame | None]:
        verdicts = await self._judge.judge(plays)
        return [find_blame(play.steps, given) for play, given in zip(plays, verdicts, strict=True)]

    def _plant(self, plays: Sequence[Trajectory], samples: int) -> Iterator[_Planting]:
        """Every kind of fault in `samples` plays for each agent, drawn at random among those with a place for it."""
        by_agent: dict[str, list[tuple[Trajectory, Step]]] = {}
        for play in plays:
            for step in play.steps:
                by_agent.setdefault(step.agent, []).append((play, step))
        for fault in self._faults:
            for agent, actions in by_agent.items():
                places = 0
                for play, step in self._random.sample(actions, k=len(actions)):
                    elsewhere = [other for one, other in actions if one.task.id != play.task.id]
                    site = PlantSite(step=step, trajectory=play, elsewhere=elsewhere, random=self._random)
                    text = plant_fault(fault, site)
                    if text is None:
                        continue
                    action = self._intervene(play, step.position, text)
                    yield _Planting(fault=fault, step=step, intervention=action)
                    places += 1
                    if places == samples:
                        break
                if not places:
                    self._left_out[f"{NO_PLACE}: {fault.name} in {agent}"] += 1

    def _to_planted(self, planting: _Planting, play: Trajectory, blame: Blame | None) -> PlantedPlay:
        origin, position = planting.intervention.trajectory, planting.intervention.position
        return PlantedPlay(
            kind=planting.fault.name,
            agent=planting.step.agent,
            position=position,
            task=origin.task.cluster or origin.task.id,
            trajectory=play.id,
            broke=not self._succeeds(play),
            changed=_later_texts(play, position) != _later_texts(origin, position) or play.outcome != origin.outcome,
            blamed_agent=None if blame is None else blame.agent,
            blamed_position=None if blame is None else blame.position,
            agents=len({step.agent for step in play.steps}),
            actions=len(play.steps),
        )


def find_own_fault(workflow: Workflow, play: Trajectory) -> str | None:
    """A fault that the record of a success holds, as far as it says without any coach; None if there is none."""
    final = workflow.answer(play.steps)
    answers = {workflow.answer([step]) for step in play.steps} - {None}
    faults = {
        FAILED_CALL: any(result.status != "ok" for step in play.steps for result in step.results),
        BREACH: any(step.breaches for step in play.steps),
        CUT_OFF: any(step.truncated for step in play.steps),
        OTHER_ANSWER: final is not None and not answers <= {final},
        REMARKED: any(step.inspection is not None and step.inspection.findings for step in play.steps),
        WORTHLESS: any(play.outcome.get(name) == 0 for name in workflow.figures),
    }
    return next((reason for reason, there in faults.items() if there), None)


def _reasons(left_out: Counter[str]) -> str:
    return ", ".join(f"{times} x {reason}" for reason, times in left_out.items()) or "none succeeded"


def _later_texts(play: Trajectory, position: int) -> list[str]:
    return [step.completion.text for step in play.steps if step.position > position]


def _group(planted: Sequence[PlantedPlay], key: Callable[[PlantedPlay], str]) -> Mapping[str, FoundRate]:
    names = list(dict.fromkeys(map(key, planted)))
    return {name: compute_found_rate([one for one in planted if key(one) == name]) for name in names}
