"""`Run`: a recipe made into a training run, for scripts, notebooks and the command line."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from platform import python_version
from typing import Any, TypeVar

import structlog
from structlog.contextvars import bound_contextvars

from mappa_core.config.changes import refuse_on_resume
from mappa_core.config.compose import Composed, compose, restore
from mappa_core.errors import EngineLost, GuardStop, RunError
from mappa_core.evaluation.heldout import Evaluation
from mappa_core.plugins import Registry, load
from mappa_core.protocols import Ending, TrackedRun
from mappa_core.session import Session, coaches_in, keep_opened, open_session
from mappa_core.session.starts import pinned
from mappa_core.store.folder import CONFIG, RunFolder, checkpoints_of
from mappa_core.store.summary import Seconds, Summary, write_summary
from mappa_core.training.counterfactuals import extra_of
from mappa_core.training.listener import Listener, Silent
from mappa_core.training.loop import Loop
from mappa_core.training.summing import summed
from mappa_core.training.tracking import Tracking

T = TypeVar("T")

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A run that has ended: its folder, its summary and the evaluations of the tasks that are reported, in order."""

    folder: Path
    summary: Summary
    evaluations: tuple[Evaluation, ...]


class Run:
    """A training run that is composed and checked, but not started.

    In a notebook: `Run.from_recipe("mathchat/tiny", seed=1).train().summary.eval.gain`.
    """

    def __init__(self, composed: Composed, registry: Registry, *, folder: Path | None = None) -> None:
        self.composed = composed
        self.folder = folder
        """Where the run lies; None until it has begun."""
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
        """Compose a run of `plugin/recipe`, changed by `config` files and `key=value` settings.

        Raises:
            ConfigError, PluginError: what is asked for is unknown, of the wrong type, or not installed.
        """
        registry = registry or load()
        words = (*settings, *(() if seed is None else (f"seed={seed}",)))
        composed = compose(registry, recipe=recipe, config_files=config, words=words)
        return cls(composed, registry)

    @classmethod
    def resume(cls, folder: Path, *settings: str, registry: Registry | None = None) -> Run:
        """Go on with the run in `folder` from its last checkpoint, replaying what was recorded after it.

        Raises:
            ConfigError: a setting would change what was done so far; the difference is shown.
        """
        registry = registry or load()
        stored = restore(registry, folder / CONFIG)
        composed = restore(registry, folder / CONFIG, settings)
        refuse_on_resume(stored, composed)
        return cls(composed, registry, folder=folder)

    def train(self, listener: Listener | None = None) -> Trained:
        """Train to the end and wait for it; works with or without a running event loop.

        Raises:
            InputError: before anything is written.
            GuardStop: a guard stopped the run, or its engine was lost too often; the run can go on later.
            RunError: the storage failed, a full disk for one; what was recorded before is there, and the run can go on.
        """
        self.composed.require_installed()
        return run_to_end(self._train(listener or Silent()))

    def check(self) -> str:
        """Build everything and load models and tasks, as `train` would; what was found, in one sentence.

        Raises:
            InputError: what `train` would raise before its first rollout.
        """
        self.composed.require_installed()
        return run_to_end(self._check())

    async def _check(self) -> str:
        async with self._session() as session:
            train, held_out = session.tasks("train"), session.held_out().report
            agents = ", ".join(f"{agent} ({policy})" for agent, policy in session.team.policy_of.items())
            cages = "".join(f"; programs of {tool} run in {box.name}" for tool, box in session.sandboxes.items())
            return f"ready: {agents}; {len(train)} training and {len(held_out)} held-out tasks{cages}"

    async def _train(self, listener: Listener) -> Trained:
        """Train to the end. Where a process of the engine is lost, everything is closed, and the run goes on from its
        last checkpoint and its record."""
        clock, most = Stopwatch(), self.composed.config.train.max_restarts
        number = 0
        while True:
            number += 1
            try:
                return await self._attempt(listener, clock)
            except EngineLost as lost:
                if self.folder is None:
                    raise
                with self._open_folder() as folder:
                    folder.store.event("engine_lost", number=number, actor=lost.actor, error=str(lost))
                if number > most:
                    raise GuardStop(
                        f"the engine was lost {number} times (train.max_restarts={most}), the last time: {lost}\n"
                        f"What was recorded is there: {self.folder}"
                    ) from lost
                log.warning("run.restarts", number=number, most=most, error=str(lost))

    async def _attempt(self, listener: Listener, clock: Stopwatch) -> Trained:
        async with AsyncExitStack() as opened:
            session = await opened.enter_async_context(self._session())
            with self._open_folder() as folder:
                opened.enter_context(bound_contextvars(run=folder.path.name))
                folder.write_config(self.composed.yaml())
                write_summary(folder.path, self._blank_summary())
                opened.enter_context(coaches_in(folder, session))
                for usage in folder.store.paid():
                    session.team.ledger.add(usage)
                keep_opened(session, folder.store)
                folder.store.event("versions", packages={"python": python_version(), **self._registry.versions})
                listener.asking(session.providers)
                listener.sandboxed(session.sandboxes)
                if (extra := extra_of(session)) is not None:
                    listener.adding(extra)
                tracking = Tracking([*zip(self._tracker_names, session.trackers, strict=True)])
                loop = Loop(session, folder=folder, listener=listener, tracking=tracking)
                status: Ending = "failed"
                try:
                    tracking.start(self._tracked(folder))
                    await loop.run()
                    status = "done"
                except (GuardStop, asyncio.CancelledError, SystemExit, KeyboardInterrupt):
                    status = "stopped"
                    raise
                except RunError as error:
                    there = f"What was recorded before is there: go on by --resume {folder.path}"
                    raise RunError(f"{error}\n{there}") from error
                finally:
                    # The session ends before the clock is read: the time of child processes counts when they are gone.
                    await opened.aclose()
                    summary = replace(self._blank_summary(), status=status, seconds=clock.seconds())
                    summary = summed(summary, folder.store, loop.held_out.reported, loop.held_out.selections)
                    troubles = tracking.close(status)
                    with nullcontext() if status == "done" else suppress(RunError):  # what ended the run says more
                        for trouble in troubles:
                            folder.store.event("tracker", trouble=trouble)
                        write_summary(folder.path, summary)
                return Trained(folder=folder.path, summary=summary, evaluations=tuple(loop.held_out.reported))

    def _session(self) -> AbstractAsyncContextManager[Session]:
        """The session of this run; its policies start where the config says as long as it has no checkpoint."""
        if self.folder is None:
            self.composed = pinned(self.composed)
        url = self.composed.config.checkpoint.url
        fresh = self.folder is None or checkpoints_of(self.folder, url).latest() is None
        return open_session(self.composed, self._registry, learning=True, coach=True, fresh=fresh)

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
            config=self.composed.yaml(),
            scratch=scratch,
            url=config.checkpoint.url,
        )
        self.folder = folder.path
        return folder

    @property
    def _tracker_names(self) -> list[str]:
        return [chosen.use for chosen in self.composed.config.trackers]

    def _tracked(self, folder: RunFolder) -> TrackedRun:
        return TrackedRun(
            id=folder.store.run,
            name=folder.path.name,
            folder=folder.path,
            plugin=self.composed.plugin,
            recipe=self.composed.recipe,
            seed=self.composed.config.seed,
            done=folder.checkpoints.latest() or 0,
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


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, in a thread of its own where this one has a running event loop (a notebook)."""
    if not _inside_event_loop():
        return asyncio.run(work)
    outcome: list[T] = []
    failure: list[BaseException] = []

    def work_in_thread() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001 - handed over to the caller's thread
            failure.append(error)

    thread = threading.Thread(target=work_in_thread, name="mappa-run")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _inside_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Stopwatch:
    """Seconds since it was made: of the wall, and of the CPU by this process and its children that have ended."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), _cpu_seconds()

    def seconds(self) -> Seconds:
        return Seconds(wall=time.perf_counter() - self._wall, cpu=_cpu_seconds() - self._cpu)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
