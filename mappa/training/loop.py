"""The training loop of one run."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from structlog.contextvars import bound_contextvars

from mappa.rollout.collector import raise_if_all_failed
from mappa.rollout.counterfactual import CounterfactualCollector
from mappa.rollout.tool_failures import guard_tool_failures
from mappa.session import Session, record_prompts
from mappa.store.agent_columns import summarize_agents
from mappa.store.checkpoint import POLICIES, BestCheckpoint, PolicyEntry
from mappa.store.folder import RunFolder
from mappa.store.iteration_report import CoachFigures, CounterfactualFigures, IterationReport
from mappa.store.writer import PROMPT_ROUND_EVENT
from mappa.training import iteration_figures as figures
from mappa.training.coach_states import learn_from_verdicts, load_coach_states
from mappa.training.evaluation_schedule import EvaluationSchedule
from mappa.training.guards import guard_disk, guard_rewards, guard_spending, guard_verdicts
from mappa.training.health import HealthMonitor, merge_policy_metrics, reward_spread, teacher_gap
from mappa.training.listener import Listener, LoopPhase
from mappa.training.rollout_scheduler import RolloutScheduler
from mappa.training.skipped_steps import SkippedSteps
from mappa.training.tracker_threads import TrackerThreads
from mappa_core.credit.by_agent import estimate
from mappa_core.credit.demonstrations import collect_demonstrations
from mappa_core.credit.teachers import score_by_teachers
from mappa_core.errors import GuardStop
from mappa_core.experience import Experience
from mappa_core.protocols import DriftReport
from mappa_core.records import Process, Trajectory


class TrainingLoop:
    """Trains `session` from the last checkpoint in `folder`, or from the start; `tracking` must have been started."""

    def __init__(self, session: Session, *, folder: RunFolder, listener: Listener, tracking: TrackerThreads) -> None:
        self.evaluations = EvaluationSchedule(session, folder=folder, listener=listener, tracking=tracking)
        self._session = self._start = session
        self._folder = folder
        self._store = folder.store
        self._estimator_state: Mapping[str, Any] = {}
        self._processes: tuple[Process, ...] = ()
        self._writing: asyncio.Task[None] | None = None
        self._listener = listener
        self._tracking = tracking
        self._rollouts = RolloutScheduler(session, folder=folder, listener=listener, tracking=tracking)
        self._skipped_steps = SkippedSteps(folder, max_skipped=session.config.train.max_skipped)
        self._health_monitor = HealthMonitor(session.config.train.health)
        self._counterfactuals = self._counterfactual_collector()

    async def run(self) -> None:
        """Evaluate, train to the last iteration, evaluate again. Raises GuardStop, after a checkpoint, if a limit on
        missing verdicts, lost rollouts or cost is reached; at once if the disk is too small for all checkpoints."""
        start, config = await self._restore(), self._session.config
        due = math.ceil(config.train.iterations / config.checkpoint.every) - start // config.checkpoint.every
        kept = max(2, config.checkpoint.keep) + config.checkpoint.best - len(self._folder.checkpoints.iterations())
        guard_disk(self._folder.path, self._session, checkpoints=min(due, kept))
        self._record_processes()
        await self._improve_prompts(start)
        for done in range(start + 1):
            await self._evaluate(done, recorded_only=done < start)
        await self._keep_best(start)
        try:
            for iteration in range(start, config.train.iterations):
                with bound_contextvars(iteration=iteration + 1):
                    await self._finish(await self._iterate(iteration))
            await self._checkpoint_written(config.train.iterations)
        finally:
            await self._rollouts.close()
            if self._writing is not None:  # what it fails with was raised above, or another error ends the run
                await asyncio.gather(asyncio.shield(self._writing), return_exceptions=True)
        await self._report_best()

    def _counterfactual_collector(self) -> CounterfactualCollector | None:
        """Build the collector of counterfactual rollouts; None if they are off."""
        session, config = self._session, self._session.config
        if config.credit.counterfactual.use == "none":
            return None
        return CounterfactualCollector(
            session.team_for("train"),
            config.credit.counterfactual,
            default_actions=session.default_actions,
            store=self._store,
            recorder=self._tracking.recorder(self._store),
            archive=self._folder.files,
            concurrency=config.sampling.concurrency,
            waves=session.deterministic,
        )

    async def _finish(self, report: IterationReport) -> None:
        """Record an iteration, then guard, checkpoint and evaluate as due. The samplers keep its weights meanwhile, so
        an evaluation sees one version whatever is collected ahead."""
        config, done = self._session.config, report.iteration
        self._store.record_iteration(report)
        self._tracking.log(report.iteration, report.metrics())
        self._listener.on_iteration_end(report)
        if report.warnings:
            self._store.record_event("health", iteration=done, warnings=report.warnings)
        self._record_processes()
        async with self._checkpoint_on_stop(done):
            self._handle_drift(report.drift, done)
            self._skipped_steps.guard(done, report.policies)
            await self._improve_prompts(done)
        if done == config.train.iterations or done % config.checkpoint.every == 0:
            await self._checkpoint(done)
        await self._evaluate(done)
        await self._keep_best(done)

    async def _improve_prompts(self, done: int) -> None:
        """Improve the prompts if that is due, once, and use them. A resume after a stop in a round catches up on it."""
        optimizer, section = self._session.prompt_optimizer, self._session.config.prompts
        if optimizer is None or section is None:
            return
        self._use_prompts(done)
        is_recorded = any(event.body["iteration"] == done for event in self._store.events(PROMPT_ROUND_EVENT))
        if done and done % section.every == 0 and not is_recorded:
            self._listener.on_phase_start("prompts", done)
            changed = await optimizer.improve(self._session, self._folder, done)
            prompts = {**self._session.workflow.prompts, **changed}
            self._store.record_event(PROMPT_ROUND_EVENT, iteration=done, prompts=prompts, changed=sorted(changed))
            self._use_prompts(done)
            record_prompts(self._session.team, self._store)
            self._listener.on_prompts_improved(done, tuple(changed))

    def _use_prompts(self, done: int) -> None:
        """Play with the prompts after `done` iterations from now on."""
        rounds = {event.body["iteration"]: event.body["prompts"] for event in self._store.events(PROMPT_ROUND_EVENT)}
        last = max((iteration for iteration in rounds if iteration <= done), default=None)
        self._session = self._start if last is None else self._start.with_prompts(rounds[last])
        self.evaluations.session = self._session
        self._rollouts.use(self._session)
        self._counterfactuals = self._counterfactual_collector()

    def _record_processes(self) -> None:
        processes = tuple(self._session.engine.processes)
        if processes != self._processes:
            self._processes = processes
            self._store.record_event("processes", processes=processes)

    async def _restore(self) -> int:
        """Load the last checkpoint, if there is one; return the number of finished iterations."""
        if self._folder.checkpoints.latest_iteration() is None:
            return 0
        checkpoint = await asyncio.to_thread(self._folder.checkpoints.load_latest)
        manifest = checkpoint.manifest
        self._estimator_state = manifest.estimator
        load_coach_states(self._session.coaches, manifest.coach)
        await self._session.engine.load(checkpoint.path / POLICIES)
        for report in self._store.iterations():
            if report.iteration <= manifest.iteration:
                self._health_monitor.observe(report.policies)
        self._store.record_event("resumed", iteration=manifest.iteration)
        return manifest.iteration

    async def _evaluate(self, done: int, *, recorded_only: bool = False) -> None:
        for part in self.evaluations.due_parts(done, recorded_only=recorded_only):
            async with self._checkpoint_on_stop(done):
                await self.evaluations.evaluate(part, done)

    async def _iterate(self, iteration: int) -> IterationReport:
        session, config = self._session, self._session.config
        clock = PhaseTimer(iteration, self._listener)
        with clock.phase("collect"):
            batch = await self._rollouts.take(iteration)
        await self._checkpoint_written(iteration)
        trajectories, played = batch.trajectories, batch.trajectories + batch.replaced
        coach = figures.count_verdicts(played)
        async with self._checkpoint_on_stop(iteration):
            raise_if_all_failed(played)
            self._guard(iteration, played, coach)
            trajectories, weighed = await self._with_counterfactuals(iteration, trajectories, clock)
        with clock.phase("credit"):
            experience, corrected = await self._build_experience(iteration, trajectories)
            drift = learn_from_verdicts(session.coaches, session.team, trajectories + batch.replaced)
        stale = figures.measure_staleness(experience, iteration, max_staleness=session.engine.max_staleness)
        with clock.phase("score"):
            # Before the learners: the engine compares samplers and learners on what it scored last.
            experience = await score_by_teachers(
                experience, trajectories, session.estimator, engine=session.engine, render=session.team.render
            )
            experience = await session.engine.score(experience)
        with clock.phase("credit"):
            name = f"estimator.use={config.estimator.use}"
            advantages, self._estimator_state = estimate(name, session.estimator, experience, self._estimator_state)
        with clock.phase("update"):
            policies: Mapping[str, Mapping[str, float]] = {}
            if session.loss is not None:
                policies = await session.engine.update(
                    experience, advantages, session.loss, progress=iteration / config.train.iterations
                )
        self._skipped_steps.save(iteration + 1, policies, experience, advantages)
        policies = merge_policy_metrics(policies, reward_spread(experience), teacher_gap(experience))
        with clock.phase("publish"):
            receipts = await session.engine.publish()
        self._store.record_event("published", iteration=iteration + 1, receipts=receipts)
        measures = session.workflow.metric, session.workflow.figures
        return IterationReport(
            iteration=iteration + 1,
            outcomes=figures.measure_outcomes(played, *measures),
            strata=figures.measure_strata(played, *measures),
            rollouts=len(played),
            replaced=len(batch.replaced) if config.train.dynamic_sampling else None,
            late=batch.late,
            joined=batch.joined,
            staleness=stale,
            failed_rollouts=Counter(one.error.kind for one in played if one.error is not None),
            tool_retries=figures.count_tool_retries(played),
            tokens=len(experience.tokens),
            agents=summarize_agents(tuple(session.workflow.agents), played),
            coach=coach,
            drift=drift,
            policies=policies,
            warnings=self._health_monitor.observe(policies),
            corrections=corrected,
            counterfactuals=weighed,
            seconds=clock.seconds,
        )

    def _guard(self, iteration: int, trajectories: Sequence[Trajectory], coach: CoachFigures) -> None:
        config, what = self._session.config, f"iteration {iteration + 1}"
        guard_spending(self._session.team.ledger)
        guard_tool_failures(trajectories, what, max_share=config.train.max_tool_failure_share)
        verdicts = [verdict for trajectory in trajectories for verdict in trajectory.verdicts]
        guard_verdicts(coach, verdicts, what, max_missing=config.coach.max_missing)

    async def _with_counterfactuals(
        self, iteration: int, trajectories: tuple[Trajectory, ...], clock: PhaseTimer
    ) -> tuple[tuple[Trajectory, ...], CounterfactualFigures | None]:
        """Attach counterfactuals to the trajectories, if they are on."""
        if self._counterfactuals is None:
            return trajectories, None
        with clock.phase("counterfactuals"):
            weighed = await self._counterfactuals.collect(iteration, trajectories)
        raise_if_all_failed(weighed.rollouts)
        what = f"the counterfactuals of iteration {iteration + 1}"
        guard_tool_failures(weighed.rollouts, what, max_share=self._session.config.train.max_tool_failure_share)
        return weighed.trajectories, weighed.figures

    async def _build_experience(
        self, iteration: int, trajectories: Sequence[Trajectory]
    ) -> tuple[Experience, Mapping[str, int]]:
        """Build the experience, for the supervised term with the coaches' corrections; count corrections by fate."""
        config, team = self._session.config, self._session.team
        experience = self._session.experience_builder.build(trajectories)
        if config.credit.counterfactual.share == 1.0 > config.coach.max_missing:  # else one may have none by chance
            async with self._checkpoint_on_stop(iteration):
                guard_rewards(experience, trajectories, f"iteration {iteration + 1}")
        if not config.train.supervised.weight:
            return experience, {}
        demonstrations = collect_demonstrations(
            experience,
            trajectories,
            config.coach.reward,
            config.train.supervised,
            encode=lambda policy, text: team.samplers[policy].encode(text),
            max_tokens={agent: sampling.max_tokens for agent, sampling in team.sampling.items()},
            saw_truth=team.reference_for,
        )
        return replace(experience, demonstrations=demonstrations.demonstrations), demonstrations.counts

    @asynccontextmanager
    async def _checkpoint_on_stop(self, done: int) -> AsyncIterator[None]:
        try:
            yield
        except GuardStop as why:
            await self._checkpoint(done)
            await self._checkpoint_written(done)
            raise GuardStop(f"{why}\nA checkpoint was written.") from why

    def _handle_drift(self, drift: DriftReport, done: int) -> None:
        """Record what coaches report of themselves, and stop if one of them says so."""
        if drift.alarms:
            self._store.record_event("drift", iteration=done, alarms=drift.alarms)
        if drift.notes:
            self._store.record_event("coach", iteration=done, notes=drift.notes)
        if drift.pause is not None:
            raise GuardStop(drift.pause)

    async def _checkpoint(self, done: int) -> None:
        """Begin to write a checkpoint. Evaluation and rollouts go on meanwhile: neither changes weights or states."""
        await self._checkpoint_written(done)
        coach = {"coaches": [one.state_dict() for one in self._session.coaches]}
        self._writing = asyncio.create_task(self._write_checkpoint(done, coach))

    async def _checkpoint_written(self, done: int) -> None:
        if self._writing is not None:
            if not self._writing.done():
                self._listener.on_phase_start("save", done)
            await asyncio.shield(self._writing)

    async def _write_checkpoint(self, done: int, coach: Mapping[str, Any]) -> None:
        session, checkpoints, loop = self._session, self._folder.checkpoints, asyncio.get_running_loop()
        config, estimator = session.config.checkpoint, self._estimator_state

        def write() -> None:
            try:
                guard_disk(self._folder.path, session, checkpoints=1)
            except GuardStop:
                checkpoints.prune(max(1, config.keep - 1))
                guard_disk(self._folder.path, session, checkpoints=1)
            with checkpoints.new_checkpoint(
                done,
                seed=session.config.seed,
                coach=coach,
                estimator=estimator,
                policies={spec.name: PolicyEntry.of(spec) for spec in session.policies if spec.trained},
                agents=session.team.policy_of,
                prompts=session.workflow.prompts,
            ) as folder:
                saving = session.engine.save(folder / POLICIES, dtype=config.dtype)
                asyncio.run_coroutine_threadsafe(saving, loop).result()

        await asyncio.to_thread(write)
        self._store.record_event("checkpoint", iteration=done)
        await asyncio.to_thread(checkpoints.copy_to_mirror, done)
        await asyncio.to_thread(checkpoints.prune, config.keep)

    async def _keep_best(self, done: int) -> None:
        """Keep a checkpoint of the current weights, if `checkpoint.best` is on and they are the best so far."""
        evaluation, checkpoints = self.evaluations.best_evaluations[-1], self._folder.checkpoints
        if not self._session.config.checkpoint.best or evaluation.iteration != done or evaluation.interval is None:
            return
        value, best = evaluation.interval.mean, checkpoints.best()
        if best is not None and value <= best.value:
            return
        await self._checkpoint_written(done)
        if done not in checkpoints.iterations():
            await self._checkpoint(done)
        await self._checkpoint_written(done)
        best = BestCheckpoint(iteration=done, metric=evaluation.metric, value=value)
        await asyncio.to_thread(checkpoints.keep_best, best)
        self._store.record_event("best", iteration=done, metric=best.metric, value=value)
        await asyncio.to_thread(checkpoints.prune, self._session.config.checkpoint.keep)

    async def _report_best(self) -> None:
        """Evaluate the best checkpoint on the report tasks, if other tasks were used to choose it."""
        best = self._folder.checkpoints.best()
        if not self.evaluations.selection_tasks or best is None:
            return
        if best.iteration != self._session.config.train.iterations:
            checkpoint = await asyncio.to_thread(self._folder.checkpoints.load, best.iteration)
            await self._session.engine.load(checkpoint.path / POLICIES)
            self._use_prompts(best.iteration)
        await self.evaluations.evaluate("report", best.iteration)


class PhaseTimer:
    """Announces the phases of the iteration after `done`, and measures their wall seconds."""

    def __init__(self, done: int, listener: Listener) -> None:
        self._done, self._listener = done, listener
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: LoopPhase) -> Iterator[None]:
        self._listener.on_phase_start(name, self._done)
        started = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - started
