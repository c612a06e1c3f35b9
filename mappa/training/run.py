"""`Run`: a training run of a recipe, for scripts, notebooks and the command line."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from platform import python_version
from typing import Any, TypeVar

import structlog
from structlog.contextvars import bound_contextvars

from mappa.config.compose import ComposedConfig, compose
from mappa.config.resume_diff import check_resume_changes
from mappa.evaluation.heldout import Evaluation
from mappa.rollout.counterfactual import CounterfactualBound, bound_counterfactuals
from mappa.session import Session, attach_coaches, open_session, record_session_events
from mappa.session.config_problems import find_problems, overridden_settings
from mappa.session.start_weights import resolve_starts
from mappa.session.trust import add_own_plugin, restore_resumed
from mappa.store.checkpoint import POLICIES
from mappa.store.folder import CONFIG, RunFolder, open_checkpoints
from mappa.store.iterations import load_latest_iteration
from mappa.store.schema import DATABASE_NAME, Database
from mappa.store.summary import Seconds, Summary, read_summary, write_summary
from mappa.store.writer import ENGINE_LOST_EVENT
from mappa.training.listener import Listener
from mappa.training.loop import TrainingLoop
from mappa.training.summary import build_summary, summarize_selection
from mappa.training.task_sampler import TaskSampler
from mappa.training.tracker_threads import TrackerThreads
from mappa_core.errors import ConfigError, EngineError, EngineLost, GuardStop, RunError
from mappa_core.files import has_folder
from mappa_core.plugins import Registry, load_plugins
from mappa_core.protocols import Ending, TrackedRun

T = TypeVar("T")
SIGNAL_POLL_S = 0.1

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """Result of a finished run: folder, summary and the evaluations on the report tasks, in order."""

    folder: Path
    summary: Summary
    evaluations: tuple[Evaluation, ...]


class Run:
    """A training run whose config is composed and checked, but which has not started.

    In a notebook: `Run.from_recipe("mathchat/tiny", seed=1).train().summary.eval.gain`.
    """

    def __init__(self, composed: ComposedConfig, registry: Registry, *, folder: Path | None = None) -> None:
        self.composed = composed
        self.folder = folder
        """Folder of the run; None until it has begun."""
        self._registry = registry

    @classmethod
    def from_recipe(
        cls,
        recipe: str,
        *settings: str,
        seed: int | None = None,
        config: Sequence[Path] = (),
        registry: Registry | None = None,
    ) -> Run:
        """Compose a run of `plugin/recipe`, overridden by `config` files and `key=value` settings. Raises ConfigError
        or PluginError if a name or value is unknown, of the wrong type, or not installed."""
        registry = registry or load_plugins()
        words = settings if seed is None else (*settings, f"seed={seed}")
        return cls(compose(registry, recipe=recipe, config_files=config, overrides=words), registry)

    @classmethod
    def resume(cls, folder: Path, *settings: str, registry: Registry | None = None, trust: bool = False) -> Run:
        """Resume the run in `folder` from its last checkpoint, replaying what was recorded after it. Raises
        ConfigError, with the difference, if a setting would change finished work, or leave some out, or if the run is a
        stranger's that would run or reach what is not installed; `trust` resumes that, too, and is remembered."""
        registry = add_own_plugin(registry or load_plugins(), folder / CONFIG, trust=trust)
        stored, composed = restore_resumed(registry, folder / CONFIG, settings, trust=trust)
        check_resume_changes(stored, composed)
        with closing(Database.open(folder / DATABASE_NAME, write=False)) as database:
            latest = load_latest_iteration(database)
        done = 0 if latest is None else latest.iteration
        planned = composed.config.train.iterations
        if done > planned:
            raise ConfigError(
                f"train.iterations={planned}: {folder} has {done} iterations already: set train.iterations={done} or "
                "more, or start a new run (leave --resume out)"
            )
        return cls(composed, registry, folder=folder)

    def train(self, listener: Listener | None = None) -> TrainResult:
        """Train to the end and wait for it; works with or without a running event loop.

        Raises:
            InputError: before anything is written.
            GuardStop: a guard stopped the run, or its engine was lost too often; the run can be resumed.
            RunError: the storage failed, as on a full disk; what was recorded is kept, and the run can be resumed.
        """
        self.composed.require_installed()
        return run_to_end(self._train(listener or Listener()))

    def check(self) -> str:
        """Build everything and load models and tasks; describe the result in one sentence. Raises any InputError that
        `train` would raise before its first rollout, those of all offers at once."""
        problems = find_problems(self.composed, self._registry)
        if problems:
            raise ConfigError("\n".join(problems))
        if self.folder is not None:
            # Raises if a resume could not read it: a run of a newer version, or a damaged database.
            Database.open(self.folder / DATABASE_NAME, write=False).close()
        return run_to_end(self._check())

    async def _check(self) -> str:
        async with self._session() as session:
            _warn_of_settings(session)
            train, held_out = session.tasks("train"), session.held_out().report
            # Raises if there are fewer tasks than an iteration takes.
            TaskSampler(train, prompts=self.composed.config.train.prompts, seed=self.composed.config.seed)
            agents = ", ".join(f"{agent} ({policy})" for agent, policy in session.team.policy_of.items())
            sandboxes = "".join(f"; programs of {tool} run in {box.name}" for tool, box in session.sandboxes.items())
            return f"ready: {agents}; {len(train)} training and {len(held_out)} held-out tasks{sandboxes}"

    async def _train(self, listener: Listener) -> TrainResult:
        """Train to the end. When the engine is lost or cannot continue, close everything and resume the run."""
        clock, max_restarts = Stopwatch(self._earlier_seconds()), self.composed.config.train.max_restarts
        for number in count(1):
            try:
                return await self._attempt(listener, clock)
            except EngineError as lost:
                # Without a folder it was lost while it opened: nothing is recorded that a restart could go on from.
                if self.folder is None:
                    raise
                with self._open_folder() as folder:
                    actor = lost.actor if isinstance(lost, EngineLost) else None
                    folder.store.record_event(ENGINE_LOST_EVENT, number=number, actor=actor, error=str(lost))
                if number > max_restarts:
                    raise GuardStop(
                        f"the engine was lost {number} times (train.max_restarts={max_restarts}), the last time: "
                        f"{lost}\nWhat was recorded is there: {self.folder}"
                    ) from lost
                log.warning("run.restarts", number=number, max_restarts=max_restarts, error=str(lost))
        raise AssertionError("count does not end")

    async def _attempt(self, listener: Listener, clock: Stopwatch) -> TrainResult:
        async with AsyncExitStack() as opened:
            session = await opened.enter_async_context(self._session())
            _warn_of_settings(session)
            with self._open_folder() as folder:
                opened.enter_context(bound_contextvars(run=folder.path.name))
                folder.write_config(self.composed.to_yaml(), self.composed.code)
                write_summary(folder.path, replace(self._blank_summary(), seconds=clock.earlier))
                opened.enter_context(attach_coaches(folder, session))
                # The cap on spending counts all starts of a run.
                for usage in folder.store.paid_usages():
                    session.team.ledger.add(usage)
                record_session_events(session, folder.store)
                folder.store.record_event("versions", packages={"python": python_version(), **self._registry.versions})
                listener.on_providers(session.providers)
                listener.on_sandboxes(session.sandboxes)
                if session.config.credit.counterfactual.use != "none":
                    listener.on_counterfactuals(_bound_counterfactuals(session))
                tracking = TrackerThreads(session.trackers, listener=listener)
                loop = self._loop(session, folder, listener, tracking)
                status: Ending = "failed"
                try:
                    tracking.start(self._tracked(folder))
                    await loop.run()
                    status = "done"
                except (GuardStop, asyncio.CancelledError, SystemExit, KeyboardInterrupt):
                    status = "stopped"
                    raise
                except RunError as error:
                    raise RunError(f"{error}\nWhat was recorded is there: go on by --resume {folder.path}") from error
                finally:
                    # Close the session before reading the clock: CPU time of children counts only once they have ended.
                    await opened.aclose()
                    summary = replace(self._blank_summary(), status=status, seconds=clock.seconds())
                    reported = loop.evaluations.report_evaluations
                    # On a full disk the summary cannot be written either; the error that ended the run says more.
                    with nullcontext() if status == "done" else suppress(RunError):
                        try:
                            folder.store.flush()
                            chosen = summarize_selection(folder, loop.evaluations.selection_tasks)
                            summary = build_summary(summary, folder.store, reported, chosen)
                            write_summary(folder.path, summary)
                        finally:
                            for trouble in tracking.close(status):
                                folder.store.record_event("tracker", trouble=trouble)
                return TrainResult(folder=folder.path, summary=summary, evaluations=tuple(reported))

    def _earlier_seconds(self) -> Seconds:
        """Seconds of the earlier starts of a run that is resumed, as far as they are known."""
        if self.folder is None:
            return Seconds()
        with suppress(RunError):  # It was killed before it wrote a summary.
            return read_summary(self.folder).seconds
        return Seconds()

    def _session(self) -> AbstractAsyncContextManager[Session]:
        """Open the session of this run; policies start from `policies.*.from` as long as it has no checkpoint."""
        return open_session(self._started(), self._registry, learning=True, coach=True, loaded=self._loaded())

    def _started(self) -> ComposedConfig:
        """The config; for a new run with the iterations that `policies.*.from` name at this moment."""
        if self.folder is None:
            self.composed = resolve_starts(self.composed)
        return self.composed

    def _loaded(self) -> Path | None:
        """Folder of the policies of the checkpoint to go on from; None if there is none."""
        if self.folder is None:
            return None
        checkpoints = open_checkpoints(self.folder, self.composed.config.checkpoint.url)
        latest = checkpoints.latest_iteration()
        if latest is None:
            return None
        if not has_folder(checkpoints.folder, checkpoints.path(latest).name):
            checkpoints.load(latest)  # a copy elsewhere becomes a folder
        return checkpoints.path(latest) / POLICIES

    def _loop(self, session: Session, folder: RunFolder, listener: Listener, tracking: TrackerThreads) -> TrainingLoop:
        return TrainingLoop(session, folder=folder, listener=listener, tracking=tracking)

    def _open_folder(self) -> RunFolder:
        config = self.composed.config
        scratch = None if config.store.scratch is None else Path(config.store.scratch)
        if self.folder is not None:
            return RunFolder.open(self.folder, scratch=scratch, url=config.checkpoint.url)
        folder = RunFolder.create(
            Path(config.run.root),
            config.run.name,
            plugin=self.composed.plugin,
            recipe=self.composed.recipe,
            config=self.composed.to_yaml(),
            code=self.composed.code,
            scratch=scratch,
            url=config.checkpoint.url,
        )
        self.folder = folder.path
        return folder

    def _tracked(self, folder: RunFolder) -> TrackedRun:
        return TrackedRun(
            id=folder.store.run,
            name=folder.path.name,
            folder=folder.path,
            plugin=self.composed.plugin,
            recipe=self.composed.recipe,
            seed=self.composed.config.seed,
            done=folder.checkpoints.latest_iteration() or 0,
            config=self.composed.settings.plain,
        )

    def _blank_summary(self) -> Summary:
        return Summary(
            plugin=self.composed.plugin,
            recipe=self.composed.recipe,
            recipe_hash=self.composed.recipe_hash,
            seed=self.composed.config.seed,
            status="running",
        )


def _bound_counterfactuals(session: Session) -> CounterfactualBound:
    """Upper bound of what counterfactual rollouts add to every iteration."""
    config = session.config
    max_tokens = {agent: sampling.max_tokens for agent, sampling in session.team.sampling.items()}
    trajectories = config.train.prompts * config.train.samples
    return bound_counterfactuals(config.credit.counterfactual, session.workflow.max_turns, max_tokens, trajectories)


def _warn_of_settings(session: Session) -> None:
    """Warn of what has no effect, or another than it seems to have, and of tasks that are trained and evaluated."""
    loaded = [spec.name for spec in session.policies]
    for warning in overridden_settings(session.composed, tuple(session.workflow.agents), loaded):
        log.warning(warning)
    _warn_of_overlap(session)


def _warn_of_overlap(session: Session) -> None:
    trained = {(task.id, task.prompt) for task in session.tasks("train")}
    parts = session.held_out()
    held_out = (*parts.report, *parts.selection)
    # By id and prompt: sources may number the tasks of each split from 0.
    overlap = [task.id for task in held_out if (task.id, task.prompt) in trained]
    if overlap:
        named = ", ".join(overlap[:5]) + (", …" if len(overlap) > 5 else "")
        log.warning(
            f"{len(overlap)} held-out tasks are trained on, too ({named}): a gain on them may be memory. Let the "
            f"splits of tasks.use={session.config.tasks.use} share no task."
        )


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; use a new thread if this one has a running event loop (a notebook). An interrupt of
    this thread cancels the work, and is raised once that has closed what it opened."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    begun: Future[Callable[[], object]] = Future()

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None  # this is a coroutine
        begun.set_result(partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel))
        return await work

    with ThreadPoolExecutor(1, thread_name_prefix="mappa-run") as threads:
        # Signals reach the main thread alone, which waits here: without this the work would go on behind the notebook.
        ended = threads.submit(asyncio.run, run())
        try:
            # The system may hand the signal to another thread, which does not wake this one.
            while not ended.done():
                wait([ended], timeout=SIGNAL_POLL_S)
            return ended.result()
        except KeyboardInterrupt:
            cancel = begun.result()
            with suppress(RuntimeError):  # The loop is closed: the work has just ended.
                cancel()
            wait([ended])
            raise


class Stopwatch:
    """Measures wall seconds since creation, and CPU seconds of this process and its ended children, beside those of
    `earlier` starts."""

    def __init__(self, earlier: Seconds) -> None:
        self.earlier = earlier
        # Starts are moved back by what earlier processes took, so that differences include it.
        self._wall_start = time.perf_counter() - (earlier.wall or 0.0)
        self._cpu_start = _cpu_seconds() - (earlier.cpu or 0.0)

    def seconds(self) -> Seconds:
        return Seconds(wall=time.perf_counter() - self._wall_start, cpu=_cpu_seconds() - self._cpu_start)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
