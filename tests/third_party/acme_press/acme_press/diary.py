"""The tracker: a diary of a run, one JSON object a line, in the run's folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from mappa_core import Step, TrackedRun, Tracker, Trajectory, Verdict


@dataclass
class DiaryOptions:
    file: str = "diary.jsonl"
    """Its name in the run folder."""


class Diary(Tracker):
    def __init__(self, options: DiaryOptions) -> None:
        self._options = options
        self._out: IO[str] | None = None

    def start(self, run: TrackedRun) -> None:
        self._out = (run.folder / self._options.file).open("a", encoding="utf-8")
        self._write(what="start", run=run.id, name=run.name, done=run.done)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._write(what="figures", iteration=iteration, metrics=finite)

    def action(self, trajectory: str, step: Step, ended: float) -> None:
        self._write(what="action", trajectory=trajectory, step=step.id, agent=step.agent)

    def verdict(self, trajectory: str, verdict: Verdict, ended: float) -> None:
        self._write(what="verdict", step=verdict.step, score=verdict.score, status=verdict.status)

    def rollout(self, split: str, trajectory: Trajectory, ended: float) -> None:
        self._write(what="rollout", split=split, trajectory=trajectory.id, outcome=dict(trajectory.outcome))

    def close(self, ending: str) -> None:
        if self._out is not None:
            self._write(what="end", how=ending)
            self._out.close()

    def _write(self, **entry: Any) -> None:
        assert self._out is not None
        self._out.write(json.dumps(entry) + "\n")
