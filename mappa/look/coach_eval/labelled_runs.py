"""Runs that people labelled, as a coach is shown them: of run folders, or of files of a public set of failures.

Labels stand beside the scenes, never in them: what a coach is given here holds no label.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Literal

from mappa.look.coach_eval.shown_scenes import is_imported, open_shown_scenes
from mappa.look.importing.import_result import count_agents
from mappa.look.importing.label_files import LabelFile, join_label_files
from mappa.look.importing.log_mapping import LogMapping
from mappa.look.importing.offers import ImportedOptions, ImportedWorkflow
from mappa.look.importing.read_logs import read_logs
from mappa.look.importing.trajectories import build_trajectories
from mappa.runs import RunReader
from mappa.session.stored_runs import RecordedScenes
from mappa_core import ConfigError, Role, RunError, Scene, Step, Task, Trajectory
from mappa_core.coach import CATEGORIES
from mappa_core.plugins import Registry
from mappa_core.records import Label

Benchmark = Literal["who-and-when", "agent-process-bench"]
"""Public sets of labelled runs that can be read."""
NO_LABEL = "without a label"
NO_ACTION = "without an action"
_SEED = 0
"""Fixed, so that a limit always samples the same runs."""


def _fold(text: str) -> str:
    """A name of a kind of failure without case and punctuation, in which files differ."""
    return re.sub(r"[^\w.]+", " ", text).strip().casefold()


@dataclass(frozen=True, slots=True, kw_only=True)
class Guilt:
    """Who failed a run: `agents`, and the `positions` of the decisive actions among those of the run."""

    agents: frozenset[str]
    positions: frozenset[int]


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledRun:
    """A labelled trajectory: one scene per action, in order, and its labels. `name` is unique over all runs read.
    Positions count the run's actions from 0."""

    name: str
    scenes: tuple[Scene, ...]
    labels: tuple[Label, ...]

    @property
    def task(self) -> Task:
        """The task, without its reference unless the coach is shown it."""
        return self.scenes[0].task

    @property
    def stratum(self) -> str:
        return self.task.stratum

    @property
    def cluster(self) -> str:
        """The question: runs that share it are no independent evidence."""
        return self.task.id if self.task.cluster is None else self.task.cluster

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(scene.step for scene in self.scenes)

    @property
    def has_text(self) -> bool:
        """Whether anything is known of the actions but their labels."""
        return any(step.reply.content or step.reply.tool_calls or step.messages for step in self.steps)

    @cached_property
    def guilt(self) -> Guilt | None:
        """The guilty agents and decisive actions by any labeller; None without such a label."""
        each = self.guilt_by_labeller.values()
        if not each:
            return None
        return Guilt(
            agents=frozenset().union(*(one.agents for one in each)),
            positions=frozenset().union(*(one.positions for one in each)),
        )

    @cached_property
    def guilt_by_labeller(self) -> Mapping[str, Guilt]:
        """What each labeller of guilt says."""
        found: dict[str, list[Label]] = {}
        for label in self.labels:
            if label.kind == "guilt":
                found.setdefault(label.labeller, []).append(label)
        return {name: self._build_guilt(labels) for name, labels in found.items()}

    @property
    def is_labelled_again(self) -> bool:
        """Whether several people say who is guilty."""
        return len(self.guilt_by_labeller) > 1

    def _build_guilt(self, labels: Sequence[Label]) -> Guilt:
        return Guilt(
            agents=frozenset(label.agent for label in labels if label.agent is not None),
            positions=frozenset(self.positions[label.step] for label in labels if label.step is not None),
        )

    @cached_property
    def qualities(self) -> Mapping[int, float]:
        """The value of each labelled action by its position: 1 right, 0 neither, -1 wrong."""
        return {
            self.positions[label.step]: label.value
            for label in self.labels
            if label.kind == "quality" and label.step is not None and label.value is not None
        }

    @cached_property
    def categories(self) -> frozenset[str]:
        """The kinds of failure that the labels name, by our names."""
        labelled = {_fold(label.category) for label in self.labels if label.category is not None}
        return frozenset(
            name
            for name, category in CATEGORIES.items()
            if labelled & set(map(_fold, (name, *category.mast, *category.agentrx)))
        )

    @property
    def first_error(self) -> int | None:
        """Position of the first action that is labelled wrong; None if none is."""
        return min((position for position, value in self.qualities.items() if value < 0), default=None)

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """The position of each action by its step's id."""
        return {step.id: position for position, step in enumerate(self.steps)}


# Without a repr: asyncio.run of Python 3.11 builds that of what it returns, and scenes hold each other's steps.
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class LabelledRuns:
    """Labelled runs, those left out by reason, and whether the coach is shown the truth and what came later."""

    runs: tuple[LabelledRun, ...]
    left_out: Mapping[str, int]
    truth: bool
    hindsight: bool


def has_labels(folder: Path) -> bool:
    """Whether a run has labels. Raises RunError if it is no run folder."""
    with RunReader(folder) as reader:
        return bool(reader.labels())


async def read_labelled_runs(
    registry: Registry,
    folders: Sequence[Path],
    *,
    truth: bool = False,
    hindsight: bool = True,
    labeller: str | None = None,
    limit: int | None = None,
    trust: bool = False,
) -> LabelledRuns:
    """Read the labelled trajectories of run folders. Their workflows are built only where the truth is shown.

    Args:
        truth: show the coach the reference of the task.
        hindsight: show it the later actions and the outcome.
        labeller: whose labels count; None: those of any.
        limit: maximum number of runs, sampled from all of them.
        trust: trust the runs with what their workflows run and reach, as `restore_trusted` says.

    Raises:
        RunError, ConfigError, PluginError: a folder is no run, its workflow has to be built and is not installed or not
            trusted, no run has labels, nobody of this name labelled, or several people gave steps different values and
            none is chosen.
    """
    runs: list[LabelledRun] = []
    left_out: Counter[str] = Counter()
    for folder in dict.fromkeys(folders):
        with RunReader(folder) as reader:
            labels = _choose_labeller(reader.labels(), labeller, str(folder))
            async with open_shown_scenes(registry, folder, reader, truth=truth, trust=trust) as shown:
                for row in reader.trajectories:
                    trajectory = reader.trajectory(row.id)
                    own = labels.get(row.id, ())
                    if why := _exclusion_reason(trajectory, own):
                        left_out[why] += 1
                        continue
                    if is_imported(reader):
                        scenes = _build_scenes(trajectory, shown.agents, truth=truth, hindsight=hindsight)
                    else:
                        task = shown.find_task(trajectory.task, row.split)
                        scenes = await _show(shown, replace(trajectory, task=task), hindsight=hindsight)
                    runs.append(LabelledRun(name=f"{folder}:{row.id}", scenes=scenes, labels=tuple(own)))
    if not runs:
        raise RunError(f"no labelled rollout in {', '.join(map(str, folders))}")
    return LabelledRuns(runs=_sample(runs, limit), left_out=left_out, truth=truth, hindsight=hindsight)


def read_benchmark(
    benchmark: Benchmark,
    files: Sequence[Path],
    *,
    truth: bool = False,
    hindsight: bool = True,
    labeller: str | None = None,
    limit: int | None = None,
    label_files: Sequence[LabelFile] = (),
    mapping: LogMapping | None = None,
) -> LabelledRuns:
    """Read a public set of labelled failures from its files; arguments as for `read_labelled_runs`.

    Args:
        label_files: files with labels of other people on the same runs.
        mapping: the keys of these labels, and how they count steps.

    Raises:
        InputError: a file cannot be read, or is not of this set; the message names file, line and key.
        ConfigError: nothing in it is labelled, or as in `read_labelled_runs`.
    """
    logs, _ = read_logs(files, LogMapping(), benchmark)
    workflow = ImportedWorkflow(ImportedOptions(agents=dict.fromkeys(count_agents(logs), "")))
    runs: list[LabelledRun] = []
    left_out: Counter[str] = Counter()
    built, _ = join_label_files(
        build_trajectories([log for log in logs if log.acts]), label_files, mapping or LogMapping()
    )
    chosen = _choose_labeller([label for one in built for label in one.labels], labeller, str(files[0]))
    for one in built:
        labels = chosen.get(one.trajectory.id, ())
        if why := _exclusion_reason(one.trajectory, labels):
            left_out[why] += 1
            continue
        scenes = _build_scenes(one.trajectory, workflow.agents, truth=truth, hindsight=hindsight)
        runs.append(LabelledRun(name=f"{files[0]}:{one.trajectory.id}", scenes=scenes, labels=tuple(labels)))
    if not runs:
        raise ConfigError(f"{', '.join(map(str, files))}: no rollout in it is labelled")
    return LabelledRuns(runs=_sample(runs, limit), left_out=left_out, truth=truth, hindsight=hindsight)


def _choose_labeller(labels: Sequence[Label], labeller: str | None, place: str) -> dict[str, list[Label]]:
    """The labels of one labeller, or of all, by trajectory. Guilt may be judged by any of them; what a step is worth
    must be one value."""
    names = list(dict.fromkeys(label.labeller for label in labels))
    valued = list(dict.fromkeys(label.labeller for label in labels if label.kind == "quality"))
    if labeller is None and len(valued) > 1:
        raise ConfigError(f"{place}: steps are valued by {', '.join(valued)}: choose one with --labeller NAME")
    if labeller is not None and labeller not in names:
        raise ConfigError(f"--labeller {labeller}: {place} has labels of {', '.join(names) or 'nobody'}")
    found: dict[str, list[Label]] = {}
    for label in labels:
        if labeller in (None, label.labeller):
            found.setdefault(label.trajectory, []).append(label)
    return found


def _exclusion_reason(trajectory: Trajectory, labels: Sequence[Label]) -> str | None:
    """Why a rollout cannot be used; None if it can."""
    if not trajectory.steps:
        return NO_ACTION
    return None if labels else NO_LABEL


async def _show(stored: RecordedScenes, trajectory: Trajectory, *, hindsight: bool) -> tuple[Scene, ...]:
    scenes = stored.hindsight(trajectory) if hindsight else ()
    return tuple([await stored.with_truth(scene) for scene in scenes or stored.live(trajectory)])


def _build_scenes(
    trajectory: Trajectory, roles: Mapping[str, Role], *, truth: bool, hindsight: bool
) -> tuple[Scene, ...]:
    """Build the scenes of an imported trajectory. Its team is who acted in it: a log may hold other teams, too."""
    steps = trajectory.steps
    team = {step.agent: roles[step.agent] for step in steps}
    task = trajectory.task if truth else replace(trajectory.task, reference=None)
    return tuple(
        Scene(
            task=task,
            role=team[step.agent],
            step=step,
            team=team,
            earlier=steps[:position],
            later=steps[position + 1 :] if hindsight else None,
            outcome=trajectory.outcome if hindsight else None,
            metric=ImportedWorkflow.metric if hindsight else None,
        )
        for position, step in enumerate(steps)
    )


def _sample(runs: Sequence[LabelledRun], limit: int | None) -> tuple[LabelledRun, ...]:
    """Sample `limit` of the runs, in their order."""
    if limit is None or limit >= len(runs):
        return tuple(runs)
    return tuple(runs[place] for place in sorted(Random(_SEED).sample(range(len(runs)), limit)))
