"""Rollouts of candidates: each candidate plays each task once, and what the run folder holds is not played again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mappa.runs import RunFolder
from mappa.sessions import Job, Replay, RolloutCollector, Session, record_prompts
from mappa_core import GuardStop, ReplayError, Split, Task, ToolError, Trajectory, WorkflowError
from mappa_core.transport import CallError

CANDIDATE_EVENT = "candidate"
"""The number of a candidate, its prompts by agent, and the round of a training that it is of; None in a search."""
CONTINUED_EVENT = "candidate_continued"
"""Split and iteration of trajectories some of which were lost, and played on later."""
CANDIDATE_SPLIT = "candidate"
"""Split of the rollouts of candidates in the store of a training, which nothing counts or learns from."""
MACHINERY = frozenset({ToolError.__name__, CallError.__name__})
"""Failures that no agent caused: the trajectory has no result, and a run that resumes plays it on."""

Prompts = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidateJob(Job):
    """A rollout of a candidate in a training, after so many iterations. All candidates play a task with one seed."""

    candidate: int

    @property
    def id(self) -> str:
        return f"{CANDIDATE_SPLIT}-{self.iteration:06d}-{self.candidate:03d}/{self.task.id}/{self.sample:03d}"

    @property
    def stored_split(self) -> str:
        return CANDIDATE_SPLIT

    @property
    def origin(self) -> str:
        return f"{CANDIDATE_SPLIT}-{self.iteration:06d}/{self.task.id}/{self.sample:03d}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskResult:
    """The trajectories of one candidate on one task; `score` is the mean of the metric over those that have a result;
    one that the team did not finish counts 0."""

    trajectories: tuple[Trajectory, ...]
    score: float


class CandidateRollouts:
    """Plays tasks with the team of an open session, whose prompts are those of a candidate.

    Candidates are numbered in the order in which they first play: in a search their trajectories have the number as
    their iteration, and in the `round` of a training, after so many iterations, a split of their own. A resumed run
    repeats this order: it takes what an earlier process recorded, and raises ReplayError if a candidate is another one
    than then. `resume` is the command that an error names.
    """

    def __init__(
        self,
        session: Session,
        folder: RunFolder,
        *,
        samples: int,
        resume: str,
        round: int | None = None,  # noqa: A002 - as in GEPA
        on_finish: Callable[[Trajectory], None] | None = None,
    ) -> None:
        self.count = 0
        """Rollouts so far, those of earlier processes included."""
        self._session = session
        self._folder = folder
        self._samples = samples
        self._resume = resume
        self._round = round
        self._on_finish = on_finish
        events = [event.body for event in folder.store.events(CANDIDATE_EVENT) if event.body.get("round") == round]
        self._recorded_prompts = {body["number"]: body["prompts"] for body in events}
        continued = folder.store.events(CONTINUED_EVENT)
        self._continued = {(event.body["split"], event.body["number"]) for event in continued}
        self._numbers: dict[frozenset[tuple[str, str]], int] = {}
        self._results: dict[tuple[Split, int, str], TaskResult] = {}

    async def play(self, prompts: Prompts, tasks: Sequence[Task], split: Split) -> list[TaskResult]:
        """Play each task `samples` times, or take the results of before, in the order of `tasks`. Coaches judge in the
        split `train`. Raises GuardStop if the spending cap is reached, or tools or providers lost all of a task."""
        number = self._number(prompts)
        new = {task.id: task for task in tasks if (split, number, task.id) not in self._results}
        if new:
            samples = range(self._samples)
            jobs = [self._job(task, split, number, sample) for task in new.values() for sample in samples]
            trajectories = await self._collect(jobs, self._session.with_prompts(prompts), number)
            self.count += len(jobs)
            for name in new:
                own = [trajectory for trajectory in trajectories if trajectory.task.id == name]
                self._results[split, number, name] = self._result(own)
        return [self._results[split, number, task.id] for task in tasks]

    def _job(self, task: Task, split: Split, number: int, sample: int) -> Job:
        if self._round is None:
            return Job(task=task, split=split, iteration=number, sample=sample)
        return CandidateJob(task=task, split=split, iteration=self._round, sample=sample, candidate=number)

    def is_known(self, prompts: Prompts) -> bool:
        """Whether a candidate has played."""
        return frozenset(prompts.items()) in self._numbers

    def _number(self, prompts: Prompts) -> int:
        key = frozenset(prompts.items())
        if key in self._numbers:
            return self._numbers[key]
        number = self._numbers[key] = len(self._numbers)
        if number not in self._recorded_prompts:
            record_prompts(self._session.with_prompts(prompts).team, self._folder.store)
            self._folder.store.record_event(CANDIDATE_EVENT, round=self._round, number=number, prompts=dict(prompts))
        elif self._recorded_prompts[number] != dict(prompts):
            raise ReplayError(f"{self._folder.path}: candidate {number} is recorded with other prompts")
        return number

    async def _collect(self, jobs: Sequence[Job], candidate: Session, number: int) -> Sequence[Trajectory]:
        """Play `jobs` of one split with the team of `candidate`, as far as they are not recorded."""
        store, place = self._folder.store, (jobs[0].stored_split, jobs[0].iteration)
        recorded = store.load_recorded(*place) if self._recorded_prompts else {}
        known = {job.id: replace(recorded[job.id].trajectory, task=job.task) for job in jobs if job.id in recorded}
        lost = [name for name, one in known.items() if one.error is not None and one.error.kind in MACHINERY]
        if len(known) == len(jobs) and not lost and all(recorded[name].finished for name in known):
            return [known[job.id] for job in jobs]
        self.check_spend()
        if lost and place not in self._continued:
            store.record_event(CONTINUED_EVENT, split=place[0], number=place[1])
            self._continued.add(place)
        collector = RolloutCollector(
            candidate.team_for(jobs[0].split),
            recorder=store,
            archive=self._folder.files,
            concurrency=candidate.config.sampling.concurrency,
            waves=candidate.deterministic,
            on_finish=self._on_finish,
        )
        replays = {name: Replay(steps=one.steps, verdicts=one.verdicts) for name, one in known.items()}
        trajectories = await collector.collect(jobs, replays, resample=place not in self._continued)
        if number == 0:
            _raise_if_all_raised(trajectories)
        return trajectories

    def check_spend(self) -> None:
        """Raise GuardStop if the run's spending cap is reached."""
        try:
            self._session.team.ledger.check()
        except CallError as error:
            advice = f"go on with a higher cap: {self._resume} {self._folder.path} coach.spend_usd=…"
            raise GuardStop(f"{error}; {advice}") from error

    def _result(self, trajectories: Sequence[Trajectory]) -> TaskResult:
        """Build the result of one task. Raises GuardStop if tools or providers lost all its trajectories."""
        metric = self._session.workflow.metric
        values = [metric_value(one, metric) for one in trajectories]
        found = [value for value in values if value is not None]
        if not found:
            self.check_spend()
            failure = trajectories[0].error
            reason = "" if failure is None else f"{failure.kind}: {failure.message}"
            raise GuardStop(
                f"the task {trajectories[0].task.id} was lost, which is no fault of the team: {reason}. Once the cause "
                f"is mended, go on: {self._resume} {self._folder.path}"
            )
        return TaskResult(trajectories=tuple(trajectories), score=sum(found) / len(found))


def metric_value(trajectory: Trajectory, metric: str) -> float | None:
    """The metric of a trajectory; 0 if the team did not finish it, None if it was lost."""
    if trajectory.error is None:
        return trajectory.outcome[metric]
    return None if trajectory.error.kind in MACHINERY else 0.0


def _raise_if_all_raised(trajectories: Sequence[Trajectory]) -> None:
    """Raise WorkflowError if the team's own code raised in every rollout with the prompts of the start: a bug."""
    raised = [one.error for one in trajectories if one.error and one.error.kind.startswith(WorkflowError.__name__)]
    if len(raised) == len(trajectories):
        raise WorkflowError(f"all {len(raised)} rollouts failed in the workflow; the first: {raised[0].message}")
