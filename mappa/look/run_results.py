"""Reads the held-out results of runs from their folders and groups the runs into arms."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from mappa.config.compose import RECIPE
from mappa.config.yaml_io import CONFIG, format_scalar
from mappa.evaluation.heldout import Evaluation, build_evaluation
from mappa.runs import RunReader
from mappa_core import ConfigError, RunError, Task
from mappa_core.config.layers import DEFAULT_ORIGIN
from mappa_core.files import damage_reported
from mappa_core.plugins import did_you_mean

IGNORED_SETTINGS = (
    "seed", "run.*", "store.*", "trackers*", "checkpoint.url", "checkpoint.every", "checkpoint.keep",
    "coach.cassette.*", "coach.max_missing", "coach.spend_usd", "train.health.*", "train.max_tool_failure_share",
    "train.max_skipped", "train.max_restarts", "*.options.alarms.*",
)  # fmt: skip
"""Keys in which runs of the same setting may differ: seed, storage, trackers, warnings, and limits that stop a run, for
one that came to its end reached none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunResult:
    """The last evaluation that a run reports, its problems ordered by id. `settings` are those of the run, as text by
    dotted key, of which nobody set `defaults`; `tasks` holds a digest of the content of every problem by its id."""

    name: str
    seed: int
    settings: Mapping[str, str]
    defaults: frozenset[str] = frozenset()
    evaluation: Evaluation
    tasks: Mapping[str, str]
    samples: int

    def setting(self, key: str) -> str:
        """The value of a key as text; empty if the run has no such setting."""
        return self.settings.get(key, "")

    def require_comparable(self, other: RunResult) -> None:
        """Raise ConfigError, with the reason, if the two results differ in their tasks, samples or grader and so cannot
        be compared."""
        for why in (self._grader_mismatch(other), self._task_mismatch(other), self._sample_mismatch(other)):
            if why is not None:
                raise ConfigError(f"{other.name} and {self.name} cannot be compared: {why}")

    def _grader_mismatch(self, other: RunResult) -> str | None:
        for what, mine, theirs in (
            ("workflow.use", self.setting("workflow.use"), other.setting("workflow.use")),
            ("the metric", self.evaluation.metric, other.evaluation.metric),
        ):
            if mine != theirs:
                return f"they have another grader ({what}: {theirs} and {mine})"
        return None

    def _task_mismatch(self, other: RunResult) -> str | None:
        mine, theirs = set(self.tasks), set(other.tasks)
        if mine != theirs:
            only = "; ".join(
                f"{len(names)} of {run.name} alone, for example {min(names)}"
                for run, names in ((other, theirs - mine), (self, mine - theirs))
                if names
            )
            parts = {run.evaluation.part for run in (self, other)}
            hint = " One of them chose its best checkpoint on a part of the tasks." if len(parts) > 1 else ""
            return f"they evaluated other tasks ({only}).{hint}"
        changed = [name for name in self.tasks if self.tasks[name] != other.tasks[name]]
        if changed:
            return f"{len(changed)} tasks of the same id have another content, for example {min(changed)}"
        return None

    def _sample_mismatch(self, other: RunResult) -> str | None:
        if self.samples != other.samples:
            return f"they drew other samples (eval.samples: {other.samples} and {self.samples} of a task)"
        key = "eval.temperature"
        if self.setting(key) != other.setting(key):
            return f"they drew other samples ({key}: {other.setting(key)} and {self.setting(key)})"
        return None


def read_result(folder: Path) -> RunResult:
    """Read the result of the run in `folder`.

    Raises:
        RunError: it is not a run folder, the run did not finish, or it has no evaluation.
    """
    with RunReader(folder) as reader:
        evaluations = [one for one in reader.evaluations if one.part != "selection"]
        if reader.summary is not None and (status := reader.summary.status) != "done":
            raise RunError(f"{folder} did not come to its end (it is {status}): go on with it by mappa train --resume")
        if not evaluations:
            raise RunError(f"{folder} has no evaluation")
        last = evaluations[-1]
        trajectories = reader.outcomes(last.iteration, last.part)
        settings = {key: value for key, value in reader.settings.items() if key != RECIPE}
        defaults = frozenset(key for key, origin in reader.origins.items() if origin == DEFAULT_ORIGIN)
        with damage_reported(folder / CONFIG):
            seed, samples = int(reader.settings["seed"]), int(reader.settings["eval.samples"])
    evaluation = build_evaluation(
        trajectories, metric=last.metric, figures=tuple(last.figures), iteration=last.iteration
    )
    return RunResult(
        name=str(folder),
        seed=seed,
        settings={key: format_scalar(value) for key, value in settings.items()},
        defaults=defaults,
        evaluation=replace(evaluation, part=last.part),
        tasks={one.task.id: digest_task(one.task) for one in trajectories},
        samples=samples,
    )


def differing_settings(results: Sequence[RunResult]) -> tuple[str, ...]:
    """The settings that differ between the results, other than `IGNORED_SETTINGS`."""
    keys = dict.fromkeys(key for result in results for key in result.settings)
    return tuple(
        key
        for key in keys
        if not any(fnmatchcase(key, free) for free in IGNORED_SETTINGS)
        and len({one.setting(key) for one in results}) > 1
    )


def group_by_arm(results: Sequence[RunResult], by: Sequence[str] = ()) -> dict[str, list[RunResult]]:
    """Group the results by arm. An arm is named by the settings `by`; without them, by all settings that differ between
    runs, so that the runs of an arm differ in nothing but their seed.

    Raises:
        ConfigError: no run has a setting named in `by`.
    """
    known = dict.fromkeys(key for result in results for key in result.settings)
    for key in by:
        if key not in known:
            raise ConfigError(f"--by {key}: no run has this setting.{did_you_mean(key, known)}")
    keys = by or differing_settings(results)
    arms: dict[str, list[RunResult]] = {}
    for result in results:
        named = keys if by else _telling_keys(result, keys)
        name = " ".join(f"{key}={result.setting(key)}" for key in named if key in result.settings)
        arms.setdefault(name or "(none of these settings)", []).append(result)
    return arms


def _telling_keys(result: RunResult, differing: Sequence[str]) -> list[str]:
    """Of the settings in which runs differ, those that tell what a run is: options that have the default of an offer
    follow from the choice of it, where that differs, too."""

    def follows(key: str) -> bool:
        choices = (f"{key[: at.start()]}.use" for at in re.finditer(r"\.options\.", key))
        return key in result.defaults and any(choice in differing for choice in choices)

    return [key for key in differing if not follows(key)]


def digest_task(task: Task) -> str:
    """Digest of what a problem asks and how it is counted: equal for tasks of the same content."""
    content = [task.prompt, task.reference, task.cluster, task.stratum]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
