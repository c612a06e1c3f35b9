"""The work of a whole run: of an iteration and of an evaluation, and how many there are of each."""

from __future__ import annotations

from dataclasses import dataclass

from mappa.look.plan.history import RunHistory
from mappa.look.plan.workload import PlannedAmount, Workload, multiply_amounts
from mappa.look.plan.workload_estimator import WorkloadEstimator
from mappa_core import ConfigError, Split, TaskError, TaskSource
from mappa_core.config.schema import RunConfig
from mappa_core.plugins import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedWork:
    """What a run has to do. An iteration learns from the rollouts of `learned`, and plays those of `counterfactual`
    beside them. `evaluation` is the work on all held-out tasks; the `evaluations` of a run, of which some may be on a
    part of them, are as much as `full_evaluations` of it. `unknown` says why the number of these tasks is not known."""

    iterations: int
    learned: Workload
    counterfactual: Workload
    evaluations: int
    full_evaluations: float
    evaluation: Workload
    unknown: str | None

    @property
    def iteration(self) -> Workload:
        """The work of one iteration."""
        return self.learned + self.counterfactual

    @property
    def run(self) -> Workload:
        """The work of all iterations and evaluations."""
        return self.iteration * self.iterations + self.evaluation * self.full_evaluations


def plan_work(config: RunConfig, registry: Registry, estimator: WorkloadEstimator, *, trains: bool) -> PlannedWork:
    """Plan the iterations and evaluations of a run. Where no policy is trained (`trains`), it is one evaluation."""
    rollouts = config.train.prompts * config.train.samples
    tasks, unknown = _count_held_out_tasks(config, registry)
    held_out = multiply_amounts(tasks, float(config.eval.samples))
    evaluations = _count_evaluations(config) if trains else 1
    return PlannedWork(
        iterations=config.train.iterations if trains else 0,
        learned=estimator.estimate("train", _with_replaced(rollouts, config, estimator.history), judged=True),
        counterfactual=estimator.estimate_counterfactuals(rollouts),
        evaluations=evaluations,
        full_evaluations=_full_evaluations(config, evaluations),
        evaluation=estimator.estimate("eval", held_out, judged=config.eval.coach),
        unknown=unknown,
    )


def _with_replaced(rollouts: int, config: RunConfig, history: RunHistory | None) -> PlannedAmount:
    """The rollouts of an iteration that learns from so many, with those that dynamic sampling replaces: as many as in
    the recorded run, or at most all of them in every round."""
    rounds = config.train.dynamic_sampling
    if rounds and history is not None and history.replaced is not None:
        return PlannedAmount(rollouts / (1.0 - history.replaced))
    return PlannedAmount(float(rollouts * (1 + rounds)), at_most=rounds > 0)


def _count_evaluations(config: RunConfig) -> int:
    """The number of evaluations of a run."""
    every, last = config.eval.every, config.train.iterations
    return int(config.eval.before) + len({last, *(range(every, last, every) if every else ())})


def _full_evaluations(config: RunConfig, evaluations: int) -> float:
    """The equivalent number of evaluations of all held-out tasks: if a part of the tasks selects the best checkpoint,
    the others are evaluated only after training, and before it if `eval.before` is on."""
    share = config.eval.selection
    if not config.checkpoint.best or share is None or evaluations < 2:
        return float(evaluations)
    return share * evaluations + (1 - share) * (1 + config.eval.before)


def _count_held_out_tasks(config: RunConfig, registry: Registry) -> tuple[PlannedAmount | None, str | None]:
    """The number of tasks of an evaluation, or why it is unknown."""
    if config.eval.problems is not None:
        return PlannedAmount(float(config.eval.problems)), None
    split: Split = "train" if config.eval.split == "train" else "eval"
    try:
        source: TaskSource = registry.build("tasks", config.tasks.use, config.tasks.options)
        return PlannedAmount(float(len(source.load(split)))), None
    except (TaskError, ConfigError) as error:
        return None, f"how many tasks an evaluation has is not known: {error}"
