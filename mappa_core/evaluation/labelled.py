"""Actions whose truth is known: those of recorded runs, and those of a file.

The file is JSON Lines, one action a line, as `store.to_json` writes a Labelled and `mappa coach eval --save` a run's:

    {"scene": {"task": {…}, "role": {…}, "step": {…}, "team": {…}, "earlier": […]}, "label": 1.0, "trajectory": "…"}

`scene` is all that the coach is shown, so the truth is in `scene.task.reference` only where it may see it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, TypeVar

import msgspec

from mappa_core.config.compose import restore
from mappa_core.credit.counterfactual import Credit, credit_of
from mappa_core.errors import ConfigError, InputError, RunError
from mappa_core.plugins import Registry, choices
from mappa_core.protocols import Workflow
from mappa_core.records import Scene, Trajectory
from mappa_core.rollout.scenes import scenes, told
from mappa_core.session import open_bench
from mappa_core.store.codec import from_json, to_json
from mappa_core.store.folder import CONFIG, FILES
from mappa_core.store.reader import Reader, TrajectoryRow

T = TypeVar("T")
Against = Literal["outcome", "counterfactual"]
"""What an action is labelled with: its trajectory's outcome, or its own counterfactual credit."""

SEED = 0
"""Of the draw of trajectories, so that a limit chooses the same ones every time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labelled:
    """An action as its coach sees it, and how good it was: a `label` above 0.5 is a right one where it is an outcome,
    and one above 0 where it is a credit. Actions of one `trajectory` are not independent of each other; the name is
    unique over all runs."""

    scene: Scene
    label: float
    trajectory: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Labels:
    """Labelled actions; `left_out` counts trajectories without an outcome, and actions without a credit where that is
    the label, by reason."""

    actions: tuple[Labelled, ...]
    left_out: Mapping[str, int]

    @property
    def agents(self) -> tuple[str, ...]:
        """Whose actions these are, in the order of their first."""
        return tuple(dict.fromkeys(action.scene.step.agent for action in self.actions))

    @property
    def truth_shown(self) -> tuple[str, ...]:
        """Agents whose coach sees the truth."""
        shown = (one.scene.step.agent for one in self.actions if one.scene.task.reference is not None)
        return tuple(dict.fromkeys(shown))

    def of(self, agents: Collection[str]) -> Labels:
        """The actions of these agents alone.

        Raises:
            ConfigError: one of them has none.
        """
        for name in agents:
            if name not in self.agents:
                raise ConfigError(f"--agent {name}: no labelled action is of it.{choices(name, self.agents)}")
        kept = tuple(action for action in self.actions if action.scene.step.agent in agents)
        return Labels(actions=kept, left_out=self.left_out)


async def labels_of_runs(
    registry: Registry, folders: Sequence[Path], limit: int | None = None, *, against: Against = "outcome"
) -> Labels:
    """The actions of the runs' trajectories that have an outcome; each is labelled with the workflow's metric of its
    trajectory, or what of it counterfactual rollouts credit to the action, and shown as the run's own coach saw it
    (`coach.reference_for`).

    Args:
        limit: trajectories at most, drawn from all of them.

    Raises:
        RunError, ConfigError, PluginError: a folder is no run, or its workflow is not installed.
    """
    with ExitStack() as stack:
        readers = {folder: stack.enter_context(Reader(folder)) for folder in dict.fromkeys(folders)}
        rows = [(folder, row) for folder, reader in readers.items() for row in rows_of(reader)]
        drawn = _drawn([(folder, row.id) for folder, row in rows if row.status == "done"], limit)
        left_out = Counter(_why(row) for _, row in rows if row.status != "done")
        actions: list[Labelled] = []
        for folder, reader in readers.items():
            chosen = [name for one, name in drawn if one == folder]
            for action, why in await _labelled(registry, folder, reader, chosen, against):
                if action is None:
                    left_out[f"actions: {why}"] += 1
                else:
                    actions.append(action)
    if not actions and drawn:
        raise RunError(
            f"no action in {', '.join(map(str, folders))} has a counterfactual credit: name runs that were trained "
            "with credit.counterfactual.use=resample, sibling or default"
        )
    if not actions:
        raise RunError(f"no trajectory with an outcome in {', '.join(map(str, folders))}")
    return Labels(actions=tuple(actions), left_out=left_out)


def labels_of_file(path: Path, limit: int | None = None) -> Labels:
    """The labelled actions of a JSON Lines file; `limit` as in `labels_of_runs`.

    Raises:
        InputError: the file cannot be read, is empty, or a line is no labelled action; the message names file and line.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    actions = [_of_line(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not actions:
        raise InputError(f"{path}: holds no labelled action; there is one JSON object a line")
    chosen = set(_drawn(list(dict.fromkeys(action.trajectory for action in actions)), limit))
    return Labels(actions=tuple(action for action in actions if action.trajectory in chosen), left_out={})


def save_labels(path: Path, labels: Labels) -> None:
    """Write a file that `labels_of_file` reads. Raises InputError where it cannot be written."""
    try:
        path.write_bytes(b"".join(to_json(action) + b"\n" for action in labels.actions))
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror}") from error


def rows_of(reader: Reader, split: str | None = None, iteration: int | None = None) -> list[TrajectoryRow]:
    """Every trajectory of a run, listed."""
    return reader.trajectories(split, iteration, limit=sum(reader.counts(split, iteration).values()))


def _why(row: TrajectoryRow) -> str:
    return "not finished" if row.error is None else row.error.kind


def _drawn(names: Sequence[T], limit: int | None) -> Sequence[T]:
    """`limit` of the names at random, in their old order; all of them where there are no more."""
    if limit is None or limit >= len(names):
        return names
    return [names[place] for place in sorted(Random(SEED).sample(range(len(names)), limit))]


async def _labelled(
    registry: Registry, folder: Path, reader: Reader, names: Sequence[str], against: Against
) -> list[tuple[Labelled | None, str | None]]:
    """Every action of the named trajectories of one run, or why it has no label."""
    config = restore(registry, folder / CONFIG).config
    workflow: Workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
    found: list[tuple[Labelled | None, str | None]] = []
    try:
        async with open_bench(config, registry, folder / FILES) as bench:
            for name in names:
                trajectory = reader.trajectory(name)
                for scene in scenes(trajectory, workflow.agents, reference_for=config.coach.reference_for):
                    label = _label(trajectory, scene.step.position, workflow.metric, against)
                    if label.value is None:
                        found.append((None, label.why))
                        continue
                    shown = await told(scene, workflow, bench)
                    found.append((Labelled(scene=shown, label=label.value, trajectory=f"{folder}:{name}"), None))
            return found
    finally:
        await workflow.close()


def _label(trajectory: Trajectory, position: int, metric: str, against: Against) -> Credit:
    if against == "counterfactual":
        return credit_of(trajectory, position, metric)
    return Credit(value=trajectory.outcome[metric])


def _of_line(line: bytes, where: str) -> Labelled:
    try:
        action = from_json(Labelled, line)
    except (msgspec.DecodeError, ValueError, TypeError) as error:
        raise InputError(f"{where}: not a labelled action: {error}") from error
    if not math.isfinite(action.label):
        raise InputError(f"{where}: the label is {action.label}; leave an action without one out")
    return action
