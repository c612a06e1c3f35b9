"""The page that compares two held-out evaluations, of two runs or of one at two iterations: task by task, paired."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from starlette.exceptions import HTTPException
from starlette.requests import Request

from mappa.evaluation.heldout import build_evaluation
from mappa.evaluation.statistics import paired_gain
from mappa.look.view.web.trajectories import first_words
from mappa.runs import RunReader
from mappa.runs.rows import EvaluationRow
from mappa_core import RunError, Task, Trajectory
from mappa_core.records import Interval

MAX_TASKS = 200
"""Maximum number of tasks that are listed."""
TaskFilter = Literal["differing", "better", "worse", "all"]
TASK_FILTERS: tuple[TaskFilter, ...] = ("differing", "better", "worse", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """An evaluation of the run `run` after `iteration` iterations, of the tasks that did not select its checkpoint."""

    run: str
    evaluation: EvaluationRow

    @property
    def key(self) -> str:
        """What names it in a URL."""
        return f"{self.run}@{self.evaluation.iteration}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPair:
    """A task that both sides played. Means are over samples, None if all were lost."""

    task: Task
    words: str
    left: Sequence[Trajectory]
    right: Sequence[Trajectory]
    left_mean: float | None
    right_mean: float | None

    @property
    def gain(self) -> float | None:
        """The mean of the right side minus that of the left; None if one of them is unknown."""
        return None if self.left_mean is None or self.right_mean is None else self.right_mean - self.left_mean

    def passes(self, which: TaskFilter) -> bool:
        if which == "all":
            return True
        if self.gain is None:
            return False
        return {"better": self.gain > 0, "worse": self.gain < 0, "differing": self.gain != 0}[which]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedTasks:
    """The tasks that both sides played, those that got worse first. `unpaired` counts the tasks of one side alone, or
    with another text or answer there."""

    pairs: tuple[TaskPair, ...]
    unpaired: int

    @property
    def known(self) -> list[TaskPair]:
        return [pair for pair in self.pairs if pair.gain is not None]

    @property
    def gain(self) -> Interval | None:
        """Mean gain with its 95 % interval over clusters of tasks; None if nothing is known."""
        if not self.known:
            return None
        tasks = [pair.task for pair in self.known]
        clusters = [f"task {one.id}" if one.cluster is None else f"cluster {one.cluster}" for one in tasks]
        means = np.array([(pair.left_mean, pair.right_mean) for pair in self.known], dtype=np.float64)
        return paired_gain(means[:, 0], means[:, 1], clusters)

    def count(self, which: TaskFilter) -> int:
        return sum(pair.passes(which) for pair in self.pairs)


def build_comparison_page(folders: Mapping[str, Path], request: Request) -> dict[str, Any]:
    """Build the page of the sides `left` and `right`; without them, of the first and the last evaluation of `run`, or
    of the newest run.

    Raises HTTPException 400 for an unknown filter and 404 for an unknown evaluation.
    """
    sides = {side.key: side for name, folder in folders.items() for side in _read_sides(name, folder)}
    which = request.query_params.get("tasks", TASK_FILTERS[0])
    if which not in TASK_FILTERS:
        raise HTTPException(400, f"tasks: must be one of {', '.join(TASK_FILTERS)}, not {which}")
    left, right = _choose_sides(sides, request)
    paired = None if left is None or right is None else _pair_tasks(folders, left, right)
    chosen = None if paired is None else request.query_params.get("task")
    shown = [] if paired is None else [pair for pair in paired.pairs if pair.passes(which)]
    return {
        "sides": sides,
        "left": left,
        "right": right,
        "paired": paired,
        "which": which,
        "filters": TASK_FILTERS,
        "pairs": shown[:MAX_TASKS],
        "hidden": len(shown) - len(shown[:MAX_TASKS]),
        "chosen": None if paired is None or chosen is None else _find_pair(paired, chosen),
    }


def _read_sides(name: str, folder: Path) -> list[Side]:
    """The evaluations of a run; none of one that cannot be read, which the overview shows with the reason."""
    try:
        with RunReader(folder) as reader:
            return [Side(run=name, evaluation=one) for one in reader.evaluations if one.part != "selection"]
    except RunError:
        return []


def _choose_sides(sides: dict[str, Side], request: Request) -> tuple[Side | None, Side | None]:
    named = _find_side(sides, request, "right")
    run = None if named is not None else request.query_params.get("run")
    right = named or _last_evaluation(sides, run)
    left = _find_side(sides, request, "left")
    if left is None and right is not None:
        others = [side for side in sides.values() if side.key != right.key and run in (None, "", side.run)]
        left = next((side for side in others if side.run == right.run), next(iter(others), None))
    return left, right


def _find_side(sides: dict[str, Side], request: Request, name: str) -> Side | None:
    key = request.query_params.get(name)
    if not key:
        return None
    if key not in sides:
        raise HTTPException(404, f"There is no evaluation {key}; one is named by its run and iteration, as run@10.")
    return sides[key]


def _last_evaluation(sides: dict[str, Side], run: str | None) -> Side | None:
    """The last evaluation of `run`; None: of the newest run that has one."""
    run = run or next((side.run for side in sides.values()), None)
    return next((side for side in reversed(sides.values()) if side.run == run), None)


def _find_pair(paired: PairedTasks, task: str) -> TaskPair:
    found = next((pair for pair in paired.pairs if pair.task.id == task), None)
    if found is None:
        raise HTTPException(404, f"There is no task {task} that both played.")
    return found


def _pair_tasks(folders: Mapping[str, Path], left: Side, right: Side) -> PairedTasks | None:
    """Pair the tasks of two evaluations; None if they are graded by different metrics."""
    if left.evaluation.metric != right.evaluation.metric:
        return None
    (left_plays, left_means), (right_plays, right_means) = (
        _read_plays(folders[side.run], side.evaluation) for side in (left, right)
    )
    pairs = [
        TaskPair(
            task=plays[0].task,
            words=first_words(plays[0].task.prompt) or task,
            left=plays,
            right=right_plays[task],
            left_mean=left_means[task],
            right_mean=right_means[task],
        )
        for task, plays in left_plays.items()
        if task in right_plays and is_same_task(plays[0].task, right_plays[task][0].task)
    ]
    pairs.sort(key=lambda pair: math.inf if pair.gain is None else pair.gain)
    return PairedTasks(pairs=tuple(pairs), unpaired=len(left_plays.keys() | right_plays.keys()) - len(pairs))


def _read_plays(folder: Path, evaluation: EvaluationRow) -> tuple[dict[str, list[Trajectory]], dict[str, float | None]]:
    """The plays of every task by its id, and their mean."""
    with RunReader(folder) as reader:
        plays = reader.outcomes(evaluation.iteration, evaluation.part)
    by_task: dict[str, list[Trajectory]] = {}
    for one in plays:
        by_task.setdefault(one.task.id, []).append(one)
    if not plays:
        return {}, {}
    built = build_evaluation(plays, metric=evaluation.metric, iteration=evaluation.iteration, require_metric=False)
    means = {task: float(mean) for task, mean in zip(built.problems, built.by_problem, strict=True)}
    return by_task, {task: mean if np.isfinite(mean) else None for task, mean in means.items()}


def is_same_task(one: Task, other: Task) -> bool:
    """Whether two tasks of one id ask the same and know the same answer."""
    return (one.prompt, one.reference) == (other.prompt, other.reference)
