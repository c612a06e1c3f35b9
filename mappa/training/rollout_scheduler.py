"""Rollout scheduling: which trajectories an iteration learns from, and which are collected ahead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
        self.acted: set[str] = set()  # Trajectories whose agents have ended; verdicts may be outstanding.
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
        # Tasks on which an optimiser of prompts selects are not trained on: the selection would be biased.
        set_apart = () if session.prompt_optimizer is None else session.prompt_optimizer.set_apart(tasks)
        self._sampler = TaskSampler(
            [task for task in tasks if task.id not in set_apart],
            prompts=config.train.prompts,
            seed=config.seed,
            stratified=config.train.stratified,
        )
        self._folder = folder
        self._recorder = tracking.recorder(self._store)
        self.use(session)
        self._learned = {report.iteration for report in self._store.iterations()}
        self._dynamic_sampling = DynamicSampling(
            config.train.dynamic_sampling if session.trained_policies else 0,
            sampler=self._sampler,
            builder=session.experience_builder,
            store=self._store,
        )
        self._resumed: dict[int, ResumedIteration] = {}
        # What an earlier process recorded. A choice made in this process is not looked up again.
        self._decided = {event.body["iteration"]: event.body for event in self._store.events(GATHERED_EVENT)}
        self._version = 0
        self._next: int | None = None  # The iteration to start next; None before the first `take`.
        self._announced_iteration: int | None = None  # The one that the listener knows to be waited for.
        self._waiting: list[SampleGroup] = []  # Started and not yet taken, in order of their start.
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
        late = _trajectory_ids(group for group in self._waiting if group.iteration == iteration)
        joined = _trajectory_ids(group for group in groups if group.iteration < iteration)
        # Recorded before anything is learned from them, or a resume could choose others for the same iteration.
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
        # From the list and not from the set: sorting is stable, so the rows of an experience have one order.
        in_start_order = [group for group in self._waiting if group in chosen]
        own_first = sorted(in_start_order, key=lambda group: -group.iteration)
        self._waiting = [group for group in self._waiting if group not in chosen]
        for name in _trajectory_ids(own_first):
            del self._group_of[name]
        return own_first

    async def _replace_equal(
        self, iteration: int, groups: list[SampleGroup]
    ) -> tuple[list[SampleGroup], list[SampleGroup]]:
        """Return the groups that `iteration` learns from, after all rounds of dynamic sampling, and those replaced."""
        replaced: list[SampleGroup] = []
        for number in range(self._dynamic_sampling.rounds):
            played = {group.task.id for group in (*groups, *replaced)}
            further = self._dynamic_sampling.choose(iteration, number, _trajectories(groups), played)
            if not further:
                break
            new = {name: self._sample_group(iteration, task) for name, task in further.items()}
            self._listener.on_phase_start("collect", iteration)
            self._start(iteration, list(new.values()))
            # It gathers the new groups alone: the session refuses stragglers together with dynamic sampling.
            await self._gather(iteration)
            replaced += [group for group in groups if group.task.id in new]
            groups = [new.get(group.task.id, group) for group in groups]
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
            left = set(body["late"]) - joined
            if left:
                groups = [group for group in self._sample_groups(number) if left.issuperset(group.trajectory_ids)]
                self._start(number, groups)

    def _sample_groups(self, iteration: int) -> list[SampleGroup]:
        return [self._sample_group(iteration, task) for task in self._sampler.sample(iteration)]

    def _sample_group(self, iteration: int, task: Task) -> SampleGroup:
        samples = range(self._samples)
        return SampleGroup([Job(task=task, split="train", iteration=iteration, sample=sample) for sample in samples])

    def _start(self, iteration: int, groups: Sequence[SampleGroup]) -> None:
        # Loaded once an iteration: loading records which lost trajectories are played on.
        if iteration not in self._resumed:
            # Iterations count from 0 here, and reports from 1, as they count what is finished.
            self._resumed[iteration] = resume_iteration(
                self._store, "train", iteration, is_consumed=iteration + 1 in self._learned
            )
        resumed = self._resumed[iteration]
        self._waiting += groups
        for group in groups:
            for name in group.trajectory_ids:
                self._group_of[name] = group
                replay = resumed.replays.get(name)
                if replay is not None:
                    # Tokens sampled before the resume have the age of their weights, not of this process.
                    for version in _weight_versions(replay.steps, self._trained):
                        group.add_version(version)
        jobs = [job for group in groups for job in group.jobs]
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
        due = [group for group in self._waiting if group.iteration <= iteration]
        all_acted = all(len(group.acted) == len(group.jobs) for group in due)
        if all_acted and not all(group.is_complete for group in due):
            self._listener.on_phase_start("judge", iteration)

    def _finish(self, trajectory: Trajectory) -> None:
        group = self._group_of[trajectory.id]
        group.finished[trajectory.id] = trajectory
        if self._announced_iteration is not None and trajectory.iteration <= self._announced_iteration:
            self._listener.on_rollout_end(trajectory)
        if group.is_complete:
            self._changed.set()

    def _announce(self, iteration: int) -> None:
        due = [group for group in self._waiting if group.iteration <= iteration]
        self._listener.on_rollouts_start("train", iteration, sum(len(group.jobs) for group in due))
        # Those that ended while an earlier iteration was announced were not reported then.
        for group in due:
            for trajectory in group.trajectories:
                self._listener.on_rollout_end(trajectory)
        self._announced_iteration = iteration
        self._announce_judging()

    def _choose_groups(self, iteration: int) -> set[SampleGroup] | None:
        """Groups that `iteration` learns from; None while it has to wait. A choice made before a resume stands."""
        due = {group for group in self._waiting if group.iteration <= iteration}
        decided = self._decided.get(iteration)
        if decided is not None:
            left = {group for group in due if self._was_left(group, iteration, decided)}
        else:
            left = {group for group in due if not group.is_complete}
            own = sum(len(group.jobs) for group in due if group.iteration == iteration)
            late = sum(len(group.jobs) for group in left if group.iteration == iteration)
            if late / own > self._share or not all(self._may_defer(group, iteration) for group in left):
                return None
        # After a resume chosen groups may still be replayed; without one they are complete.
        chosen = due - left
        return chosen if all(group.is_complete for group in chosen) else None

    def _was_left(self, group: SampleGroup, iteration: int, decided: Mapping[str, Any]) -> bool:
        """Whether a recorded choice of `iteration` left the group to a later one. Samples of a task stay together, so
        the first of them stands for all."""
        first = group.trajectory_ids[0]
        return first in decided["late"] if group.iteration == iteration else first not in decided["joined"]

    def _may_defer(self, group: SampleGroup, iteration: int) -> bool:
        """Whether the group stays within the staleness bound in the iteration after `iteration`."""
        following = iteration + 1
        # A group that has not begun will be sampled by the current weights or newer ones, which the bound allows.
        oldest_version = following if group.oldest_version is None else group.oldest_version
        return following < self._iterations and following - oldest_version <= self._staleness

    async def _wait_for(self, choose: Callable[[], set[SampleGroup] | None]) -> set[SampleGroup]:
        """Wait until `choose` returns groups, or raise an error of a collecting task."""
        while True:
            self._changed.clear()
            for task in self._tasks:
                if task.done():
                    task.result()  # Raises what the task failed with, also one of an iteration ahead.
            self._tasks = [task for task in self._tasks if not task.done()]
            chosen = choose()
            if chosen is not None:
                return chosen
            await self._changed.wait()


def _trajectories(groups: Iterable[SampleGroup]) -> tuple[Trajectory, ...]:
    return tuple(trajectory for group in groups for trajectory in group.trajectories)


def _trajectory_ids(groups: Iterable[SampleGroup]) -> list[str]:
    return [name for group in groups for name in group.trajectory_ids]


def _weight_versions(steps: Sequence[Step], trained: Collection[str]) -> Iterator[int]:
    for step in steps:
        if step.policy in trained:
            yield from (span.version for span in step.completion.versions)
