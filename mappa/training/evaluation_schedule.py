"""Evaluation schedule of a run: when evaluations are due, on which tasks, and what is recorded of them.

All held-out tasks are evaluated before training (with `eval.before`), every `eval.every` iterations and at the end.
With `checkpoint.best` those evaluations use the selection tasks alone, and the report tasks are evaluated before
training and at the end with the chosen weights, so that no reported metric was used for the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from mappa.evaluation.heldout import Evaluation, evaluate
from mappa.evaluation.probe import probe_session
from mappa.rollout.resume import resume_iteration
from mappa.session import EvalPart, Session
from mappa.store.folder import RunFolder
from mappa.training.listener import Listener
from mappa.training.tracker_threads import TrackerThreads
from mappa_core.records import Task, Trajectory

log = structlog.get_logger()


class EvaluationSchedule:
    """Evaluates held-out tasks during a run. `report_evaluations` are on the reported tasks, `best_evaluations` are
    those that choose the best checkpoint, in order; they are the same unless `selection_tasks` are set apart for the
    choice. `session` plays from now on."""

    def __init__(self, session: Session, *, folder: RunFolder, listener: Listener, tracking: TrackerThreads) -> None:
        parts = session.held_out()
        self.selection_tasks = len(parts.selection)
        self.report_evaluations: list[Evaluation] = []
        self.best_evaluations: list[Evaluation] = [] if parts.selection else self.report_evaluations
        self._tasks: Mapping[EvalPart, tuple[Task, ...]] = {parts.part: parts.report, "selection": parts.selection}
        self.session = session
        self._folder = folder
        self._listener = listener
        self._tracking = tracking
        recorded = [event.body for event in folder.store.events("evaluation")]
        self._counted = {(body["part"], body["iteration"]) for body in recorded}

    @property
    def parts(self) -> tuple[EvalPart, ...]:
        """The parts of the held-out tasks: all in one, or those to report and those to select by."""
        return ("report", "selection") if self.selection_tasks else ("all",)

    def due_parts(self, done: int, *, recorded_only: bool = False) -> tuple[EvalPart, ...]:
        """Parts to evaluate after `done` iterations. The final report of a best checkpoint is due once it is known.
        `recorded_only`: leave out what was not evaluated yet, as its weights are gone."""
        config = self.session.config
        if done == 0:
            is_due = config.eval.before
        else:
            is_due = done == config.train.iterations or (config.eval.every > 0 and done % config.eval.every == 0)
        if not is_due:
            return ()
        parts = self.parts if done == 0 else tuple(part for part in self.parts if part != "report")
        return tuple(part for part in parts if not recorded_only or (part, done) in self._counted)

    async def evaluate(self, part: EvalPart, done: int, *, probing: bool = False) -> None:
        """Evaluate a part with the weights after `done` iterations. With `probing` the first evaluation of a run warns
        if there is nothing to learn. Raises GuardStop if tools lost too many."""
        config, store = self.session.config, self._folder.store
        self._listener.on_phase_start("evaluate", done)
        self._listener.on_rollouts_start("eval", done, len(self._tasks[part]) * config.eval.samples)
        evaluation, trajectories = await evaluate(
            self.session,
            recorder=self._tracking.recorder(store),
            archive=self._folder.files,
            iteration=done,
            tasks=self._tasks[part],
            resumed=resume_iteration(store, "eval", done, is_consumed=(part, done) in self._counted),
            max_lost=config.train.max_tool_failure_share,
            part=part,
            on_trajectory=self._listener.on_rollout_end,
        )
        # A resume evaluates anew what was recorded; trackers got its metrics from the earlier process.
        if (part, done) not in self._counted:
            self._tracking.log(done, evaluation.metrics())
            if probing and not self._counted:
                self._warn_of_nothing_to_learn(evaluation, trajectories)
        self._counted.add((part, done))
        evaluations = self.best_evaluations if part == "selection" else self.report_evaluations
        evaluations.append(evaluation)
        store.record_event("evaluation", **evaluation.to_event())
        self._listener.on_evaluation_end(evaluation)

    def _warn_of_nothing_to_learn(self, evaluation: Evaluation, trajectories: Sequence[Trajectory]) -> None:
        for warning in probe_session(self.session, evaluation, trajectories).warnings():
            log.warning(f"before training, on held-out tasks: {warning}. `mappa eval --probe 8` asks training tasks")
