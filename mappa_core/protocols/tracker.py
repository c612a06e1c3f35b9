"""Interface for experiment trackers, which report a run to a dashboard or a trace collector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mappa_core.records import Step, Trajectory, Verdict

Ending = Literal["done", "stopped", "failed"]
"""How a run ended: `done` after its last iteration; `stopped` by a guard or a signal, and it can be resumed; `failed`
with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """Run that a tracker reports.

    `id` (32 hex digits) and `name` (of the run folder) stay the same when the run is resumed. `done` is the number of
    iterations finished before: 0 for a new run, after a resume those up to the last checkpoint. Later iterations that
    the service already has are logged again and replace the earlier values. `config` holds the resolved settings as
    JSON values; secrets appear as names of environment variables, never as values.
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
    """Reports a run to another service. Only `log` is required.

    The constructor opens nothing. `start` is called once, then the other methods in the order of events, and finally
    `close` once, even if `start` raised. All calls of one tracker come from one dedicated thread, so they may block
    without delaying the run. Exceptions are reported and never stop the run; if `start` raised, only `close` is called.
    A tracker that is too slow loses events, and the run reports how many.

    A resumed run is a new process with a new tracker. To continue the same run of its service, it uses `TrackedRun.id`
    or a file of its own in `TrackedRun.folder`.
    """

    def start(self, run: TrackedRun) -> None:
        """Start tracking a new or resumed run."""

    @abstractmethod
    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics after `iteration` finished iterations, named as in `docs/metrics.md`; missing metrics are
        left out. The metrics of an iteration come first; a held-out evaluation (`eval/…`) is a second call with the
        same number, 0 before training."""

    def action(self, trajectory: str, step: Step, ended: float) -> None:
        """Report an action of the trajectory with this id, recorded at `ended` in seconds since the epoch. Actions that
        were recorded before a resume are not reported again."""

    def verdict(self, trajectory: str, verdict: Verdict, ended: float) -> None:
        """Report a verdict on the action `verdict.step`, recorded at `ended` after `verdict.seconds`."""

    def rollout(self, split: str, trajectory: Trajectory, ended: float) -> None:
        """Report a finished trajectory of the split `train`, `eval` or `counterfactual`, with all its steps and
        verdicts. A trajectory that a resume replays from the record is reported again."""

    def close(self, ending: Ending) -> None:
        """End tracking: send pending data and release resources. The run's folder is complete by then, with its
        summary."""
