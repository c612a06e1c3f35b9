"""Evaluation on held-out tasks, graded by rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mappa.evaluation.statistics import majority_at_k, paired_gain, pass_at_k, share_interval
from mappa.rollout.collector import RolloutCollector, raise_if_all_failed
from mappa.rollout.resume import ResumedIteration
from mappa.rollout.team import Job, Recorder
from mappa.rollout.tool_failures import guard_tool_failures, is_tool_failure
from mappa.session import EvalPart, Session
from mappa.store.summary import PARSED, among_parsed
from mappa_core.errors import ConfigError, RunError
from mappa_core.protocols import Workflow
from mappa_core.records import Bool, Float64, Int64, Interval, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """Results on tasks after `iteration` updates.

    `values` holds the workflow's metric. A trajectory that the team did not finish (a prompt that does not fit, a
    workflow that raised) counts 0, as an unsolved problem; one that was lost to a tool failure, or not played, is NaN
    and left out. `failures` counts both by kind. `answers` holds the final answers, None if not comparable. `figures`
    holds the workflow's further metrics like `values`, NaN also if a metric is undefined for the problem; beside the
    figure `parsed` also the metric among the answers that were parsed, NaN for the others. `clusters` groups dependent
    problems (by data set); None: every problem is its own cluster.
    """

    iteration: int
    metric: str
    problems: tuple[str, ...]
    strata: tuple[str, ...]  # (n,)
    values: Float64  # (n, samples)
    failures: Mapping[str, int]
    figures: Mapping[str, Float64] = field(default_factory=dict)
    clusters: tuple[str, ...] | None = None  # (n,)
    part: EvalPart = "all"
    finished: Bool | None = None  # (n, samples); None: all that have a value
    answers: tuple[tuple[str | None, ...], ...] | None = None  # (n, samples); None: the workflow has none to compare

    @property
    def raw(self) -> Evaluation:
        """The evaluation over finished trajectories only."""
        if self.finished is None:
            return self
        return replace(self, values=np.where(self.finished, self.values, np.nan))

    @property
    def by_problem(self) -> Float64:
        """Mean of each problem's samples, (n,); NaN if all were lost."""
        known = np.isfinite(self.values)
        count, total = known.sum(axis=1), np.where(known, self.values, 0.0).sum(axis=1)
        # As `nanmean`, which warns of a problem without a value.
        means: Float64 = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
        return means

    @property
    def known(self) -> int:
        """Number of problems with a value."""
        return int(np.isfinite(self.by_problem).sum())

    @property
    def interval(self) -> Interval | None:
        """Mean over problems with its 95 % interval by cluster; None if every problem was lost."""
        means = self.by_problem
        known = np.isfinite(means)
        return share_interval(means[known], self._clusters_of(known)) if known.any() else None

    @property
    def cluster_count(self) -> int | None:
        """Number of clusters, None if every problem is its own."""
        return None if self.clusters is None else len(set(self.clusters))

    @property
    def measures(self) -> tuple[str, ...]:
        """Names of the metric and the further figures."""
        return (self.metric, *self.figures)

    def with_metric(self, measure: str) -> Evaluation:
        """Return the evaluation with one of its `measures` as the metric."""
        return self if measure == self.metric else replace(self, metric=measure, values=self.figures[measure])

    def for_stratum(self, stratum: str) -> Evaluation:
        """Return the evaluation over the problems of one stratum."""
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
        """Return the evaluation of every stratum by name; empty if there is only one."""
        names = sorted(set(self.strata))
        return {name: self.for_stratum(name) for name in names} if len(names) > 1 else {}

    def to_event(self) -> dict[str, Any]:
        """Return the body of the event `evaluation`."""
        return {
            "part": self.part,
            "iteration": self.iteration,
            "metric": self.metric,
            "interval": self.interval,
            "figures": {name: self.with_metric(name).interval for name in self.figures},
        }

    def metrics(self) -> dict[str, float]:
        """Return flat metrics (`docs/metrics.md`): over all problems and by stratum."""
        metrics: dict[str, float | None] = {"failed": sum(self.failures.values())}
        metrics |= self._interval_metrics(prefix="")
        for stratum, evaluation in self.by_stratum().items():
            metrics |= evaluation._interval_metrics(prefix=f"stratum/{stratum}/")
        split = "selection" if self.part == "selection" else "eval"
        return {f"{split}/{name}": float(value) for name, value in metrics.items() if value is not None}

    def _interval_metrics(self, prefix: str) -> dict[str, float | None]:
        metrics: dict[str, float | None] = {}
        for measure in self.measures:
            name = prefix + ("accuracy" if measure == self.metric else f"figure/{measure}")
            interval = self.with_metric(measure).interval
            if interval is not None:
                metrics |= {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}
        return metrics

    def gain_over(self, before: Evaluation) -> Interval | None:
        """Return the mean difference to `before`, with its 95 % interval by cluster; None if no problem has values in
        both."""
        if self.problems != before.problems:
            raise ValueError(
                f"a gain is paired: the evaluations after {before.iteration} and {self.iteration} iterations must be "
                "of the same problems, in the same order"
            )
        now, then = self.by_problem, before.by_problem
        both = np.isfinite(now) & np.isfinite(then)
        return paired_gain(then[both], now[both], self._clusters_of(both)) if both.any() else None

    def _clusters_of(self, chosen: Bool) -> list[str] | None:
        if self.clusters is None:
            return None
        return [self.clusters[row] for row in np.flatnonzero(chosen)]

    def pass_at(self, k: int) -> float:
        """Return pass@k: the chance that at least one of k samples is right, unbiased (Chen et al. 2021). Raises
        ValueError if no problem has k samples."""
        return self._mean_at(k, self._pass_chance(k))

    def pass_interval(self, k: int) -> Interval | None:
        """Return pass@k with its 95 % interval by cluster; None if no problem has k samples."""
        chances = self._chances_at(k, self._pass_chance(k))
        rows = np.isin(np.arange(len(self.problems)), list(chances))
        return share_interval([*chances.values()], self._clusters_of(rows)) if chances else None

    def _pass_chance(self, k: int) -> Callable[[int, Int64], float]:
        # A graded share counts as right if it is more right than wrong.
        return lambda row, samples: pass_at_k(len(samples), int((self.values[row, samples] > 0.5).sum()), k)

    def avg_at(self, k: int) -> float:
        """Return avg@k: the mean of k samples over the problems that have as many, estimated from all their samples.
        Raises like `pass_at`."""
        return self._mean_at(k, lambda row, samples: float(self.values[row, samples].mean()))

    def majority_at(self, k: int) -> float | None:
        """Return majority@k: the chance that the most frequent final answer of k samples is right, from all samples
        (see `majority_at_k`); None if the workflow has no comparable answers. Raises like `pass_at`."""
        answers = self.answers
        if answers is None:
            return None

        def chance(row: int, samples: Int64) -> float:
            return majority_at_k([answers[row][sample] for sample in samples], self.values[row, samples].tolist(), k)

        return self._mean_at(k, chance)

    def _mean_at(self, k: int, chance: Callable[[int, Int64], float]) -> float:
        """Return the mean of `chance(problem, samples with a value)` over the problems with at least k such samples."""
        chances = self._chances_at(k, chance)
        if not chances:
            most = int(np.isfinite(self.values).sum(axis=1).max(initial=0))
            raise ValueError(f"@{k} needs at least {k} samples of a problem, and none has more than {most}")
        return float(np.mean([*chances.values()]))

    def _chances_at(self, k: int, chance: Callable[[int, Int64], float]) -> dict[int, float]:
        """Return `chance(problem, samples with a value)` by problem with at least k such samples, in order."""
        samples_of = [np.flatnonzero(np.isfinite(values)) for values in self.values]
        return {row: chance(row, samples) for row, samples in enumerate(samples_of) if len(samples) >= k}


async def evaluate(
    session: Session,
    *,
    recorder: Recorder,
    archive: Path,
    iteration: int,
    tasks: Sequence[Task],
    resumed: ResumedIteration,
    max_lost: float,
    part: EvalPart = "all",
    on_trajectory: Callable[[Trajectory], None] | None = None,
) -> tuple[Evaluation, tuple[Trajectory, ...]]:
    """Play every task `eval.samples` times with the current weights; return the results and the trajectories. Those
    that a resumed run completed are reused, and unfinished ones replayed. Raises GuardStop if tool failures lost more
    than the share `max_lost` of the trajectories, or all of them."""
    collector = RolloutCollector(
        session.team_for("eval"),
        recorder=recorder,
        archive=archive,
        concurrency=session.config.sampling.concurrency,
        waves=session.deterministic,
        on_finish=on_trajectory,
    )
    samples = range(session.config.eval.samples)
    jobs = [Job(task=task, split="eval", iteration=iteration, sample=sample) for task in tasks for sample in samples]
    trajectories = resumed.trajectories(jobs)
    if trajectories is None:
        trajectories = await collector.collect(jobs, resumed.replays, resample=resumed.resample)
    raise_if_all_failed(trajectories)
    guard_tool_failures(trajectories, f"the evaluation after {iteration} iterations", max_share=max_lost)
    workflow = session.workflow
    evaluation = build_evaluation(trajectories, metric=workflow.metric, figures=workflow.figures, iteration=iteration)
    return replace(evaluation, part=part, answers=_answers(trajectories, workflow, evaluation)), trajectories


def build_evaluation(
    trajectories: Sequence[Trajectory],
    *,
    metric: str,
    figures: Sequence[str] = (),
    iteration: int,
    require_metric: bool = True,
) -> Evaluation:
    """Build the evaluation of `trajectories`, in the order of their problems. `require_metric`: a finished trajectory
    without the metric is a bug and raises KeyError; without the flag, as for imported logs, its value is unknown. One
    outside 0 to 1 raises ConfigError."""
    if not trajectories:
        raise RunError(f"the evaluation of iteration {iteration} has no trajectories: they are gone from run.db")
    samples: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        samples.setdefault(trajectory.task.id, []).append(trajectory)
        if require_metric and trajectory.error is None and metric not in trajectory.outcome:
            raise KeyError(f"the workflow finished {trajectory.id} without recording {metric!r}")
    rows = list(samples.values())
    tasks = [row[0].task for row in rows]
    # Problems may have different numbers of samples, as of imported logs: rows are filled up.
    width = max(map(len, rows))
    is_finished = [[trajectory.error is None for trajectory in row] for row in rows]
    values = _values(rows, metric)
    return Evaluation(
        iteration=iteration,
        metric=metric,
        problems=tuple(task.id for task in tasks),
        strata=tuple(task.stratum for task in tasks),
        values=values,
        failures=Counter(trajectory.error.kind for trajectory in trajectories if trajectory.error is not None),
        figures=_figures(rows, metric, values, figures),
        clusters=_clusters(tasks),
        finished=np.array([row + [False] * (width - len(row)) for row in is_finished]),
    )


def _answers(
    trajectories: Sequence[Trajectory], workflow: Workflow, evaluation: Evaluation
) -> tuple[tuple[str | None, ...], ...] | None:
    """Return the final answers by problem and sample, as in `values`; None if there is no answer at all."""
    answers: dict[str, list[str | None]] = {problem: [] for problem in evaluation.problems}
    for trajectory in trajectories:
        has_answer = trajectory.error is None and len(trajectory.steps) > 0
        answers[trajectory.task.id].append(workflow.answer(trajectory.steps) if has_answer else None)
    if all(answer is None for row in answers.values() for answer in row):
        return None
    width = evaluation.values.shape[1]
    return tuple((*row, *[None] * (width - len(row))) for row in answers.values())


def _figures(
    samples: Sequence[Sequence[Trajectory]], metric: str, values: Float64, names: Sequence[str]
) -> dict[str, Float64]:
    """The figures `names`, and the `metric` among the parsed answers where `parsed` is one of them."""
    figures: dict[str, Float64] = {}
    for name in names:
        # Derived and never recorded with a trajectory; a stored evaluation names it.
        if name == among_parsed(metric):
            continue
        figures[name] = _values(samples, name)
        if name == PARSED:
            figures[among_parsed(metric)] = np.where(figures[PARSED] > 0.5, values, np.nan)
    return figures


def _values(samples: Sequence[Sequence[Trajectory]], measure: str) -> Float64:
    values = np.full((len(samples), max(map(len, samples))), np.nan)
    lacking = {
        trajectory.task.id
        for trajectories in samples
        for trajectory in trajectories
        if trajectory.error is None and measure not in trajectory.outcome
    }
    is_recorded = any(measure in trajectory.outcome for trajectories in samples for trajectory in trajectories)
    for row, trajectories in enumerate(samples):
        # A figure that finished trajectories of a task lack is undefined for it, so unfinished ones do not count 0; for
        # all tasks if none has it, as where a log says of failures alone what came out.
        is_undefined = trajectories[0].task.id in lacking or (bool(lacking) and not is_recorded)
        for column, trajectory in enumerate(trajectories):
            value = trajectory.outcome.get(measure)
            if value is not None:
                if not 0 <= value <= 1:
                    raise ConfigError(
                        f"{trajectory.id}: the workflow records {measure}={value:g}: make it a share, 0 to 1"
                    )
                values[row, column] = value
            elif not is_undefined and not is_tool_failure(trajectory.error):
                values[row, column] = 0.0
    return values


def _clusters(tasks: Sequence[Task]) -> tuple[str, ...] | None:
    """Return the clusters of the tasks; a task without one is its own cluster. None if no task has one."""
    if all(task.cluster is None for task in tasks):
        return None
    return tuple(map(task_cluster, tasks))


def task_cluster(task: Task) -> str:
    """Return the cluster of a task, or the task itself if it has none."""
    # With a word in front: a task may have the name of a cluster.
    return f"task {task.id}" if task.cluster is None else f"cluster {task.cluster}"
