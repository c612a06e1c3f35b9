"""Reads the held-out results of runs from their folders and groups the runs into arms."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from mappa_core.config.layers import iter_leaves
from mappa_core.config.yaml_io import format_scalar, parse_yaml
from mappa_core.errors import ConfigError, RunError
from mappa_core.evaluation.heldout import Evaluation, build_evaluation, event_part
from mappa_core.plugins import did_you_mean
from mappa_core.records import Task
from mappa_core.session.eval_split import in_selection_split
from mappa_core.store.folder import CONFIG
from mappa_core.store.reader import Reader
from mappa_core.store.summary import SUMMARY_NAME, read_summary

IGNORED_SETTINGS = (
    "seed", "run.*", "store.*", "trackers*", "checkpoint.url", "checkpoint.every", "checkpoint.keep",
    "coach.cassette.*",
)  # fmt: skip
"""Keys in which runs of the same setting may differ: seed, storage and trackers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunResult:
    """The last evaluation that a run reports, its problems ordered by id. `settings` are those of the run, as text by
    dotted key; `tasks` holds a digest of the content of every problem by its id."""

    name: str
    seed: int
    settings: Mapping[str, str]
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
    with Reader(folder) as reader:
        events = [event.body for event in reader.events("evaluation") if event_part(event.body) != "selection"]
        if (folder / SUMMARY_NAME).is_file() and (status := read_summary(folder).status) != "done":
            raise RunError(f"{folder} did not come to its end (it is {status}): go on with it by mappa train --resume")
        if not events:
            raise RunError(f"{folder} has no evaluation")
        last = events[-1]
        trajectories = reader.outcomes("eval", int(last["iteration"]))
    text = (folder / CONFIG).read_text("utf-8")
    settings = {key: format_scalar(node.plain) for key, node in iter_leaves(parse_yaml(text, str(folder / CONFIG)))}
    part = event_part(last)
    if part == "report":
        trajectories = [
            one for one in trajectories if not in_selection_split(one.task, float(settings["eval.selection"]))
        ]
    figures = tuple(last.get("figures", ()))
    evaluation = build_evaluation(
        trajectories, metric=last["metric"], figures=figures, iteration=int(last["iteration"])
    )
    return RunResult(
        name=str(folder),
        seed=int(settings["seed"]),
        settings=settings,
        evaluation=replace(evaluation, part=part),
        tasks={one.task.id: _digest(one.task) for one in trajectories},
        samples=int(settings["eval.samples"]),
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
        name = " ".join(f"{key}={result.setting(key)}" for key in keys if key in result.settings)
        arms.setdefault(name or "(none of these settings)", []).append(result)
    return arms


def _digest(task: Task) -> str:
    content = [task.prompt, task.reference, task.cluster, task.stratum]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
