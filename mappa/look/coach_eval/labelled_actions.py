"""Labelled actions, of recorded runs or from a file.

The file is JSON Lines, one action a line, as `store.to_json` writes a LabelledAction, and
`mappa coach eval --save` those of runs:

    {"scene": {"task": {…}, "role": {…}, "step": {…}, "team": {…}, "earlier": […]}, "label": 1.0, "trajectory": "…"}

`scene` is all that the coach is shown, so `scene.task.reference` holds the truth only if the coach may see it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Literal, TypeVar

import msgspec

from mappa.look.coach_eval.shown_scenes import open_shown_scenes
from mappa.runs import RunReader, TrajectoryRow
from mappa_core import ConfigError, InputError, RunError, Scene, Trajectory
from mappa_core.codec import from_json, to_json
from mappa_core.credit.counterfactual import Credit, counterfactual_credit
from mappa_core.credit.overflow import is_overflow, settle_overflow
from mappa_core.files import read_named_file, write_atomic
from mappa_core.plugins import Registry, did_you_mean

T = TypeVar("T")
LabelSource = Literal["outcome", "counterfactual"]
"""Source of an action's label: its trajectory's outcome, or its own counterfactual credit."""

_NO_OUTCOME = "no outcome"
MAX_LABELS_BYTES = 1 << 30
_SEED = 0
"""Fixed, so that a limit always samples the same trajectories."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelledAction:
    """An action as its coach sees it, and how good it was: it is right if its `label` is above 0.5 for an outcome, or
    above 0 for a credit. Actions of one `trajectory` are not independent of each other; the name is unique over all
    runs."""

    scene: Scene
    label: float
    trajectory: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LabelledSet:
    """Labelled actions; `left_out` counts by reason trajectories that did not end well, and actions without a label:
    their outcome, or their credit, is not known."""

    actions: tuple[LabelledAction, ...]
    left_out: Mapping[str, int]

    @property
    def agents(self) -> tuple[str, ...]:
        """Agents of the actions, in order of first occurrence."""
        return tuple(dict.fromkeys(action.scene.step.agent for action in self.actions))

    @property
    def truth_shown(self) -> tuple[str, ...]:
        """Agents whose coach sees the truth."""
        shown = (one.scene.step.agent for one in self.actions if one.scene.task.reference is not None)
        return tuple(dict.fromkeys(shown))

    def for_agents(self, agents: Collection[str]) -> LabelledSet:
        """Return the actions of these agents only.

        Raises:
            ConfigError: one of them has no action.
        """
        for name in agents:
            if name not in self.agents:
                raise ConfigError(f"--agent {name}: no labelled action is of it.{did_you_mean(name, self.agents)}")
        kept = tuple(action for action in self.actions if action.scene.step.agent in agents)
        return LabelledSet(actions=kept, left_out=self.left_out)


async def label_runs(
    registry: Registry,
    folders: Sequence[Path],
    limit: int | None = None,
    *,
    label_source: LabelSource = "outcome",
    trust: bool = False,
) -> LabelledSet:
    """Label the actions of the runs' trajectories that ended well with the workflow's metric of the trajectory, or with
    their counterfactual credit of it. What outgrew the window is unsolved where the run learned so (`credit.overflow`).
    Scenes are as the run's own coach saw them (`coach.reference_for`).

    Args:
        limit: maximum number of trajectories, sampled from all of them.
        trust: trust the runs with what their workflows run and reach, as `restore_trusted` says; they are built only
            where a coach of the run saw the truth.

    Raises:
        RunError, ConfigError, PluginError: a folder is no run, its workflow has to be built and is not installed or not
            trusted, or no action has a label.
    """
    with ExitStack() as stack:
        readers = {folder: stack.enter_context(RunReader(folder)) for folder in dict.fromkeys(folders)}
        rows = [(folder, row) for folder, reader in readers.items() for row in reader.trajectories]
        unsolved = {folder for folder, reader in readers.items() if reader.counts_overflows}
        ended = {(folder, row.id) for folder, row in rows if row.status == "done"}
        ended |= {(folder, row.id) for folder, row in rows if folder in unsolved and is_overflow(row.error)}
        drawn = _sample([(folder, row.id) for folder, row in rows if (folder, row.id) in ended], limit)
        left_out = Counter(_exclusion_reason(row) for folder, row in rows if (folder, row.id) not in ended)
        actions: list[LabelledAction] = []
        for folder, reader in readers.items():
            chosen = [name for one, name in drawn if one == folder]
            for action, why in await _label_run(registry, folder, reader, chosen, label_source, trust=trust):
                if action is None:
                    left_out[f"actions: {why}"] += 1
                else:
                    actions.append(action)
    if not actions and drawn and label_source == "counterfactual":
        raise RunError(
            f"no action in {', '.join(map(str, folders))} has a counterfactual credit: name runs that were trained "
            "with credit.counterfactual.use=resample, sibling or default"
        )
    if not actions:
        limited = "" if limit is None else f", among the {len(drawn):,} that --limit draws"
        raise RunError(f"no trajectory with an outcome in {', '.join(map(str, folders))}{limited}")
    return LabelledSet(actions=tuple(actions), left_out=left_out)


def read_labels(path: Path, limit: int | None = None) -> LabelledSet:
    """Read the labelled actions of a JSON Lines file; `limit` as in `label_runs`.

    Raises:
        InputError: the file cannot be read, is empty, or a line is no labelled action; the message names file and line.
    """
    lines = read_named_file(path, max_bytes=MAX_LABELS_BYTES).splitlines()
    actions = [
        _parse_line(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()
    ]
    if not actions:
        raise InputError(f"{path}: holds no labelled action; there is one JSON object a line")
    chosen = set(_sample(list(dict.fromkeys(action.trajectory for action in actions)), limit))
    return LabelledSet(actions=tuple(action for action in actions if action.trajectory in chosen), left_out={})


def write_labels(path: Path, labels: LabelledSet) -> None:
    """Write a file that `read_labels` reads. Raises InputError if it cannot be written."""
    write_atomic(path, b"".join(to_json(action) + b"\n" for action in labels.actions))


def _exclusion_reason(row: TrajectoryRow) -> str:
    return "not finished" if row.error is None else row.error.kind


def _sample(names: Sequence[T], limit: int | None) -> Sequence[T]:
    """Sample `limit` of the names, in their order; all of them if there are no more."""
    if limit is None or limit >= len(names):
        return names
    return [names[place] for place in sorted(Random(_SEED).sample(range(len(names)), limit))]


async def _label_run(
    registry: Registry, folder: Path, reader: RunReader, names: Sequence[str], label_source: LabelSource, *, trust: bool
) -> list[tuple[LabelledAction | None, str | None]]:
    """Label every action of the named trajectories of one run, or say why it has no label."""
    found: list[tuple[LabelledAction | None, str | None]] = []
    is_unsolved = reader.counts_overflows
    async with open_shown_scenes(registry, folder, reader, truth=None, trust=trust) as scenes:
        for name in names:
            trajectory = reader.trajectory(name)
            if is_unsolved:
                trajectory = settle_overflow(trajectory, scenes.metric)
            task = scenes.find_task(trajectory.task, reader.row(name).split)
            for scene in scenes.live(replace(trajectory, task=task)):
                label = _label(trajectory, scene.step.position, scenes.metric, label_source)
                if label.value is None:
                    found.append((None, label.reason))
                    continue
                shown = await scenes.with_truth(scene)
                found.append((LabelledAction(scene=shown, label=label.value, trajectory=f"{folder}:{name}"), None))
    return found


def _label(trajectory: Trajectory, position: int, metric: str, label_source: LabelSource) -> Credit:
    """The label of an action, or why there is none: an outcome may be missing, or not a number."""
    if label_source == "counterfactual":
        credit = counterfactual_credit(trajectory, position, metric)
    else:
        credit = Credit(value=trajectory.outcome.get(metric))
    if credit.value is not None and math.isfinite(credit.value):
        return credit
    return Credit(value=None, reason=credit.reason or _NO_OUTCOME)


def _parse_line(line: bytes, where: str) -> LabelledAction:
    try:
        action = from_json(LabelledAction, line)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{where}: not a labelled action: {error}") from error
    if not math.isfinite(action.label):
        raise InputError(f"{where}: the label is {action.label}; leave an action without one out")
    return action
