"""What a run came to on held-out tasks, read back from its folder, and the arms that several of them make."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from mappa_core.config.layers import leaves
from mappa_core.config.text import read_yaml, scalar
from mappa_core.errors import ConfigError, RunError
from mappa_core.evaluation.heldout import Evaluation, graded, part_of
from mappa_core.plugins import choices
from mappa_core.records import Task
from mappa_core.session.parts import chooses
from mappa_core.store.folder import CONFIG
from mappa_core.store.reader import Reader
from mappa_core.store.summary import NAME, read_summary

NO_SETTINGS = (
    "seed", "run.*", "store.*", "trackers*", "checkpoint.url", "checkpoint.every", "checkpoint.keep",
    "coach.cassette.*",
)  # fmt: skip
"""Keys by which runs of one setting may differ: where they lie, and who hears of them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """The last evaluation that a run reports, problems in the order of their ids, and the `settings` that it was made
    with, as text by dotted key. `tasks` holds a digest of the content of every problem by its id."""

    name: str
    seed: int
    settings: Mapping[str, str]
    evaluation: Evaluation
    tasks: Mapping[str, str]
    samples: int

    def setting(self, key: str) -> str:
        """The value of a key as text; empty where the run has no such setting."""
        return self.settings.get(key, "")

    def refuse_unlike(self, other: Result) -> None:
        """Raise ConfigError, saying why, where the two cannot be compared: a difference would be one of tasks, samples
        or graders."""
        for why in (self._other_grader(other), self._other_tasks(other), self._other_samples(other)):
            if why is not None:
                raise ConfigError(f"{other.name} and {self.name} cannot be compared: {why}")

    def _other_grader(self, other: Result) -> str | None:
        for what, mine, theirs in (
            ("workflow.use", self.setting("workflow.use"), other.setting("workflow.use")),
            ("the metric", self.evaluation.metric, other.evaluation.metric),
        ):
            if mine != theirs:
                return f"they have another grader ({what}: {theirs} and {mine})"
        return None

    def _other_tasks(self, other: Result) -> str | None:
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

    def _other_samples(self, other: Result) -> str | None:
        if self.samples != other.samples:
            return f"they drew other samples (eval.samples: {other.samples} and {self.samples} of a task)"
        key = "eval.temperature"
        if self.setting(key) != other.setting(key):
            return f"they drew other samples ({key}: {other.setting(key)} and {self.setting(key)})"
        return None


def read_result(folder: Path) -> Result:
    """The result of the run in `folder`.

    Raises:
        RunError: it is no run folder, did not come to its end, or has no evaluation.
    """
    with Reader(folder) as reader:
        events = [event.body for event in reader.events("evaluation") if part_of(event.body) != "selection"]
        if (folder / NAME).is_file() and (status := read_summary(folder).status) != "done":
            raise RunError(f"{folder} did not come to its end (it is {status}): go on with it by mappa train --resume")
        if not events:
            raise RunError(f"{folder} has no evaluation")
        last = events[-1]
        played = reader.outcomes("eval", int(last["iteration"]))
    text = (folder / CONFIG).read_text("utf-8")
    settings = {key: scalar(node.plain) for key, node in leaves(read_yaml(text, str(folder / CONFIG)))}
    part = part_of(last)
    if part == "report":
        played = [one for one in played if not chooses(one.task, float(settings["eval.selection"]))]
    figures = tuple(last.get("figures", ()))
    evaluation = graded(played, metric=last["metric"], figures=figures, iteration=int(last["iteration"]))
    return Result(
        name=str(folder),
        seed=int(settings["seed"]),
        settings=settings,
        evaluation=replace(evaluation, part=part),
        tasks={one.task.id: _digest(one.task) for one in played},
        samples=int(settings["eval.samples"]),
    )


def differing(results: Sequence[Result]) -> tuple[str, ...]:
    """The settings that are not the same in all of them, but for seeds and where runs lie."""
    keys = dict.fromkeys(key for result in results for key in result.settings)
    return tuple(
        key
        for key in keys
        if not any(fnmatchcase(key, free) for free in NO_SETTINGS) and len({one.setting(key) for one in results}) > 1
    )


def arms_of(results: Sequence[Result], by: Sequence[str] = ()) -> dict[str, list[Result]]:
    """The results by arm. An arm is named by the settings `by`, or by all those that are not the same in all runs, and
    so has the runs that differ in nothing but their seed.

    Raises:
        ConfigError: no run has a setting of `by`.
    """
    known = dict.fromkeys(key for result in results for key in result.settings)
    for key in by:
        if key not in known:
            raise ConfigError(f"--by {key}: no run has this setting.{choices(key, known)}")
    keys = by or differing(results)
    arms: dict[str, list[Result]] = {}
    for result in results:
        name = " ".join(f"{key}={result.setting(key)}" for key in keys if key in result.settings)
        arms.setdefault(name or "(none of these settings)", []).append(result)
    return arms


def _digest(task: Task) -> str:
    content = [task.prompt, task.reference, task.cluster, task.stratum]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
