"""The evaluations of a run: when they are due, on which tasks, and what is kept of them.

Without a best checkpoint all held-out tasks are played before training, every `eval.every` iterations and at the end.
With one (`checkpoint.best`) those evaluations are of the selection tasks alone. The others are played twice: before
training, and at the end with the weights that were chosen. So no figure that is reported had a say in the choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mappa_core.evaluation.heldout import Evaluation, evaluate, part_of
from mappa_core.records import Task
from mappa_core.rollout.resuming import resume
from mappa_core.session import Part, Session
from mappa_core.store.folder import RunFolder
from mappa_core.training.listener import Listener
from mappa_core.training.tracking import Tracking


class HeldOut:
    """Plays held-out tasks in a run. `reported` are the evaluations of the tasks that are reported, `deciding` those
    that a best checkpoint goes by, each in order: they are the same unless tasks were set apart for the choice."""

    def __init__(self, session: Session, *, folder: RunFolder, listener: Listener, tracking: Tracking) -> None:
        parts = session.held_out()
        self.has_selection = bool(parts.selection)
        self.reported: list[Evaluation] = []
        self.deciding: list[Evaluation] = [] if self.has_selection else self.reported
        self._tasks: Mapping[Part, tuple[Task, ...]] = {parts.part: parts.report, "selection": parts.selection}
        self._session = session
        self._folder = folder
        self._listener = listener
        self._tracking = tracking
        self._counted = {(part_of(event.body), event.body["iteration"]) for event in folder.store.events("evaluation")}

    @property
    def selections(self) -> Sequence[Evaluation]:
        """The evaluations of tasks that were set apart to choose the best checkpoint."""
        return self.deciding if self.has_selection else ()

    def due(self, done: int) -> tuple[Part, ...]:
        """What is to be played after `done` iterations. What is reported of a best one is due once it is known."""
        every = self._session.config.eval.every
        if done not in (0, self._session.config.train.iterations) and not (every and done % every == 0):
            return ()
        if not self.has_selection:
            return ("all",)
        return ("report", "selection") if done == 0 else ("selection",)

    async def play(self, part: Part, done: int) -> None:
        """Evaluate with the weights as they are after `done` iterations.

        Raises:
            GuardStop: tools lost too many trajectories.
        """
        config, store = self._session.config, self._folder.store
        self._listener.collecting("eval", done, len(self._tasks[part]) * config.eval.samples)
        evaluation = await evaluate(
            self._session,
            recorder=self._tracking.recorder(store),
            archive=self._folder.files,
            iteration=done,
            tasks=self._tasks[part],
            resumed=resume(store, "eval", done, settled=(part, done) in self._counted),
            most_lost=config.train.max_lost,
            part=part,
            finished=self._listener.rollout_finished,
        )
        if (part, done) not in self._counted:
            self._tracking.log(done, evaluation.metrics())
        self._counted.add((part, done))
        (self.deciding if part == "selection" else self.reported).append(evaluation)
        store.event("evaluation", **evaluation.told())
        self._listener.evaluated(evaluation)
