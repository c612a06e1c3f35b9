"""Play the held-out tasks and grade them by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mappa_core.evaluation.statistics import mean_interval, paired_gain, pass_at_k
from mappa_core.protocols import Split
from mappa_core.records import Float64, Task, Trajectory
from mappa_core.rollout.collector import Collector, refuse_total_failure
from mappa_core.rollout.lost import guard_lost, is_lost
from mappa_core.rollout.resuming import Resumed
from mappa_core.rollout.team import Job, Recorder
from mappa_core.session import Session
from mappa_core.store.summary import Interval


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """Held-out results after `iteration` updates.

    `values` (n problems, samples) holds the workflow's metric. A trajectory that the team did not finish (a prompt
    that does not fit, a workflow that raised) counts 0, as a problem that was not solved; one that a tool's machinery
    lost is NaN and left out. `failures` counts both by kind.
    """

    iteration: int
    metric: str
    problems: tuple[str, ...]
    strata: tuple[str, ...]  # (n,)
    values: Float64
    failures: Mapping[str, int]

    @property
    def by_problem(self) -> Float64:
        """Mean of each problem's samples, (n,); NaN where all were lost."""
        known = np.isfinite(self.values)
        count = known.sum(axis=1)
        total = np.where(known, self.values, 0.0).sum(axis=1)
        means: Float64 = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
        return means

    @property
    def interval(self) -> Interval | None:
        """Mean over problems with its 95 % interval; None where every problem was lost."""
        known = self.by_problem[np.isfinite(self.by_problem)]
        return mean_interval(known) if len(known) else None

    def within(self, stratum: str) -> Evaluation:
        """The same evaluation over the problems of one stratum."""
        chosen = [index for index, name in enumerate(self.strata) if name == stratum]
        return replace(
            self,
            problems=tuple(self.problems[index] for index in chosen),
            strata=tuple(self.strata[index] for index in chosen),
            values=self.values[chosen],
        )

    def gain_over(self, before: Evaluation) -> Interval | None:
        """Mean difference to `before` on the same problems, with its 95 % interval; None where none is in both."""
        if self.problems != before.problems:
            raise ValueError("a gain is paired: both evaluations must be of the same problems")
        now, then = self.by_problem, before.by_problem
        both = np.isfinite(now) & np.isfinite(then)
        return paired_gain(then[both], now[both]) if both.any() else None

    def pass_at(self, k: int) -> float:
        """Chance that at least one of k samples is right, unbiased from all samples (Chen et al., 2021)."""
        solved = np.nansum(self.values > 0.5, axis=1).astype(int)
        count = np.isfinite(self.values).sum(axis=1)
        usable = count >= k
        if not usable.any():
            raise ValueError(f"pass@{k} needs at least {k} samples of a problem")
        chances = [pass_at_k(int(n), int(c), k) for n, c in zip(count[usable], solved[usable], strict=True)]
        return float(np.mean(chances))


async def evaluate(
    session: Session,
    *,
    recorder: Recorder,
    archive: Path,
    iteration: int,
    tasks: Sequence[Task],
    resumed: Resumed,
    most_lost: float,
    finished: Callable[[Trajectory], None] | None = None,
) -> Evaluation:
    """Play every task `eval.samples` times with the weights as they are now. Where all of them have ended for good,
    nothing is played; what was begun is replayed.

    Raises:
        GuardStop: tools lost more than the share `most_lost` of the trajectories, or all of them.
    """
    split: Split = "eval"
    collector = Collector(
        session.team_for(split),
        recorder=recorder,
        archive=archive,
        concurrency=session.config.sampling.concurrency,
        waves=session.deterministic,
        finished=finished,
    )
    samples = session.config.eval.samples
    jobs = [
        Job(task=task, split=split, iteration=iteration, sample=sample) for task in tasks for sample in range(samples)
    ]
    ended = [trajectory for job in jobs if (trajectory := resumed.trajectory(job)) is not None]
    trajectories: Sequence[Trajectory] = ended
    if len(ended) < len(jobs):
        trajectories = await collector.collect(jobs, resumed.replays, resample=resumed.resample)
    refuse_total_failure(trajectories)
    guard_lost(trajectories, f"the evaluation after {iteration} iterations", most=most_lost)
    return graded(trajectories, metric=session.workflow.metric, iteration=iteration, samples=samples)


def graded(trajectories: Sequence[Trajectory], *, metric: str, iteration: int, samples: int) -> Evaluation:
    """The evaluation that `trajectories` make: all samples of the first problem, of the second, and so on."""
    values = np.array([_value(trajectory, metric) for trajectory in trajectories]).reshape(-1, samples)
    first = trajectories[::samples]
    return Evaluation(
        iteration=iteration,
        metric=metric,
        problems=tuple(trajectory.task.id for trajectory in first),
        strata=tuple(trajectory.task.stratum for trajectory in first),
        values=values,
        failures=Counter(trajectory.error.kind for trajectory in trajectories if trajectory.error is not None),
    )


def _value(trajectory: Trajectory, metric: str) -> float:
    if metric in trajectory.outcome:
        return trajectory.outcome[metric]
    if trajectory.error is None:
        raise KeyError(f"the workflow finished {trajectory.id} without recording {metric!r}")
    return np.nan if is_lost(trajectory.error) else 0.0
