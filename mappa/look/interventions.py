"""Interventions: finished trajectories are played again, as counterfactuals, with another action in place of one.

The actions before it are the recorded ones, files included; what follows is sampled live with the seeds of the
original. No coach judges while they are played; `TrajectoryJudge` asks one afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

from mappa.look.coach_eval.batch_judge import JudgingLimits, judge_actions
from mappa.look.handoffs import INPUT_BREACHES, OUTPUT_BREACHES
from mappa.rollout.collector import RolloutCollector
from mappa.rollout.named_coach import NamedCoach
from mappa.rollout.replay import Replay
from mappa.rollout.team import Job, Replacement
from mappa.session.builder import Session
from mappa.session.stored_runs import RecordedScenes
from mappa.store.folder import RunFolder
from mappa_core import MAX_SCORE, Completion, Split, Step, Task, Trajectory, Verdict
from mappa_core.calls.spend_ledger import Ledger
from mappa_core.config.schema import RunConfig

SUCCESS = 0.5
"""A play whose metric lies above this succeeded."""
LOST = "lost while it was played on"
"""Why a play with an intervention says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Intervention:
    """The action `text` at `position` of `trajectory`; None: one that the policy samples anew. Interventions on the
    same action differ in their `number`."""

    trajectory: Trajectory
    position: int
    number: int
    text: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """Whom a coach blames most in a trajectory: the agent, the position of its action, and the verdict that says so."""

    agent: str
    position: int
    verdict: Verdict


class InterventionPlayer:
    """Plays tasks and interventions with the team of an open session, recorded in `folder`."""

    def __init__(
        self, session: Session, folder: RunFolder, split: Split, on_finish: Callable[[Trajectory], None] | None = None
    ) -> None:
        team = session.team_for(split)
        self._split: Split = split
        self._collector = RolloutCollector(
            replace(team, coach_of={}, hindsight=None, unjudged=frozenset(team.coach_of)),
            recorder=folder.store,
            archive=folder.files,
            concurrency=session.config.sampling.concurrency,
            waves=session.deterministic,
            on_finish=on_finish,
        )

    async def play_tasks(self, tasks: Sequence[Task]) -> tuple[Trajectory, ...]:
        """One trajectory per task."""
        return await self._collector.collect(
            [Job(task=task, split=self._split, iteration=0, sample=0) for task in tasks]
        )

    async def play(self, interventions: Sequence[Intervention]) -> tuple[Trajectory, ...]:
        """One trajectory per intervention, in order, with all its steps."""
        jobs = [self._job(one) for one in interventions]
        replays = {job.id: _replay(one) for job, one in zip(jobs, interventions, strict=True)}
        return await self._collector.collect(jobs, replays, resample=False)

    def _job(self, one: Intervention) -> Job:
        origin = one.trajectory
        replacement = Replacement(trajectory=origin.id, position=one.position, number=one.number)
        return Job(
            task=origin.task,
            split=self._split,
            iteration=origin.iteration,
            sample=origin.sample,
            replacement=replacement,
        )


class TrajectoryJudge:
    """Asks a coach for its verdicts on all actions of trajectories, together where it judges whole ones."""

    def __init__(self, judge: NamedCoach, scenes: RecordedScenes, limits: JudgingLimits) -> None:
        self._judge = judge
        self._scenes = scenes
        self._limits = limits

    async def judge(self, trajectories: Sequence[Trajectory]) -> list[list[Verdict]]:
        """The verdicts of each trajectory, in the order of its steps."""
        together = self._judge.coach.by_trajectory
        read = self._scenes.hindsight if together else self._scenes.live
        shown = [[await self._scenes.with_truth(scene) for scene in read(one)] for one in trajectories]
        return await judge_actions(self._judge, shown, self._limits, review=together, finalize=lambda verdict: verdict)


def judging_limits(config: RunConfig, ledger: Ledger) -> JudgingLimits:
    """The limits of a config's coach; `ledger` is that of the policies, too."""
    return JudgingLimits(
        concurrency=config.sampling.concurrency,
        timeout_s=config.coach.timeout_s,
        ledger=ledger,
    )


def find_blame(steps: Sequence[Step], verdicts: Sequence[Verdict]) -> Blame | None:
    """The blame of the first among the lowest verdicts that blame an agent, followed upstream: where the blamed action
    was handed files that were missing or broken, to the action that left them so, if its verdict blames an agent, too.
    The action is the one judged or, where another agent is blamed, that agent's last action before it. None if no
    verdict blames anybody."""
    agents = {step.agent for step in steps}
    blaming = {
        place: verdict.score
        for place, verdict in enumerate(verdicts)
        if verdict.score is not None and verdict.score < MAX_SCORE and verdict.blame in agents
    }
    if not blaming:
        return None
    place = min(blaming, key=blaming.__getitem__)
    while (source := _find_source(steps[: place + 1], blaming)) is not None:
        place = source
    agent = str(verdicts[place].blame)
    own = [step.position for step in steps[: place + 1] if step.agent == agent]
    return Blame(agent=agent, position=own[-1] if own else steps[place].position, verdict=verdicts[place])


def _find_source(steps: Sequence[Step], blaming: Container[int]) -> int | None:
    """The place of the last action, among those that are `blaming`, that left a file missing or broken which the last
    of `steps` needed; None without one."""
    *before, last = steps
    lacked = {breach.path for breach in last.breaches if breach.kind in INPUT_BREACHES}
    left = [
        place
        for place, step in enumerate(before)
        if place in blaming
        and any(breach.path in lacked and breach.kind in OUTPUT_BREACHES for breach in step.breaches)
    ]
    return left[-1] if left else None


def _replay(one: Intervention) -> Replay:
    before = tuple(step for step in one.trajectory.steps if step.position < one.position)
    action = None
    if one.text is not None:
        action = Completion(text=one.text, prompt_tokens=None, tokens=None, logprobs=None, finish="stop")
    return Replay(steps=before, fork_position=one.position, replacement=action)
