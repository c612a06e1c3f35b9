"""The training loop of one run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
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
from mappa.store.writer import MEMORY_EVENT, PROCESS_LOST_EVENT, PROMPT_ROUND_EVENT
from mappa.training import iteration_figures as figures
from mappa.training.coach_states import learn_from_verdicts, load_coach_states
from mappa.training.evaluation_schedule import EvaluationSchedule
from mappa.training.guards import guard_disk, guard_rewards, guard_spending, guard_verdicts, max_new_checkpoints
from mappa.training.health import HealthMonitor, merge_policy_metrics, reward_spread, teacher_gap
from mappa.training.listener import Listener
from mappa.training.peak_memory import peak_memory
from mappa.training.phase_timer import PhaseTimer
from mappa.training.rollout_scheduler import RolloutScheduler
from mappa.training.skipped_steps import SkippedSteps
from mappa.training.tracker_threads import TrackerThreads
from mappa_core.credit.by_agent import estimate
from mappa_core.credit.demonstrations import collect_demonstrations
from mappa_core.credit.overflow import is_overflow
from mappa_core.credit.teachers import score_by_teachers
from mappa_core.errors import GuardStop
from mappa_core.experience import Advantages, Experience
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
        start = await self._restore()
        existing = len(self._folder.checkpoints.iterations())
        new_checkpoints = max_new_checkpoints(self._session.config, start, existing=existing)
        guard_disk(self._folder.path, self._session, checkpoints=new_checkpoints)
        self._record_processes()
        try:
            await self._resume_evaluations(start)
            await self._train(start)
            await self._report_best()
        finally:
            # Also what was lost in the last evaluation, or ended the run.
            self._record_processes()

    async def _resume_evaluations(self, start: int) -> None:
        """Improve prompts and evaluate as due after iteration `start`, and replay the evaluations before it."""
        # A guard that stopped the run in a round of prompts wrote this checkpoint before the round was done.
        await self._improve_prompts(start)
        # Evaluations before the checkpoint are replayed, as the gain is measured against the first of them. Those that
        # a stop cut off are not made up for: the weights that they were due with are gone.
        for done in range(start + 1):
            await self._evaluate(done, recorded_only=done < start, probing=done == 0)
        await self._keep_best(start)

    async def _train(self, start: int) -> None:
        iterations = self._session.config.train.iterations
        try:
            for iteration in range(start, iterations):
                with bound_contextvars(iteration=iteration + 1):
                    await self._finish(await self._iterate(iteration))
            await self._checkpoint_written(iterations)
            # Once more, as that of an iteration is recorded before its checkpoint is written.
            self._record_memory(iterations)
        finally:
            await self._rollouts.close()
            if self._writing is not None:
                # Shielded: a cancelled run still completes the checkpoint that it began. What writing fails with was
                # raised above, or another error ends the run and should not be hidden by it.
                await asyncio.gather(asyncio.shield(self._writing), return_exceptions=True)

    def _counterfactual_collector(self) -> CounterfactualCollector | None:
        """Build the collector of counterfactual rollouts; None if they are off."""
        session, config = self._session, self._session.config
        if config.credit.counterfactual.use == "none":
            return None
        return CounterfactualCollector(
            session.team_for("train"),
            config.credit.counterfactual,
            settle=session.experience_builder.settle,
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
        # Recorded before any guard may stop the run: a resume knows by it which rollouts were learned from.
        self._store.record_iteration(report)
        self._tracking.log(report.iteration, report.metrics())
        self._listener.on_iteration_end(report)
        if report.warnings:
            self._store.record_event("health", iteration=done, warnings=report.warnings)
        self._record_processes()
        self._record_memory(done)
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
        is_due = done > 0 and done % section.every == 0
        if not is_due or done in self._recorded_prompts():
            return
        self._listener.on_phase_start("prompts", done)
        changed = await optimizer.improve(self._session, self._folder, done)
        prompts = {**self._session.workflow.prompts, **changed}
        self._store.record_event(PROMPT_ROUND_EVENT, iteration=done, prompts=prompts, changed=sorted(changed))
        self._use_prompts(done)
        record_prompts(self._session.team, self._store)
        self._listener.on_prompts_improved(done, tuple(changed))

    def _recorded_prompts(self) -> dict[int, Mapping[str, str]]:
        """All prompts after each recorded round, by the iterations that were done then."""
        return {event.body["iteration"]: event.body["prompts"] for event in self._store.events(PROMPT_ROUND_EVENT)}

    def _use_prompts(self, done: int) -> None:
        """Play with the prompts after `done` iterations from now on."""
        rounds = self._recorded_prompts()
        # A resume from an earlier checkpoint finds rounds that lie ahead of it.
        last = max((iteration for iteration in rounds if iteration <= done), default=None)
        # From the start session, as the best checkpoint may be from before the first round.
        self._session = self._start if last is None else self._start.with_prompts(rounds[last])
        self.evaluations.session = self._session
        self._rollouts.use(self._session)
        self._counterfactuals = self._counterfactual_collector()

    def _record_processes(self) -> None:
        processes = tuple(self._session.engine.processes)
        if processes != self._processes:
            for reason in (_losses(processes) - _losses(self._processes)).elements():
                self._store.record_event(PROCESS_LOST_EVENT, error=reason)
            self._processes = processes
            self._store.record_event("processes", processes=processes)

    def _record_memory(self, done: int) -> None:
        peak = peak_memory(self._processes)
        if peak is not None:
            self._store.record_event(MEMORY_EVENT, iteration=done, peak=peak)

    async def _restore(self) -> int:
        """Load the last checkpoint, if there is one; return the number of finished iterations."""
        if self._folder.checkpoints.latest_iteration() is None:
            return 0
        checkpoint = await asyncio.to_thread(self._folder.checkpoints.load_latest)
        manifest = checkpoint.manifest
        self._estimator_state = manifest.estimator
        load_coach_states(self._session.coaches, manifest.coach)
        await self._session.engine.load(checkpoint.path / POLICIES)
        # The store may hold iterations after the checkpoint; they are trained again, and observed then.
        for report in self._store.iterations():
            if report.iteration <= manifest.iteration:
                self._health_monitor.observe(report.policies)
        self._store.record_event("resumed", iteration=manifest.iteration)
        return manifest.iteration

    async def _evaluate(self, done: int, *, recorded_only: bool = False, probing: bool = False) -> None:
        for part in self.evaluations.due_parts(done, recorded_only=recorded_only):
            async with self._checkpoint_on_stop(done):
                await self.evaluations.evaluate(part, done, probing=probing)

    async def _iterate(self, iteration: int) -> IterationReport:
        session, config = self._session, self._session.config
        clock = PhaseTimer(iteration, self._listener)
        with clock.phase("collect"):
            batch = await self._rollouts.take(iteration)
        # From here on coaches learn and weights change, which the last checkpoint may still be reading.
        await self._checkpoint_written(iteration)
        trajectories, played = batch.trajectories, batch.trajectories + batch.replaced
        coach = figures.count_verdicts(played)
        async with self._checkpoint_on_stop(iteration):
            raise_if_all_failed(played)
            self._guard(iteration, played, coach)
            trajectories, counterfactuals = await self._with_counterfactuals(iteration, trajectories, clock)
        with clock.phase("credit"):
            experience, corrections = await self._build_experience(iteration, trajectories)
            # Coaches learn from replaced tasks, too: their verdicts were paid for, and say as much about the coach.
            drift = learn_from_verdicts(session.coaches, session.team, trajectories + batch.replaced)
        staleness = figures.measure_staleness(experience, iteration, max_staleness=session.engine.max_staleness)
        with clock.phase("score"):
            experience = await self._score(experience, trajectories)
        with clock.phase("credit"):
            name = f"estimator.use={config.estimator.use}"
            advantages, self._estimator_state = estimate(name, session.estimator, experience, self._estimator_state)
        with clock.phase("update"):
            policies = await self._update(iteration, experience, advantages)
        self._skipped_steps.save(iteration + 1, policies, experience, advantages)
        policies = merge_policy_metrics(policies, reward_spread(experience), teacher_gap(experience))
        with clock.phase("publish"):
            receipts = await session.engine.publish()
        self._store.record_event("published", iteration=iteration + 1, receipts=receipts)
        measures = session.workflow.metric, session.workflow.figures, config.credit.overflow
        return IterationReport(
            iteration=iteration + 1,
            outcomes=figures.measure_outcomes(played, *measures),
            strata=figures.measure_strata(played, *measures),
            rollouts=len(played),
            replaced=len(batch.replaced) if config.train.dynamic_sampling else None,
            late=batch.late,
            joined=batch.joined,
            staleness=staleness,
            failed_rollouts=Counter(trajectory.error.kind for trajectory in played if trajectory.error is not None),
            overflowed=sum(is_overflow(trajectory.error) for trajectory in played),
            tool_retries=figures.count_tool_retries(played),
            tokens=len(experience.tokens),
            agents=summarize_agents(tuple(session.workflow.agents), played),
            coach=coach,
            drift=drift,
            policies=policies,
            warnings=self._health_monitor.observe(policies),
            corrections=corrections,
            counterfactuals=counterfactuals,
            seconds=clock.seconds,
        )

    async def _score(self, experience: Experience, trajectories: Sequence[Trajectory]) -> Experience:
        """Fill in the log-probabilities of teachers and learners."""
        session = self._session
        # Teachers first: the engine compares samplers and learners on what it scored last.
        experience = await score_by_teachers(
            experience, trajectories, session.estimator, engine=session.engine, render=session.team.render
        )
        return await session.engine.score(experience, reference=session.reads_reference)

    async def _update(
        self, iteration: int, experience: Experience, advantages: Advantages
    ) -> Mapping[str, Mapping[str, float]]:
        """Update the policies, unless all of them are behind an API; return the metrics of each."""
        session = self._session
        if session.loss is None:
            return {}
        # A pure function of the iteration, so the learning rate of a resumed run needs no state.
        progress = iteration / session.config.train.iterations
        return await session.engine.update(experience, advantages, session.loss, progress=progress)

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
            result = await self._counterfactuals.collect(iteration, trajectories)
        raise_if_all_failed(result.rollouts)
        what = f"the counterfactuals of iteration {iteration + 1}"
        guard_tool_failures(result.rollouts, what, max_share=self._session.config.train.max_tool_failure_share)
        return result.trajectories, result.figures

    async def _build_experience(
        self, iteration: int, trajectories: Sequence[Trajectory]
    ) -> tuple[Experience, Mapping[str, int]]:
        """Build the experience, for the supervised term with the coaches' corrections; count corrections by fate."""
        config, team = self._session.config, self._session.team
        experience = self._session.experience_builder.build(trajectories)
        # With counterfactuals of a share of trajectories, or where every verdict may be missing, an iteration may have
        # no reward by chance. Otherwise it has none by its settings, and no later iteration will.
        rewards_are_certain = config.credit.counterfactual.share == 1.0 and config.coach.max_missing < 1.0
        if rewards_are_certain:
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
        coach_states = {"coaches": [coach.state_dict() for coach in self._session.coaches]}
        self._writing = asyncio.create_task(self._write_checkpoint(done, coach_states))

    async def _checkpoint_written(self, done: int) -> None:
        """Wait for the checkpoint that is being written, if any; raise what it failed with."""
        if self._writing is not None:
            if not self._writing.done():
                self._listener.on_phase_start("save", done)
            await asyncio.shield(self._writing)

    async def _write_checkpoint(self, done: int, coach_states: Mapping[str, Any]) -> None:
        session, checkpoints, loop = self._session, self._folder.checkpoints, asyncio.get_running_loop()
        config, estimator = session.config.checkpoint, self._estimator_state

        def write() -> None:
            try:
                guard_disk(self._folder.path, session, checkpoints=1)
            except GuardStop:
                # The oldest that would be pruned afterwards makes room now; at least one complete checkpoint stays.
                checkpoints.prune(max(1, config.keep - 1))
                guard_disk(self._folder.path, session, checkpoints=1)
            with checkpoints.new_checkpoint(
                done,
                seed=session.config.seed,
                coach=coach_states,
                estimator=estimator,
                policies={spec.name: PolicyEntry.of(spec) for spec in session.policies if spec.trained},
                agents=session.team.policy_of,
                prompts=session.workflow.prompts,
            ) as folder:
                # Syncing and hashing block, so `write` has a thread; the engine belongs to the loop and saves there.
                saving = session.engine.save(folder / POLICIES, dtype=config.dtype)
                asyncio.run_coroutine_threadsafe(saving, loop).result()

        await asyncio.to_thread(write)
        self._store.record_event("checkpoint", iteration=done)
        # Copied before pruning, which also removes from the mirror what is no longer here.
        await asyncio.to_thread(checkpoints.copy_to_mirror, done)
        await asyncio.to_thread(checkpoints.prune, config.keep)

    async def _keep_best(self, done: int) -> None:
        """Keep a checkpoint of the current weights, if `checkpoint.best` is on and they are the best so far."""
        evaluations, checkpoints = self.evaluations.best_evaluations, self._folder.checkpoints
        if not self._session.config.checkpoint.best or not evaluations:
            return
        evaluation = evaluations[-1]
        if evaluation.iteration != done or evaluation.interval is None:
            return
        value, best = evaluation.interval.mean, checkpoints.best()
        # Of equal ones the earliest is kept, so a resume that evaluates again changes nothing.
        if best is not None and value <= best.value:
            return
        # One of this iteration may be under way; it is in the folder only when it is complete.
        await self._checkpoint_written(done)
        if done not in checkpoints.iterations():
            await self._checkpoint(done)
        await self._checkpoint_written(done)
        best = BestCheckpoint(iteration=done, metric=evaluation.metric, value=value)
        await asyncio.to_thread(checkpoints.keep_best, best)
        self._store.record_event("best", iteration=done, metric=best.metric, value=value)
        # The former best one is protected no longer.
        await asyncio.to_thread(checkpoints.prune, self._session.config.checkpoint.keep)

    async def _report_best(self) -> None:
        """Evaluate the best checkpoint on the report tasks, if other tasks were used to choose it."""
        best = self._folder.checkpoints.best()
        if not self.evaluations.selection_tasks or best is None:
            return
        if best.iteration != self._session.config.train.iterations:  # else its weights are those that are loaded
            checkpoint = await asyncio.to_thread(self._folder.checkpoints.load, best.iteration)
            await self._session.engine.load(checkpoint.path / POLICIES)
            self._use_prompts(best.iteration)
        await self.evaluations.evaluate("report", best.iteration)


def _losses(processes: Sequence[Process]) -> Counter[str]:
    """Count how the processes ended that these replaced."""
    return Counter(reason for process in processes for reason in process.lost)
