"""Which trajectories an iteration learns from, and which may be under way before its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mappa_core.records import Step, Trajectory
from mappa_core.rollout.collector import Collector
from mappa_core.rollout.resuming import resume
from mappa_core.rollout.team import Job
from mappa_core.session import Session
from mappa_core.store.folder import RunFolder
from mappa_core.training.cursor import TaskCursor
from mappa_core.training.listener import Listener
from mappa_core.training.tracking import Tracking

GATHERED = "gathered"
"""The event that names, where stragglers are allowed, the trajectories that an iteration left to a later one (`late`)
and those that it had from earlier ones (`joined`). It stands before the iteration is learned from."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gathered:
    """What an iteration learns from, its own trajectories first. `late` counts those of its own that a later one learns
    from, `joined` those that earlier ones left to it."""

    trajectories: tuple[Trajectory, ...]
    late: int
    joined: int


class Siblings:
    """The trajectories of one task in one iteration. Estimators compare them, so they are learned from together."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.iteration = jobs[0].iteration
        self.finished: dict[str, Trajectory] = {}
        self.oldest: int | None = None
        """The oldest version of the weights that may have sampled any of them; None before one has begun."""

    @property
    def complete(self) -> bool:
        return len(self.finished) == len(self.jobs)

    @property
    def names(self) -> list[str]:
        return [job.id for job in self.jobs]

    @property
    def trajectories(self) -> list[Trajectory]:
        """Those that are finished, in the order of their jobs."""
        return [self.finished[name] for name in self.names if name in self.finished]

    def sampled_by(self, version: int) -> None:
        """These weights take part in what is sampled."""
        self.oldest = version if self.oldest is None else min(self.oldest, version)


class Rollouts:
    """Collects the trajectories of a run's iterations, at most `max_staleness` of them ahead.

    That is the one gate: `take(k)` is called when the samplers have version k of the weights, k updates, and lets
    iterations k to k + `max_staleness` begin. Iteration i therefore begins with version i - `max_staleness` or later,
    which is the oldest that its update may learn from. Without staleness every iteration begins when it is taken.

    With `straggler_share` an iteration leaves tasks that are not finished to the next one, as long as their
    trajectories are at most that share of its own and can still be learned from there within the bound. Siblings stay
    together, so one trajectory that is not finished keeps those of its task back.
    """

    def __init__(self, session: Session, *, folder: RunFolder, listener: Listener, tracking: Tracking) -> None:
        config = session.config
        self._iterations = config.train.iterations
        self._samples = config.train.samples
        self._staleness = session.engine.max_staleness
        self._share = session.engine.straggler_share
        self._trained = session.trained
        self._store = folder.store
        self._listener = listener
        self._cursor = TaskCursor(
            session.tasks("train"), prompts=config.train.prompts, seed=config.seed, stratified=config.train.stratified
        )
        self._collector = Collector(
            session.team_for("train"),
            recorder=tracking.recorder(self._store),
            archive=folder.files,
            concurrency=config.sampling.concurrency,
            waves=session.deterministic,
            begun=self._begin,
            finished=self._finish,
        )
        self._learned = {number for number, _ in self._store.iterations()}
        self._decided = {event.body["iteration"]: event.body for event in self._store.events(GATHERED)}
        self._version = 0
        self._next: int | None = None
        self._shown: int | None = None
        self._waiting: list[Siblings] = []
        self._of: dict[str, Siblings] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._changed = asyncio.Event()

    async def take(self, iteration: int) -> Gathered:
        """What `iteration` learns from, once it is finished. Iterations are taken in order, the first one when a run
        starts or goes on.

        Raises:
            MappaError: the run itself is at fault, in this iteration or one that is collected ahead.
        """
        self._version = iteration
        self._let_begin(iteration)
        self._show(iteration)
        chosen = await self._until(lambda: self._choice(iteration))
        self._shown = None
        in_order = sorted((one for one in self._waiting if one in chosen), key=lambda one: -one.iteration)
        self._waiting = [one for one in self._waiting if one not in chosen]
        late = [name for one in self._waiting if one.iteration == iteration for name in one.names]
        joined = [name for one in in_order if one.iteration < iteration for name in one.names]
        if self._share and iteration not in self._decided:
            self._store.event(GATHERED, iteration=iteration, late=late, joined=joined)
        trajectories = tuple(trajectory for one in in_order for trajectory in one.trajectories)
        for trajectory in trajectories:
            del self._of[trajectory.id]
        return Gathered(trajectories=trajectories, late=len(late), joined=len(joined))

    async def close(self) -> None:
        """Break off what is under way; what is recorded of it is played on by a resume."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _let_begin(self, iteration: int) -> None:
        if self._next is None:
            self._take_up(iteration)
            self._next = iteration
        while self._next <= min(iteration + self._staleness, self._iterations - 1):
            self._start(self._next, list(self._siblings(self._next)))
            self._next += 1

    def _take_up(self, start: int) -> None:
        """Go on with what iterations before `start` left to it or to later ones."""
        decided = {number: body for number, body in self._decided.items() if number < start}
        joined = {name for body in decided.values() for name in body["joined"]}
        for number, body in sorted(decided.items()):
            if left := set(body["late"]) - joined:
                self._start(number, [one for one in self._siblings(number) if left.issuperset(one.names)])

    def _siblings(self, iteration: int) -> Iterator[Siblings]:
        for task in self._cursor.take(iteration):
            samples = range(self._samples)
            yield Siblings([Job(task=task, split="train", iteration=iteration, sample=sample) for sample in samples])

    def _start(self, iteration: int, siblings: Sequence[Siblings]) -> None:
        resumed = resume(self._store, "train", iteration, settled=iteration + 1 in self._learned)
        self._waiting += siblings
        for one in siblings:
            for name in one.names:
                self._of[name] = one
                replay = resumed.replays.get(name)
                for version in () if replay is None else _versions(replay.steps, self._trained):
                    one.sampled_by(version)
        jobs = [job for one in siblings for job in one.jobs]
        task = asyncio.create_task(self._collector.collect(jobs, resumed.replays, resample=resumed.resample))
        task.add_done_callback(lambda ended: self._changed.set())
        self._tasks.append(task)

    def _begin(self, job: Job) -> None:
        self._of[job.id].sampled_by(self._version)

    def _finish(self, trajectory: Trajectory) -> None:
        self._of[trajectory.id].finished[trajectory.id] = trajectory
        if self._shown is not None and trajectory.iteration <= self._shown:
            self._listener.rollout_finished(trajectory)
        self._changed.set()

    def _show(self, iteration: int) -> None:
        """Tell the listener of what is waited for, and of what is finished already."""
        due = [one for one in self._waiting if one.iteration <= iteration]
        self._listener.collecting("train", iteration, sum(len(one.jobs) for one in due))
        for one in due:
            for trajectory in one.trajectories:
                self._listener.rollout_finished(trajectory)
        self._shown = iteration

    def _choice(self, iteration: int) -> set[Siblings] | None:
        """What `iteration` learns from; None as long as it has to wait. What was decided before a resume stands."""
        due = {one for one in self._waiting if one.iteration <= iteration}
        decided = self._decided.get(iteration)
        if decided is not None:
            left = {one for one in due if one.iteration == iteration and one.names[0] in decided["late"]}
            left |= {one for one in due if one.iteration < iteration and one.names[0] not in decided["joined"]}
        else:
            left = {one for one in due if not one.complete}
            own = sum(len(one.jobs) for one in due if one.iteration == iteration)
            late = sum(len(one.jobs) for one in left if one.iteration == iteration)
            if late / own > self._share or not all(self._may_wait(one, iteration) for one in left):
                return None
        chosen = due - left
        return chosen if all(one.complete for one in chosen) else None

    def _may_wait(self, siblings: Siblings, iteration: int) -> bool:
        """Whether the iteration after `iteration` may still learn from what old weights sampled of `siblings`."""
        following = iteration + 1
        oldest = following if siblings.oldest is None else siblings.oldest
        return following < self._iterations and following - oldest <= self._staleness

    async def _until(self, choose: Callable[[], set[Siblings] | None]) -> set[Siblings]:
        """What `choose` gives, as soon as it gives anything. What failed raises here."""
        while True:
            self._changed.clear()
            for task in self._tasks:
                if task.done():
                    task.result()
            self._tasks = [task for task in self._tasks if not task.done()]
            if (chosen := choose()) is not None:
                return chosen
            await self._changed.wait()


def _versions(steps: Sequence[Step], trained: Collection[str]) -> Iterator[int]:
    """Of the weights that sampled `steps`, where they are weights that learn."""
    for step in steps:
        if step.policy in trained:
            yield from (span.version for span in step.completion.versions)
