"""Who is told: trackers, which pass what a run does on to a dashboard or to a collector of traces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mappa_core.records import Step, Trajectory, Verdict

Ending = Literal["done", "stopped", "failed"]
"""How a run ended: at its last iteration; by a guard or a signal, to go on later perhaps; by an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """The run that a tracker follows.

    `id` (32 hex digits) and `name` (that of its folder) are the same whenever the run goes on. `done` iterations were
    finished before: 0 where it begins, and after a resume those up to its last checkpoint. Later ones that a service
    knows already will be told again, and replace what it knows. `config` holds the resolved settings as JSON values:
    of secrets the names of environment variables, never values.
    """

    id: str
    name: str
    folder: Path
    plugin: str
    recipe: str
    seed: int
    done: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)


class Tracker(ABC):
    """Tells of a run elsewhere. Only `log` has to be written.

    Building one opens nothing. Then come `start`, once; the others, in the order in which things happened; and `close`,
    once, also after a `start` that raised. All calls of one tracker come from one thread of its own, so they may block:
    the run does not wait. What one raises is reported and never stops the run; after a `start` that raised nothing but
    `close` is called. A tracker that takes too long loses what it does not get round to, and the run says how much.

    A run that goes on is another process with a new tracker. What it needs to go on with the same run of its service is
    `TrackedRun.id`, or a file that it keeps in `TrackedRun.folder`.
    """

    def start(self, run: TrackedRun) -> None:
        """The run begins or goes on."""

    @abstractmethod
    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Figures after `iteration` finished iterations, under the names of `docs/metrics.md`; what is missing is left
        out. Those of an iteration come first; a held-out evaluation (`eval/…`) is told by another call with the same
        number, 0 before training."""

    def action(self, trajectory: str, step: Step, ended: float) -> None:
        """An action of the trajectory with this id was finished and recorded at `ended`, seconds since the epoch.
        Actions that a resume finds recorded are not told again."""

    def verdict(self, trajectory: str, verdict: Verdict, ended: float) -> None:
        """A verdict on one of its actions (`verdict.step`) was recorded. It took `verdict.seconds`, and ended then."""

    def rollout(self, split: str, trajectory: Trajectory, ended: float) -> None:
        """A trajectory of the split `train`, `eval` or `counterfactual` has ended, with all its steps and verdicts. One
        that a resume plays again from the record is told again."""

    def close(self, ending: Ending) -> None:
        """The run has ended: send what waits, and release what is held."""
