"""Collects many trajectories concurrently; the failure of one is data and does not stop the others."""

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
from mappa_core.rollout.replay import Replay
from mappa_core.rollout.stage import LiveStage
from mappa_core.rollout.team import Job, Recorder, Team
from mappa_core.rollout.tool_call_runner import ToolCallRunner
from mappa_core.rollout.wave_scheduler import WaveScheduler
from mappa_core.safe_walk import remove_tree

log = structlog.get_logger()


class RolloutCollector:
    """Runs jobs on stages, at most `concurrency` at once; jobs of an earlier `collect` go before those of a later one.

    Args:
        waves: admit actions in waves of fixed order and sample recorded steps again (for a deterministic engine).
        archive: folder that keeps workspace files by content hash, for replay.
        on_start: called with every job when its trajectory begins.
        on_finish: called with every trajectory when it finishes.
    """

    def __init__(
        self,
        team: Team,
        *,
        recorder: Recorder,
        archive: Path,
        concurrency: int,
        waves: bool,
        on_start: Callable[[Job], None] | None = None,
        on_finish: Callable[[Trajectory], None] | None = None,
    ) -> None:
        self._team = team
        self._recorder = recorder
        self._archive = archive
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._waves = waves
        self._on_start = on_start
        self._on_finish = on_finish

    async def collect(
        self, jobs: Sequence[Job], recorded: Mapping[str, Replay] | None = None, *, resample: bool = True
    ) -> tuple[Trajectory, ...]:
        """Collect one trajectory per job, in the order of `jobs`.

        Args:
            resample: with `waves`, sample recorded steps again and compare.

        Raises:
            MappaError: at once, if the run itself is at fault; the other trajectories are cancelled.
        """
        scheduler = WaveScheduler(waves=self._waves)
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
                        scheduler=scheduler,
                        background=group,
                        tool_calls=ToolCallRunner(
                            self._team, job, folder=self._workspace_folder(folder, job), archive=self._archive
                        ),
                        bench=bench,
                        recorded=replays.get(job.id),
                        resample=self._waves and resample,
                    )

                for first in _admit_jobs(queue, scheduler, self._concurrency):
                    group.create_task(self._work(first, queue, scheduler, stage_of, results))
        except* MappaError as errors:
            raise errors.exceptions[0] from None
        finally:
            await asyncio.to_thread(remove_tree, folder)
        return tuple(results[job.id] for job in jobs)

    async def _work(
        self,
        first: Job,
        queue: Iterator[Job],
        scheduler: WaveScheduler,
        stage_of: Callable[[Job], LiveStage],
        results: dict[str, Trajectory],
    ) -> None:
        """Run jobs from the queue in one concurrency slot, which is released when the queue is empty."""
        async with self._slots:
            job: Job | None = first
            while job is not None:
                started = time.perf_counter()
                if self._on_start is not None:
                    self._on_start(job)
                stage = stage_of(job)
                failure = await self._play(job, stage)
                following = next(iter(_admit_jobs(queue, scheduler, 1)), None)
                scheduler.remove_trajectory(job.id)
                trajectory = await stage.finish(failure, time.perf_counter() - started)
                results[job.id] = trajectory
                if self._on_finish is not None:
                    self._on_finish(trajectory)
                job = following

    def _workspace_folder(self, folder: Path, job: Job) -> Path:
        """Path of the workspaces of a job, named by hash because an id may hold any character."""
        return folder / f"{self._team.seed_of(job.id, 'workspace'):016x}"

    async def _play(self, job: Job, stage: LiveStage) -> Failure | None:
        """Run the workflow; return its failure, if any. An exception of the workflow is recorded on its trajectory; an
        error of the run itself (its folder, its engine, a diverging replay) propagates."""
        self._recorder.begin_trajectory(job.stored_split, job.id, job.task, job.sample, job.iteration)
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


def _admit_jobs(queue: Iterator[Job], scheduler: WaveScheduler, limit: int) -> list[Job]:
    """Take up to `limit` jobs off the queue and register all of them before any of them requests an action."""
    taken = list(islice(queue, limit))
    for job in taken:
        scheduler.add_trajectory(job.id)
    return taken


def _failure(job: Job, kind: str, error: Exception) -> Failure:
    return Failure(kind=kind, message=str(error), where=job.id)


def raise_if_all_failed(trajectories: Sequence[Trajectory]) -> None:
    """Raise WorkflowError if the workflow's code raised in every trajectory: that is a bug, not data."""
    raised = [one.error for one in trajectories if one.error and one.error.kind.startswith(WorkflowError.__name__)]
    if raised and len(raised) == len(trajectories):
        raise WorkflowError(
            f"all {len(raised)} trajectories failed in the workflow; the first, {raised[0].where}: "
            f"{raised[0].kind}: {raised[0].message}"
        )
