"""Play the held-out tasks and grade them by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mappa_core.evaluation.statistics import majority_at_k, paired_gain, pass_at_k, share_interval
from mappa_core.protocols import Split, Workflow
from mappa_core.records import Bool, Float64, Int64, Task, Trajectory
from mappa_core.rollout.collector import Collector, refuse_total_failure
from mappa_core.rollout.lost import guard_lost, is_lost
from mappa_core.rollout.resuming import Resumed
from mappa_core.rollout.team import Job, Recorder
from mappa_core.session import Part, Session
from mappa_core.store.summary import Interval


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """Results on tasks after `iteration` updates.

    `values` (n problems, samples) holds the workflow's metric. A trajectory that the team did not finish (a prompt
    that does not fit, a workflow that raised) counts 0, as a problem that was not solved; one that a tool's machinery
    lost, or that was not played, is NaN and left out. `failures` counts both by kind.

    `finished` (n, samples) says which trajectories the team finished, and `answers` what their final answers were, in
    the same order: None for one without an answer that can be compared.

    `figures` holds the workflow's further figures in the same way, NaN also where a figure is not defined for the
    problem. `clusters` names what problems have in common (a data set); None: every problem stands for itself.
    """

    iteration: int
    metric: str
    problems: tuple[str, ...]
    strata: tuple[str, ...]  # (n,)
    values: Float64
    failures: Mapping[str, int]
    figures: Mapping[str, Float64] = field(default_factory=dict)
    clusters: tuple[str, ...] | None = None  # (n,)
    part: Part = "all"
    finished: Bool | None = None  # (n, samples); None: all that have a value
    answers: tuple[tuple[str | None, ...], ...] | None = None  # (n, samples); None: the workflow has none to compare

    @property
    def raw(self) -> Evaluation:
        """The same over finished trajectories alone: what the team came to where it did not fall over."""
        if self.finished is None:
            return self
        return replace(self, values=np.where(self.finished, self.values, np.nan))

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
        """Mean over problems with its 95 % interval by cluster; None where every problem was lost."""
        means = self.by_problem
        known = np.isfinite(means)
        return share_interval(means[known], self._clusters_of(known)) if known.any() else None

    @property
    def cluster_count(self) -> int | None:
        """How many clusters the problems come in; None where every problem stands for itself."""
        return None if self.clusters is None else len(set(self.clusters))

    @property
    def measures(self) -> tuple[str, ...]:
        """The metric, and the further figures."""
        return (self.metric, *self.figures)

    def of(self, measure: str) -> Evaluation:
        """The same evaluation with one of its `measures` as the metric."""
        return self if measure == self.metric else replace(self, metric=measure, values=self.figures[measure])

    def within(self, stratum: str) -> Evaluation:
        """The same evaluation over the problems of one stratum."""
        chosen = [index for index, name in enumerate(self.strata) if name == stratum]
        return replace(
            self,
            problems=tuple(self.problems[index] for index in chosen),
            strata=tuple(self.strata[index] for index in chosen),
            values=self.values[chosen],
            figures={name: values[chosen] for name, values in self.figures.items()},
            clusters=None if self.clusters is None else tuple(self.clusters[index] for index in chosen),
            finished=None if self.finished is None else self.finished[chosen],
            answers=None if self.answers is None else tuple(self.answers[index] for index in chosen),
        )

    def by_stratum(self) -> dict[str, Evaluation]:
        """The evaluation of every stratum by name; of none where there is but one."""
        names = sorted(set(self.strata))
        return {name: self.within(name) for name in names} if len(names) > 1 else {}

    def told(self) -> dict[str, Any]:
        """What the event `evaluation` of a run says of it."""
        return {
            "part": self.part,
            "iteration": self.iteration,
            "metric": self.metric,
            "interval": self.interval,
            "figures": {name: self.of(name).interval for name in self.figures},
        }

    def metrics(self) -> dict[str, float]:
        """The figures under flat names (`docs/metrics.md`): over all problems and by stratum."""
        told: dict[str, float] = {"failed": sum(self.failures.values())}
        for prefix, one in {"": self, **{f"stratum/{name}/": part for name, part in self.by_stratum().items()}}.items():
            for measure in one.measures:
                name = "accuracy" if measure == self.metric else f"figure/{measure}"
                told.update(_bounded(f"{prefix}{name}", one.of(measure).interval))
        split = "selection" if self.part == "selection" else "eval"
        return {f"{split}/{name}": float(value) for name, value in told.items()}

    def gain_over(self, before: Evaluation) -> Interval | None:
        """Mean difference to `before` on the same problems, with its 95 % interval by cluster; None where none is in
        both."""
        if self.problems != before.problems:
            raise ValueError("a gain is paired: both evaluations must be of the same problems")
        now, then = self.by_problem, before.by_problem
        both = np.isfinite(now) & np.isfinite(then)
        return paired_gain(then[both], now[both], self._clusters_of(both)) if both.any() else None

    def _clusters_of(self, chosen: Bool) -> list[str] | None:
        """The clusters of the problems that are `chosen` (n,)."""
        if self.clusters is None:
            return None
        return [name for name, is_chosen in zip(self.clusters, chosen, strict=True) if is_chosen]

    def pass_at(self, k: int) -> float:
        """Chance that at least one of k samples is right, unbiased from all samples (Chen et al., 2021).

        Raises:
            ValueError: no problem has k samples.
        """
        chances = []
        for row in self._with(k):
            right = self.values[row, self._known(row)] > 0.5
            chances.append(pass_at_k(len(right), int(right.sum()), k))
        return float(np.mean(chances))

    def avg_at(self, k: int) -> float:
        """The mean of k samples of a problem, over the problems that have as many; from all samples, of which any k are
        as good as others. Raises as `pass_at` does."""
        return float(np.mean([self.values[row, self._known(row)].mean() for row in self._with(k)]))

    def majority_at(self, k: int) -> float | None:
        """Chance that the most frequent final answer of k samples is right, from all samples (see `majority_at_k`);
        None where the workflow has no answers that can be compared. Raises as `pass_at` does."""
        if self.answers is None:
            return None
        chances = []
        for row in self._with(k):
            own = self._known(row)
            chances.append(majority_at_k([self.answers[row][at] for at in own], self.values[row, own].tolist(), k))
        return float(np.mean(chances))

    def _known(self, row: int) -> Int64:
        """The samples of a problem that have a value."""
        return np.flatnonzero(np.isfinite(self.values[row]))

    def _with(self, k: int) -> list[int]:
        """The problems that have k samples or more."""
        rows = [row for row in range(len(self.problems)) if len(self._known(row)) >= k]
        if not rows:
            raise ValueError(f"@{k} needs at least {k} samples of a problem")
        return rows


def _bounded(name: str, interval: Interval | None) -> dict[str, float]:
    """A figure and the bounds that it has, by name."""
    if interval is None:
        return {}
    found = {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
    return {which: value for which, value in found.items() if value is not None}


async def evaluate(
    session: Session,
    *,
    recorder: Recorder,
    archive: Path,
    iteration: int,
    tasks: Sequence[Task],
    resumed: Resumed,
    most_lost: float,
    part: Part = "all",
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
    workflow = session.workflow
    evaluation = graded(trajectories, metric=workflow.metric, figures=workflow.figures, iteration=iteration)
    return replace(evaluation, part=part, answers=_answers(trajectories, workflow, evaluation))


def part_of(event: Mapping[str, Any]) -> Part:
    """Which tasks an event `evaluation` of a run is of; those of runs that knew no parts are of all."""
    part: Part = event.get("part", "all")
    return part


def graded(
    trajectories: Sequence[Trajectory],
    *,
    metric: str,
    figures: Sequence[str] = (),
    iteration: int,
    measured: bool = True,
) -> Evaluation:
    """The evaluation that `trajectories` make, in the order of their problems. `measured`: that a finished one lacks
    the metric is a bug, which raises KeyError; in a log from elsewhere it is just not known."""
    samples: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        samples.setdefault(trajectory.task.id, []).append(trajectory)
    tasks = [one[0].task for one in samples.values()]
    for trajectory in trajectories:
        if measured and trajectory.error is None and metric not in trajectory.outcome:
            raise KeyError(f"the workflow finished {trajectory.id} without recording {metric!r}")
    return Evaluation(
        iteration=iteration,
        metric=metric,
        problems=tuple(task.id for task in tasks),
        strata=tuple(task.stratum for task in tasks),
        values=_values(samples, metric),
        failures=Counter(trajectory.error.kind for trajectory in trajectories if trajectory.error is not None),
        figures={name: _values(samples, name) for name in figures},
        clusters=_clusters(tasks),
        finished=_finished(samples),
    )


def _finished(samples: Mapping[str, Sequence[Trajectory]]) -> Bool:
    finished = np.zeros((len(samples), max(map(len, samples.values()))), dtype=np.bool_)
    for row, trajectories in enumerate(samples.values()):
        finished[row, : len(trajectories)] = [one.error is None for one in trajectories]
    return finished


def _answers(
    trajectories: Sequence[Trajectory], workflow: Workflow, evaluation: Evaluation
) -> tuple[tuple[str | None, ...], ...] | None:
    """The final answers by problem and sample, as `values` has its grades; None where there is not one."""
    said: dict[str, list[str | None]] = {problem: [] for problem in evaluation.problems}
    for one in trajectories:
        said[one.task.id].append(workflow.answer(one.steps) if one.error is None and one.steps else None)
    if all(answer is None for row in said.values() for answer in row):
        return None
    width = evaluation.values.shape[1]
    return tuple((*row, *[None] * (width - len(row))) for row in said.values())


def _values(samples: Mapping[str, Sequence[Trajectory]], measure: str) -> Float64:
    values = np.full((len(samples), max(map(len, samples.values()))), np.nan)
    for row, trajectories in enumerate(samples.values()):
        # A figure that finished trajectories of a task lack is not defined for it, so that nobody fell short of it.
        undefined = any(one.error is None and measure not in one.outcome for one in trajectories)
        for column, one in enumerate(trajectories):
            if measure in one.outcome:
                values[row, column] = one.outcome[measure]
            elif not undefined and not is_lost(one.error):
                values[row, column] = 0.0
    return values


def _clusters(tasks: Sequence[Task]) -> tuple[str, ...] | None:
    """What the tasks have in common; a task without a cluster stands for itself. None where all do."""
    if all(task.cluster is None for task in tasks):
        return None
    return tuple(f"task {task.id}" if task.cluster is None else f"cluster {task.cluster}" for task in tasks)
