"""Rollout scheduling: which trajectories an iteration learns from, and which are collected ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mappa.rollout.collector import RolloutCollector
from mappa.rollout.resume import ResumedIteration, resume_iteration
from mappa.rollout.team import Job
from mappa.session import Session
from mappa.store.folder import RunFolder
from mappa.training.dynamic_sampling import DynamicSampling
from mappa.training.listener import Listener
from mappa.training.task_sampler import TaskSampler
from mappa.training.tracker_threads import TrackerThreads
from mappa_core.records import Step, Task, Trajectory

GATHERED_EVENT = "gathered"
"""Event, written before an iteration is learned from if stragglers are allowed: the trajectories that it left to a
later one (`late`) and those that it took from earlier ones (`joined`)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IterationBatch:
    """The trajectories that an iteration learns from, its own first, and those of tasks that were `replaced`. `late`
    counts those of its own that a later one learns from, `joined` those that earlier ones left to it."""

    trajectories: tuple[Trajectory, ...]
    replaced: tuple[Trajectory, ...]
    late: int
    joined: int


class SampleGroup:
    """The trajectories of one task in one iteration. Estimators compare them, so they are learned from together."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.iteration = jobs[0].iteration
        self.acted: set[str] = set()  # trajectories whose agents have ended; verdicts may be outstanding
        self.task = jobs[0].task
        self.finished: dict[str, Trajectory] = {}
        # Oldest version of the weights that may have sampled for the group; None before it has begun.
        self.oldest_version: int | None = None

    @property
    def is_complete(self) -> bool:
        return len(self.finished) == len(self.jobs)

    @property
    def trajectory_ids(self) -> list[str]:
        return [job.id for job in self.jobs]

    @property
    def trajectories(self) -> list[Trajectory]:
        return [self.finished[name] for name in self.trajectory_ids if name in self.finished]

    def add_version(self, version: int) -> None:
        self.oldest_version = version if self.oldest_version is None else min(self.oldest_version, version)


class RolloutScheduler:
    """Collects the trajectories of a run's iterations, at most `max_staleness` iterations ahead.

    `take(k)` is called when the samplers have version k of the weights (k updates), and starts iterations k to
    k + `max_staleness`. So iteration i begins with version i - `max_staleness`, the oldest that its update may learn
    from, or later.

    With `straggler_share` an iteration leaves unfinished tasks to the next one, as long as their trajectories are at
    most that share of its own and stay within the staleness bound there. The samples of a task stay together.

    With `train.dynamic_sampling` further tasks take the places of those without spread, sampled by the current weights.
    A task that is in its place after the last round is learned from as it is.
    """

    def __init__(self, session: Session, *, folder: RunFolder, listener: Listener, tracking: TrackerThreads) -> None:
        config = session.config
        self._iterations = config.train.iterations
        self._samples = config.train.samples
        self._staleness = session.engine.max_staleness
        self._share = session.engine.straggler_share
        self._trained = session.trained_policies
        self._store = folder.store
        self._listener = listener
        tasks = session.tasks("train")
        apart = () if session.prompt_optimizer is None else session.prompt_optimizer.set_apart(tasks)
        self._sampler = TaskSampler(
            [task for task in tasks if task.id not in apart],
            prompts=config.train.prompts, seed=config.seed, stratified=config.train.stratified,
        )  # fmt: skip
        self._folder, self._recorder = folder, tracking.recorder(self._store)
        self.use(session)
        self._learned = {report.iteration for report in self._store.iterations()}
        self._dynamic_sampling = DynamicSampling(
            config.train.dynamic_sampling if session.trained_policies else 0,
            sampler=self._sampler,
            builder=session.experience_builder,
            store=self._store,
        )
        self._resumed: dict[int, ResumedIteration] = {}
        self._decided = {event.body["iteration"]: event.body for event in self._store.events(GATHERED_EVENT)}
        self._version = 0
        self._next: int | None = None
        self._announced_iteration: int | None = None
        self._waiting: list[SampleGroup] = []
        self._group_of: dict[str, SampleGroup] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._changed = asyncio.Event()

    def use(self, session: Session) -> None:
        """Play the iterations that begin from now on with the team of `session`."""
        self._collector = RolloutCollector(
            session.team_for("train"),
            recorder=self._recorder,
            archive=self._folder.files,
            concurrency=session.config.sampling.concurrency,
            waves=session.deterministic,
            on_start=self._begin,
            on_acted=self._note_acted,
            on_finish=self._finish,
        )

    async def take(self, iteration: int) -> IterationBatch:
        """Wait for the trajectories that `iteration` learns from. Iterations are taken in order, from the first one
        after a start or resume. Raises MappaError if the run itself is at fault, also in one that is collected ahead.
        """
        self._version = iteration
        self._start_allowed(iteration)
        groups = await self._gather(iteration)
        late = [name for one in self._waiting if one.iteration == iteration for name in one.trajectory_ids]
        joined = [name for one in groups if one.iteration < iteration for name in one.trajectory_ids]
        if self._share and iteration not in self._decided:
            self._store.record_event(GATHERED_EVENT, iteration=iteration, late=late, joined=joined)
        groups, replaced = await self._replace_equal(iteration, groups)
        self._resumed.pop(iteration, None)
        return IterationBatch(
            trajectories=_trajectories(groups), replaced=_trajectories(replaced), late=len(late), joined=len(joined)
        )

    async def _gather(self, iteration: int) -> list[SampleGroup]:
        """Wait for the groups that `iteration` takes, and return them, its own first."""
        self._announce(iteration)
        chosen = await self._wait_for(lambda: self._choose_groups(iteration))
        self._announced_iteration = None
        in_order = sorted((one for one in self._waiting if one in chosen), key=lambda one: -one.iteration)
        self._waiting = [one for one in self._waiting if one not in chosen]
        for name in (name for one in in_order for name in one.trajectory_ids):
            del self._group_of[name]
        return in_order

    async def _replace_equal(
        self, iteration: int, groups: list[SampleGroup]
    ) -> tuple[list[SampleGroup], list[SampleGroup]]:
        """Return the groups that `iteration` learns from, after all rounds of dynamic sampling, and those replaced."""
        replaced: list[SampleGroup] = []
        for number in range(self._dynamic_sampling.rounds):
            played = {one.task.id for one in (*groups, *replaced)}
            further = self._dynamic_sampling.choose(iteration, number, _trajectories(groups), played)
            if not further:
                break
            new = {name: self._sample_group(iteration, task) for name, task in further.items()}
            self._listener.on_phase_start("collect", iteration)
            self._start(iteration, list(new.values()))
            await self._gather(iteration)
            replaced += [one for one in groups if one.task.id in new]
            groups = [new.get(one.task.id, one) for one in groups]
        return groups, replaced

    async def close(self) -> None:
        """Cancel running rollouts; a resume continues them from what is recorded."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _start_allowed(self, iteration: int) -> None:
        if self._next is None:
            self._restore_stragglers(iteration)
            self._next = iteration
        while self._next <= min(iteration + self._staleness, self._iterations - 1):
            self._start(self._next, self._sample_groups(self._next))
            self._next += 1

    def _restore_stragglers(self, start: int) -> None:
        """Restart the groups that iterations before `start` left to it or to later ones."""
        decided = {number: body for number, body in self._decided.items() if number < start}
        joined = {name for body in decided.values() for name in body["joined"]}
        for number, body in sorted(decided.items()):
            if left := set(body["late"]) - joined:
                self._start(number, [one for one in self._sample_groups(number) if left.issuperset(one.trajectory_ids)])

    def _sample_groups(self, iteration: int) -> list[SampleGroup]:
        return [self._sample_group(iteration, task) for task in self._sampler.sample(iteration)]

    def _sample_group(self, iteration: int, task: Task) -> SampleGroup:
        samples = range(self._samples)
        return SampleGroup([Job(task=task, split="train", iteration=iteration, sample=sample) for sample in samples])

    def _start(self, iteration: int, siblings: Sequence[SampleGroup]) -> None:
        if iteration not in self._resumed:
            self._resumed[iteration] = resume_iteration(
                self._store, "train", iteration, is_consumed=iteration + 1 in self._learned
            )
        resumed = self._resumed[iteration]
        self._waiting += siblings
        for one in siblings:
            for name in one.trajectory_ids:
                self._group_of[name] = one
                replay = resumed.replays.get(name)
                for version in () if replay is None else _weight_versions(replay.steps, self._trained):
                    one.add_version(version)
        jobs = [job for one in siblings for job in one.jobs]
        task = asyncio.create_task(self._collector.collect(jobs, resumed.replays, resample=resumed.resample))
        task.add_done_callback(lambda ended: self._changed.set())
        self._tasks.append(task)

    def _begin(self, job: Job) -> None:
        self._group_of[job.id].add_version(self._version)

    def _note_acted(self, job: Job) -> None:
        self._group_of[job.id].acted.add(job.id)
        self._announce_judging()

    def _announce_judging(self) -> None:
        """Announce that the awaited iteration waits for verdicts alone, if it does."""
        iteration = self._announced_iteration
        if iteration is None:
            return
        due = [one for one in self._waiting if one.iteration <= iteration]
        if all(len(one.acted) == len(one.jobs) for one in due) and not all(one.is_complete for one in due):
            self._listener.on_phase_start("judge", iteration)

    def _finish(self, trajectory: Trajectory) -> None:
        group = self._group_of[trajectory.id]
        group.finished[trajectory.id] = trajectory
        if self._announced_iteration is not None and trajectory.iteration <= self._announced_iteration:
            self._listener.on_rollout_end(trajectory)
        if group.is_complete:
            self._changed.set()

    def _announce(self, iteration: int) -> None:
        due = [one for one in self._waiting if one.iteration <= iteration]
        self._listener.on_rollouts_start("train", iteration, sum(len(one.jobs) for one in due))
        for one in due:
            for trajectory in one.trajectories:
                self._listener.on_rollout_end(trajectory)
        self._announced_iteration = iteration
        self._announce_judging()

    def _choose_groups(self, iteration: int) -> set[SampleGroup] | None:
        """Groups that `iteration` learns from; None while it has to wait. A choice made before a resume stands."""
        due = {one for one in self._waiting if one.iteration <= iteration}
        decided = self._decided.get(iteration)
        if decided is not None:
            left = {one for one in due if one.iteration == iteration and one.trajectory_ids[0] in decided["late"]}
            left |= {one for one in due if one.iteration < iteration and one.trajectory_ids[0] not in decided["joined"]}
        else:
            left = {one for one in due if not one.is_complete}
            own = sum(len(one.jobs) for one in due if one.iteration == iteration)
            late = sum(len(one.jobs) for one in left if one.iteration == iteration)
            if late / own > self._share or not all(self._may_defer(one, iteration) for one in left):
                return None
        chosen = due - left
        return chosen if all(one.is_complete for one in chosen) else None

    def _may_defer(self, siblings: SampleGroup, iteration: int) -> bool:
        """Whether `siblings` stay within the staleness bound in the iteration after `iteration`."""
        following = iteration + 1
        oldest_version = following if siblings.oldest_version is None else siblings.oldest_version
        return following < self._iterations and following - oldest_version <= self._staleness

    async def _wait_for(self, choose: Callable[[], set[SampleGroup] | None]) -> set[SampleGroup]:
        """Wait until `choose` returns groups, or raise an error of a collecting task."""
        while True:
            self._changed.clear()
            for task in self._tasks:
                if task.done():
                    task.result()
            self._tasks = [task for task in self._tasks if not task.done()]
            if (chosen := choose()) is not None:
                return chosen
            await self._changed.wait()


def _trajectories(groups: Iterable[SampleGroup]) -> tuple[Trajectory, ...]:
    return tuple(trajectory for one in groups for trajectory in one.trajectories)


def _weight_versions(steps: Sequence[Step], trained: Collection[str]) -> Iterator[int]:
    for step in steps:
        if step.policy in trained:
            yield from (span.version for span in step.completion.versions)
