"""Many trajectories at once; the failure of one is data and does not stop the others."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import structlog

from mappa_core.errors import MappaError, RolloutError, WorkflowError
from mappa_core.records import Failure, Trajectory
from mappa_core.rollout.answering import Answering
from mappa_core.rollout.replay import Replay
from mappa_core.rollout.stage import LiveStage
from mappa_core.rollout.team import Job, Recorder, Team
from mappa_core.rollout.turnstile import Turnstile
from mappa_core.tools.cage.walk import remove

log = structlog.get_logger()


class Collector:
    """Plays jobs on stages, at most `concurrency` at once, those of an earlier `collect` before those of a later one.

    Args:
        waves: admit actions in canonical waves and sample recorded steps again (a deterministic engine).
        archive: folder that keeps the files of workspaces by content, for replay.
        begun: called with every job, as its trajectory begins.
        finished: called with every finished trajectory, as it finishes.
    """

    def __init__(
        self,
        team: Team,
        *,
        recorder: Recorder,
        archive: Path,
        concurrency: int,
        waves: bool,
        begun: Callable[[Job], None] | None = None,
        finished: Callable[[Trajectory], None] | None = None,
    ) -> None:
        self._team = team
        self._recorder = recorder
        self._archive = archive
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._waves = waves
        self._begun = begun
        self._finished = finished

    async def collect(
        self, jobs: Sequence[Job], recorded: Mapping[str, Replay] | None = None, *, resample: bool = True
    ) -> tuple[Trajectory, ...]:
        """One trajectory per job, in the order of `jobs`.

        Args:
            resample: with `waves`, sample recorded steps again and compare.

        Raises:
            MappaError: at once where the run itself is at fault; the other trajectories are cancelled.
        """
        turnstile = Turnstile(waves=self._waves)
        queue = iter(jobs)
        results: dict[str, Trajectory] = {}
        folder, replays = Path(tempfile.mkdtemp(prefix="mappa-work-")), recorded or {}
        bench = self._team.bench(self._archive)
        try:
            async with asyncio.TaskGroup() as group:

                def stage_of(job: Job) -> LiveStage:
                    return LiveStage(
                        self._team,
                        job,
                        recorder=self._recorder,
                        turnstile=turnstile,
                        background=group,
                        answering=Answering(self._team, job, folder=self._room(folder, job), archive=self._archive),
                        bench=bench,
                        recorded=replays.get(job.id),
                        resample=self._waves and resample,
                    )

                for first in _enter(queue, turnstile, self._concurrency):
                    group.create_task(self._work(first, queue, turnstile, stage_of, results))
        except* MappaError as errors:
            raise errors.exceptions[0] from None
        finally:
            await asyncio.to_thread(remove, folder)
        return tuple(results[job.id] for job in jobs)

    async def _work(
        self,
        first: Job,
        queue: Iterator[Job],
        turnstile: Turnstile,
        stage_of: Callable[[Job], LiveStage],
        results: dict[str, Trajectory],
    ) -> None:
        """Play jobs off the queue in one slot, which later calls of `collect` get when the queue is empty."""
        async with self._slots:
            job: Job | None = first
            while job is not None:
                started = time.perf_counter()
                if self._begun is not None:
                    self._begun(job)
                stage = stage_of(job)
                failure = await self._play(job, stage)
                following = next(iter(_enter(queue, turnstile, 1)), None)
                turnstile.leave(job.id)
                trajectory = await stage.finish(failure, time.perf_counter() - started)
                results[job.id] = trajectory
                if self._finished is not None:
                    self._finished(trajectory)
                job = following

    def _room(self, folder: Path, job: Job) -> Path:
        """Where the workspaces of a job lie: a name that any id can be made into."""
        return folder / f"{self._team.seed_of(job.id, 'workspace'):016x}"

    async def _play(self, job: Job, stage: LiveStage) -> Failure | None:
        """Run the workflow. This is the boundary of workflows: what one raises is recorded on its trajectory; what
        concerns the run (its folder, its engine, a replay that diverges) goes on up."""
        self._recorder.begin(job.kept_as, job.id, job.task, job.sample, job.iteration)
        try:
            await self._team.workflow.run(stage)
        except RolloutError as error:
            return _failure(job, type(error).__name__, error)
        except MappaError:
            raise
        except Exception as error:
            log.exception("workflow.raised", trajectory=job.id)
            return _failure(job, f"{WorkflowError.__name__}:{type(error).__name__}", error)
        return None


def _enter(queue: Iterator[Job], turnstile: Turnstile, most: int) -> list[Job]:
    """Take jobs off the queue and tell the turnstile of all of them before any of them asks for an action."""
    taken = list(islice(queue, most))
    for job in taken:
        turnstile.enter(job.id)
    return taken


def _failure(job: Job, kind: str, error: Exception) -> Failure:
    return Failure(kind=kind, message=str(error), where=job.id)


def refuse_total_failure(trajectories: Sequence[Trajectory]) -> None:
    """Raise WorkflowError where the code of the workflow raised in every trajectory: that is a bug and no data."""
    raised = [one.error for one in trajectories if one.error and one.error.kind.startswith(WorkflowError.__name__)]
    if raised and len(raised) == len(trajectories):
        raise WorkflowError(
            f"all {len(raised)} trajectories failed in the workflow; the first, {raised[0].where}: "
            f"{raised[0].kind}: {raised[0].message}"
        )
