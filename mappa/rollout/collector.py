"""Collects many trajectories concurrently; the failure of one is data and does not stop the others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import structlog

from mappa.rollout.replay import Replay
from mappa.rollout.stage import LiveStage
from mappa.rollout.team import Job, Recorder, Team
from mappa.rollout.tool_call_runner import ToolCallRunner
from mappa.rollout.wave_scheduler import WaveScheduler
from mappa_core.errors import GuardStop, MappaError, RolloutError, Terminated, WorkflowError
from mappa_core.records import Failure, Trajectory
from mappa_core.redaction import format_error, redact
from mappa_core.tools.owned_folder import OwnedFolder

log = structlog.get_logger()


class RolloutCollector:
    """Runs jobs on stages, at most `concurrency` at once; jobs of an earlier `collect` go before those of a later one.

    With `waves`, actions are admitted in waves of fixed order, and recorded steps are sampled again (for a
    deterministic engine). If `graded`, what ends without the workflow's metric has failed. `archive` keeps workspace
    files by content hash, for replay. `on_start`, `on_acted` and `on_finish` are called when a trajectory begins, when
    its agents have ended, and when it has its verdicts, too.
    """

    def __init__(
        self,
        team: Team,
        *,
        recorder: Recorder,
        archive: Path,
        concurrency: int,
        waves: bool,
        graded: bool = True,
        on_start: Callable[[Job], None] | None = None,
        on_acted: Callable[[Job], None] | None = None,
        on_finish: Callable[[Trajectory], None] | None = None,
    ) -> None:
        self._team = team
        self._recorder = recorder
        self._archive = archive
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._waves = waves
        self._graded = graded
        self._on_start = on_start or (lambda job: None)
        self._on_acted = on_acted or (lambda job: None)
        self._on_finish = on_finish or (lambda trajectory: None)

    async def collect(
        self, jobs: Sequence[Job], recorded: Mapping[str, Replay] | None = None, *, resample: bool = True
    ) -> tuple[Trajectory, ...]:
        """Collect one trajectory per job, in the order of `jobs`. With `waves` and `resample`, recorded steps are
        sampled again and compared. A MappaError, if the run itself is at fault, cancels the other trajectories."""
        scheduler, queue = WaveScheduler(waves=self._waves), iter(jobs)
        results: dict[str, Trajectory] = {}
        replays = recorded or {}
        folder = await asyncio.to_thread(OwnedFolder, "mappa-work-")
        bench = self._team.bench(self._archive)
        try:
            async with asyncio.TaskGroup() as group:

                def stage_of(job: Job) -> LiveStage:
                    # Named by hash, because an id may hold any character.
                    workspace = folder.path / f"{self._team.seed_of(job.id, 'workspace'):016x}"
                    return LiveStage(
                        self._team,
                        job,
                        recorder=self._recorder,
                        scheduler=scheduler,
                        background=group,
                        bench=bench,
                        tool_calls=ToolCallRunner(self._team, job, folder=workspace, archive=self._archive),
                        recorded=replays.get(job.id),
                        resample=self._waves and resample,
                    )

                # As many tasks as slots, each of which takes the next job when one ends, so that the job is registered
                # in the same step in which the other leaves: waves then hold the same actions in every run.
                for first in _admit_jobs(queue, scheduler, self._concurrency):
                    group.create_task(self._work(first, queue, scheduler, stage_of, results))
        except* MappaError as errors:
            # The first one says what happened; those after it are of trajectories that met the same fault.
            raise errors.exceptions[0] from None
        finally:
            await asyncio.to_thread(folder.close)
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
            admitted = [first]
            while admitted:
                job, started = admitted[0], time.perf_counter()
                self._on_start(job)
                stage = stage_of(job)
                failure = await self._play(job, stage)
                self._on_acted(job)
                # The next one is registered before this one leaves, or a wave could be admitted without it.
                admitted = _admit_jobs(queue, scheduler, 1)
                scheduler.remove_trajectory(job.id)
                # The slot is held until the verdicts are there, which bounds the requests to coaches, too.
                results[job.id] = trajectory = await stage.finish(failure, time.perf_counter() - started)
                self._on_finish(trajectory)

    async def _play(self, job: Job, stage: LiveStage) -> Failure | None:
        """Run the workflow and return its failure, if any. An error of the run itself propagates (its folder, its
        engine, a diverging replay)."""
        self._recorder.begin_trajectory(job.stored_split, job.id, job.task, job.sample, job.iteration)
        try:
            await self._team.workflow.run(stage)
        except RolloutError as error:
            return Failure(kind=type(error).__name__, message=redact(str(error)))
        except (MappaError, Terminated):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the boundary of workflows
            log.error("workflow.raised", trajectory=job.id, exception=format_error(error))
            kind = f"{WorkflowError.__name__}:{type(error).__name__}"
            return Failure(kind=kind, message=redact(str(error)))
        workflow = self._team.workflow
        if not self._graded or workflow.metric in stage.outcome:
            return None
        why = f"{type(workflow).__name__}.run ended without stage.record({workflow.metric}=…); is an await missing?"
        return Failure(kind=WorkflowError.__name__, message=why)


def _admit_jobs(queue: Iterator[Job], scheduler: WaveScheduler, limit: int) -> list[Job]:
    """Take up to `limit` jobs off the queue and register all of them before any of them requests an action."""
    # All of them before any acts: a wave is complete when every registered trajectory waits.
    taken = list(islice(queue, limit))
    for job in taken:
        scheduler.add_trajectory(job.id)
    return taken


def raise_if_all_failed(trajectories: Sequence[Trajectory]) -> None:
    """Raise GuardStop if the workflow's code raised in every trajectory: that is a bug of it, not data."""
    raised = [
        (trajectory.id, trajectory.error)
        for trajectory in trajectories
        if trajectory.error is not None and trajectory.error.kind.startswith(WorkflowError.__name__)
    ]
    if raised and len(raised) == len(trajectories):
        where, first = raised[0]
        raise GuardStop(
            f"all {len(raised)} trajectories failed in the workflow, so its code is at fault; the first, "
            f"{where}: {first.kind}: {first.message}. The log holds the traceback. Mend it and resume the run"
        )
