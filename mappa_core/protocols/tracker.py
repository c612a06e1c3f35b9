"""Interface for experiment trackers, which report a run to a dashboard or a trace collector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mappa_core.records import Step, Trajectory, Verdict

Ending = Literal["done", "stopped", "failed"]
"""`done` after the last iteration; `stopped` by a guard or a signal, to be resumed; `failed` with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """Run that a tracker reports. `id` (32 hex digits) and `name` (of the run folder) stay the same when it is resumed.
    `done` counts the iterations finished before: 0 for a new run, else those up to the last checkpoint; later ones that
    the service already has are logged again and replace the earlier values. `config` holds the resolved settings as
    JSON values, with the names of environment variables for secrets."""

    id: str
    name: str
    folder: Path
    plugin: str
    recipe: str
    seed: int
    done: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)


class Tracker(ABC):
    """Reports a run to another service. The constructor opens nothing. `start` is called once, then the other methods
    in the order of events, and finally `close` once, even if `start` raised: then nothing else is called. All calls
    come from one thread of the tracker's own, so they may block. Exceptions are reported and never stop the run; a
    tracker that is too slow loses events. To continue a resumed run of its service, a new tracker uses `TrackedRun.id`
    or a file in `TrackedRun.folder`."""

    def start(self, run: TrackedRun) -> None:
        """Start tracking a new or resumed run."""

    @abstractmethod
    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics (`docs/metrics.md`; missing ones are left out) after `iteration` finished iterations. A
        held-out evaluation (`eval/…`) is a second call with the same number, 0 before training."""

    def action(self, trajectory: str, step: Step, ended: float) -> None:
        """Report an action, recorded at `ended` (seconds since the epoch); only new ones after a resume."""

    def verdict(self, trajectory: str, verdict: Verdict, ended: float) -> None:
        """Report a verdict on the action `verdict.step`, recorded at `ended` after `verdict.seconds`."""

    def rollout(self, split: str, trajectory: Trajectory, ended: float) -> None:
        """Report a finished trajectory of `train`, `eval` or `counterfactual`; again if a resume replays it."""

    def close(self, ending: Ending) -> None:
        """Send pending data and release resources. The run's folder is complete by then, with its summary."""
