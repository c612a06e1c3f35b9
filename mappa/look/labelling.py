"""Labels of guilt that a person gives while looking at a run: which plays are left, what may be said, how it is kept.

A run has one writer. A labeller takes the run's lock for the moment of each label, so that a run that is being
written is refused; a label is kept as soon as it is given, and replaces what the same person said of that play before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

from mappa.look.coach_eval.agreement import LabelledPlay, LabellerAgreement, measure_agreement
from mappa.look.importing.add_plays import IMPORT_EVENT
from mappa.runs import RunReader, TrajectoryRow
from mappa.store.folder import RunFolder
from mappa_core import ConfigError, RunError, Trajectory
from mappa_core.plugins import did_you_mean
from mappa_core.records import BLAME_BESIDE_AGENTS, Label

SUCCESS = 1.0
MAX_REASON = 10_000
"""Characters of a reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSummary:
    """What people said of a run so far: `labelled` of its `plays` by `labeller`, whom they name by how often, and how
    far those who labelled the same plays agree."""

    labeller: str
    plays: int
    labelled: int
    blamed: Mapping[str, int]
    agreement: LabellerAgreement | None


def login_name() -> str:
    """The name of who is logged in. Raises ConfigError if the system knows none."""
    try:
        return getuser()
    except (OSError, KeyError, ImportError):
        raise ConfigError("the system names nobody who is logged in: say who labels with --labeller NAME") from None


def check_labeller(reader: RunReader, name: str) -> str:
    """The name, if it is a labeller's own. Raises ConfigError if labels of that name came with the log: labelling under
    it would replace what somebody else said."""
    name = name.strip()
    if not name:
        raise ConfigError("--labeller: the name is empty")
    imported = {labeller for event in reader.events(IMPORT_EVENT) for labeller in event.body.get("labellers", ())}
    if name in imported:
        raise ConfigError(
            f"--labeller {name}: labels of that name came with the log, and two labellers under one name cannot be "
            "told apart: choose another name"
        )
    return name


def plays_to_label(reader: RunReader, labeller: str) -> list[TrajectoryRow]:
    """The ended plays that the labeller said nothing of yet, in order. Those that succeeded by every known outcome are
    left out: nobody failed there."""
    done = {label.trajectory for label in reader.labels() if label.kind == "guilt" and label.labeller == labeller}
    return [row for row in labelled_plays(reader) if row.id not in done]


def labelled_plays(reader: RunReader) -> list[TrajectoryRow]:
    """The plays that are there to be labelled: ended, with an action, and no success."""
    return [row for row in reader.trajectories if row.status != "open" and row.steps and not _succeeded(row)]


def _succeeded(row: TrajectoryRow) -> bool:
    return row.error is None and bool(row.outcome) and all(value >= SUCCESS for value in row.outcome.values())


def whom_to_blame(trajectory: Trajectory) -> list[str]:
    """Whom a label of the play may name: the agents that acted, in order, and those who are none."""
    agents = dict.fromkeys(step.agent for step in trajectory.steps)
    return [*agents, *sorted(BLAME_BESIDE_AGENTS - set(agents))]


def build_label(trajectory: Trajectory, labeller: str, who: str, step: int | None, reason: str) -> Label:
    """A label of guilt. `step` is the number of an action, the first one is 1.

    Raises:
        ConfigError: nobody of that name acted, or there is no such step; the message says who and which there are.
    """
    names = whom_to_blame(trajectory)
    if who not in names:
        raise ConfigError(f"{who!r} did not act here; to blame may be {', '.join(names)}.{did_you_mean(who, names)}")
    last = len(trajectory.steps)
    if step is not None and not 1 <= step <= last:
        raise ConfigError(f"there is no step {step}: the play has the steps 1 to {last}")
    if len(reason) > MAX_REASON:
        raise ConfigError(f"the reason has {len(reason):,} characters, and may have {MAX_REASON:,}")
    place = None if step is None else trajectory.steps[step - 1].id
    return Label(kind="guilt", trajectory=trajectory.id, step=place, agent=who, reason=reason, labeller=labeller)


def store_label(folder: Path, label: Label) -> None:
    """Keep a label in place of what its labeller said of the play before. Raises RunError if the run is being written,
    or cannot be."""
    with RunReader(folder) as reader:
        scratch = reader.settings.get("store.scratch")
    with RunFolder.open(folder, scratch=None if scratch is None else Path(str(scratch))) as run:
        run.store.replace_label(label)


def find_play(reader: RunReader, wanted: str) -> Trajectory:
    """The play of an id, or of a part of it that only one has. Raises RunError for none or several."""
    ids = [row.id for row in reader.trajectories]
    found = [wanted] if wanted in ids else [name for name in ids if wanted in name]
    if len(found) != 1:
        several = f"{len(found):,} plays have {wanted!r} in their id" if found else f"no play is called {wanted!r}"
        raise RunError(f"{reader.folder}: {several}; mappa runs show {reader.folder} lists them")
    return reader.trajectory(found[0])


def summarize_labels(reader: RunReader, labeller: str) -> LabelSummary:
    """Count what people said of the run."""
    by_play: dict[str, list[Label]] = {}
    for label in reader.labels():
        if label.kind == "guilt":
            by_play.setdefault(label.trajectory, []).append(label)
    own = [label for labels in by_play.values() for label in labels if label.labeller == labeller]
    several = [name for name, labels in by_play.items() if len({label.labeller for label in labels}) > 1]
    return LabelSummary(
        labeller=labeller,
        plays=len({row.id for row in labelled_plays(reader)} | {label.trajectory for label in own}),
        labelled=len({label.trajectory for label in own}),
        blamed=dict(Counter(label.agent for label in own if label.agent is not None).most_common()),
        agreement=measure_agreement([_labelled_play(reader, name, by_play[name]) for name in several]),
    )


def _labelled_play(reader: RunReader, name: str, labels: Sequence[Label]) -> LabelledPlay:
    trajectory = reader.trajectory(name)
    return LabelledPlay(
        labels=labels,
        positions={step.id: place for place, step in enumerate(trajectory.steps)},
        cluster=trajectory.task.cluster or trajectory.task.id,
    )
