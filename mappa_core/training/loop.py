"""The loop of one run."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from structlog.contextvars import bound_contextvars

from mappa_core.coaching.drift import DriftMonitor, DriftReport, Kind
from mappa_core.credit.experience import build
from mappa_core.credit.rewards import rewards
from mappa_core.errors import GuardStop
from mappa_core.records import Process, Trajectory
from mappa_core.rollout.collector import refuse_total_failure
from mappa_core.rollout.lost import guard_lost
from mappa_core.session import Session
from mappa_core.store.checkpoint import POLICIES, Best, PolicyEntry
from mappa_core.store.folder import RunFolder
from mappa_core.training.counterfactuals import counterfactuals_of
from mappa_core.training.demonstrated import demonstrated
from mappa_core.training.guards import guard_spending, guard_verdicts
from mappa_core.training.health import Health, joined, spread
from mappa_core.training.heldout import HeldOut
from mappa_core.training.listener import Listener
from mappa_core.training.report import (
    CoachFigures,
    IterationReport,
    agent_figures,
    calls_again,
    coach_figures,
    outcome_figures,
    stratum_figures,
)
from mappa_core.training.rollouts import Rollouts
from mappa_core.training.skips import Skips
from mappa_core.training.staleness import staleness
from mappa_core.training.tracking import Tracking


class Loop:
    """Trains `session` on from the last checkpoint in `folder`, or from the start. `held_out` has the evaluations made
    so far; `tracking` has been started."""

    def __init__(self, session: Session, *, folder: RunFolder, listener: Listener, tracking: Tracking) -> None:
        self.held_out = HeldOut(session, folder=folder, listener=listener, tracking=tracking)
        self._session = session
        self._folder = folder
        self._store = folder.store
        self._estimator_state: Mapping[str, Any] = {}
        self._processes: tuple[Process, ...] = ()
        self._drift = DriftMonitor(
            session.config.coach.drift, strata=session.config.coach.strata, metric=session.workflow.metric
        )
        self._listener = listener
        self._tracking = tracking
        self._rollouts = Rollouts(session, folder=folder, listener=listener, tracking=tracking)
        self._skips = Skips(folder, most=session.config.train.max_skipped)
        self._health = Health(session.config.train.health)
        self._counterfactuals = counterfactuals_of(session, folder, tracking)

    async def run(self) -> None:
        """Evaluate, train to the last iteration, evaluate again.

        Raises:
            GuardStop: too much was missing, lost or spent; a checkpoint was written.
        """
        start = await self._restore()
        self._note_processes()
        for done in range(start + 1):
            await self._evaluate(done)
        await self._keep_best(start)
        try:
            for iteration in range(start, self._session.config.train.iterations):
                with bound_contextvars(iteration=iteration + 1):
                    await self._finish(await self._iterate(iteration))
        finally:
            await self._rollouts.close()
        await self._report_best()

    async def _finish(self, report: IterationReport) -> None:
        """Keep what an iteration did, and do what is due after it. Its weights are with the samplers and stay there, so
        an evaluation sees one version whatever is collected ahead meanwhile."""
        config, done = self._session.config, report.iteration
        self._keep(report)
        if report.warnings:
            self._store.event("health", iteration=done, warnings=report.warnings)
        self._note_processes()
        await self._answer(report.drift, done)
        async with self._guarded(done):
            self._skips.guard(done, report.policies)
        if done == config.train.iterations or done % config.checkpoint.every == 0:
            await self._checkpoint(done)
            await self._prune()
        await self._evaluate(done)
        await self._keep_best(done)

    def _note_processes(self) -> None:
        """Record who samples and who learns, whenever it is somebody else."""
        processes = tuple(self._session.engine.processes)
        if processes != self._processes:
            self._processes = processes
            self._store.event("processes", processes=processes)

    async def _restore(self) -> int:
        """Load the last checkpoint, if there is one; how many iterations are done."""
        if self._folder.checkpoints.latest() is None:
            return 0
        checkpoint = self._folder.checkpoints.last()
        manifest = checkpoint.manifest
        self._estimator_state = manifest.estimator
        for coach, state in zip(self._session.coaches, manifest.coach["coaches"], strict=True):
            coach.load_state_dict(state)
        self._drift.load_state_dict(manifest.coach["drift"])
        self._correct_after(self._drift.raised)
        await self._session.engine.load(checkpoint.path / POLICIES)
        self._health.replay([metrics for number, metrics in self._store.iterations() if number <= manifest.iteration])
        self._store.event("resumed", iteration=manifest.iteration)
        return manifest.iteration

    async def _evaluate(self, done: int) -> None:
        for part in self.held_out.due(done):
            async with self._guarded(done):
                await self.held_out.play(part, done)

    async def _iterate(self, iteration: int) -> IterationReport:
        session, config = self._session, self._session.config
        clock = Clock()
        with clock.phase("collect"):
            gathered = await self._rollouts.take(iteration)
        trajectories = gathered.trajectories
        refuse_total_failure(trajectories)
        coach = coach_figures(trajectories)
        async with self._guarded(iteration):
            self._guard(iteration, trajectories, coach)
            trajectories, weighed = await self._weighed(iteration, trajectories, clock)
        with clock.phase("credit"):
            for one in session.coaches:
                one.learn(trajectories)
            drift = self._drift.observe(trajectories)
            experience = build(
                trajectories,
                [rewards(trajectory, config.coach.reward, session.shapers) for trajectory in trajectories],
                policies=session.team.policy_of,
                trained=session.trained,
                metric=session.workflow.metric,
            )
            experience, corrected = demonstrated(session, experience, trajectories)
        stale = staleness(experience, iteration, most=session.engine.max_staleness)
        with clock.phase("score"):
            experience = await session.engine.score(experience)
        with clock.phase("credit"):
            advantages, self._estimator_state = session.estimator(experience, self._estimator_state)
        assert session.loss is not None  # this session was opened for learning
        with clock.phase("update"):
            policies = await session.engine.update(
                experience, advantages, session.loss, progress=iteration / config.train.iterations
            )
        self._skips.keep(iteration + 1, policies, experience, advantages)
        policies = joined(policies, spread(experience))
        with clock.phase("publish"):
            receipts = await session.engine.publish()
        self._store.event("published", iteration=iteration + 1, receipts=receipts)
        measures = session.workflow.metric, session.workflow.figures
        return IterationReport(
            iteration=iteration + 1,
            iterations=config.train.iterations,
            outcomes=outcome_figures(trajectories, *measures),
            strata=stratum_figures(trajectories, *measures),
            rollouts=len(trajectories),
            late=gathered.late,
            joined=gathered.joined,
            staleness=stale,
            failed_rollouts=Counter(one.error.kind for one in trajectories if one.error is not None),
            calls_again=calls_again(trajectories),
            tokens=len(experience.tokens),
            agents=agent_figures(tuple(session.workflow.agents), trajectories),
            coach=coach,
            drift=drift,
            policies=policies,
            warnings=self._health.observe(policies),
            corrections=corrected,
            counterfactuals=weighed,
            seconds=clock.seconds,
        )

    def _guard(self, iteration: int, trajectories: Sequence[Trajectory], coach: CoachFigures) -> None:
        """Raise GuardStop where too much was spent, lost or left without a verdict to learn from."""
        config, what = self._session.config, f"iteration {iteration + 1}"
        guard_spending(self._session.team.ledger)
        guard_lost(trajectories, what, most=config.train.max_lost)
        guard_verdicts(coach, what, most=config.coach.max_missing)

    async def _weighed(
        self, iteration: int, trajectories: tuple[Trajectory, ...], clock: Clock
    ) -> tuple[tuple[Trajectory, ...], Mapping[str, float]]:
        """The trajectories with what came of their counterfactuals, where there are to be any, and figures of those."""
        if self._counterfactuals is None:
            return trajectories, {}
        with clock.phase("counterfactuals"):
            weighed = await self._counterfactuals.weigh(iteration, trajectories)
        refuse_total_failure(weighed.rollouts)
        guard_lost(
            weighed.rollouts,
            f"the counterfactuals of iteration {iteration + 1}",
            most=self._session.config.train.max_lost,
        )
        return weighed.trajectories, weighed.metrics()

    @asynccontextmanager
    async def _guarded(self, done: int) -> AsyncIterator[None]:
        """Where a guard stops the run, after `done` iterations, write a checkpoint first."""
        try:
            yield
        except GuardStop as why:
            await self._checkpoint(done)
            raise GuardStop(f"{why}\nA checkpoint was written.") from why

    async def _answer(self, drift: DriftReport, done: int) -> None:
        """Do what the config says about alarms of drift; the report of the iteration has shown them."""
        if not drift.alarms:
            return
        self._store.event("drift", iteration=done, alarms=drift.alarms)
        kinds = {alarm.kind for alarm in drift.alarms}
        self._correct_after(kinds)
        if "pause" in {getattr(self._session.config.coach.drift, kind) for kind in kinds}:
            alarms = "\n".join(f"  {alarm}" for alarm in drift.alarms)
            async with self._guarded(done):
                raise GuardStop(
                    f"the coach drifts:\n{alarms}\nAcknowledge what is wanted (coach.drift.acknowledged) or correct it "
                    "(coach.drift.level=correct), and go on."
                )

    def _correct_after(self, kinds: Collection[Kind]) -> None:
        """Take the coaches' preferences off from now on, where that is the answer to an alarm of one of `kinds`."""
        if "correct" in {getattr(self._session.config.coach.drift, kind) for kind in kinds}:
            for coach in self._session.coaches:
                coach.activate()

    def _keep(self, report: IterationReport) -> None:
        metrics = report.metrics()
        self._store.iteration(report.iteration, metrics)
        self._tracking.log(report.iteration, metrics)
        self._listener.iteration_finished(report)

    async def _checkpoint(self, done: int) -> None:
        coach = {
            "coaches": [coach.state_dict() for coach in self._session.coaches],
            "drift": self._drift.state_dict(),
        }
        checkpoints, session = self._folder.checkpoints, self._session
        with checkpoints.writing(
            done,
            seed=session.config.seed,
            coach=coach,
            estimator=self._estimator_state,
            policies={spec.name: PolicyEntry.of(spec) for spec in session.policies if spec.trained},
            agents=session.team.policy_of,
        ) as folder:
            await session.engine.save(folder / POLICIES)
        self._store.event("checkpoint", iteration=done)
        await asyncio.to_thread(checkpoints.copy, done)

    async def _prune(self) -> None:
        await asyncio.to_thread(self._folder.checkpoints.prune, self._session.config.checkpoint.keep)

    async def _keep_best(self, done: int) -> None:
        """Keep a checkpoint of the weights as they are, where that is wanted and no evaluation was as good before."""
        evaluation, checkpoints = self.held_out.deciding[-1], self._folder.checkpoints
        if not self._session.config.checkpoint.best or evaluation.iteration != done or evaluation.interval is None:
            return
        value, best = evaluation.interval.mean, checkpoints.best()
        if best is not None and value <= best.value:
            return
        if done not in checkpoints.iterations():
            await self._checkpoint(done)
        best = Best(iteration=done, metric=evaluation.metric, value=value)
        await asyncio.to_thread(checkpoints.keep_best, best)
        self._store.event("best", iteration=done, metric=best.metric, value=value)
        await self._prune()

    async def _report_best(self) -> None:
        """Where tasks apart have chosen the best checkpoint, take its figures on those that are reported."""
        best = self._folder.checkpoints.best()
        if not self.held_out.has_selection or best is None:
            return
        if best.iteration != self._session.config.train.iterations:
            checkpoint = await asyncio.to_thread(self._folder.checkpoints.load, best.iteration)
            await self._session.engine.load(checkpoint.path / POLICIES)
        await self.held_out.play("report", best.iteration)


class Clock:
    """Wall seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - started
