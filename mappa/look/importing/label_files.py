"""Reads files of labels that lie beside a log, and joins them to its rollouts by their names.

Who&When's own keys and those of AgentRx are found from the lines; any others are named by the mapping.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mappa.look.importing.documents import Document, read_documents
from mappa.look.importing.labels import read_logged_labels
from mappa.look.importing.log_mapping import LogFormatError, LogMapping, lookup
from mappa.look.importing.trajectories import PEOPLE, RUN_NAME, ImportedTrajectory, build_labels
from mappa_core import InputError, Trajectory
from mappa_core.records import Label

NAME_KEYS = ("trajectory_id", "source", "run", "trajectory", "task_id", "id", "question_ID")
"""Where the name of the rollout is looked for, in this order, unless the mapping names a key."""
MAX_SHOWN_NAMES = 3
_ROOT_CAUSE = "failures[failure_id=root_cause.failure_id]"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFile:
    """A file of labels, and who gave those of its lines that do not name their labeller."""

    path: Path
    labeller: str


def parse_label_file(word: str) -> LabelFile:
    """Parse `[NAME=]FILE`. Without a name it is the file's, up to its first dot."""
    name, equals, path = word.partition("=")
    # A path may hold an equals sign, too; a name holds no slash.
    if equals and name and "/" not in name:
        return LabelFile(path=Path(path), labeller=name)
    return LabelFile(path=Path(word), labeller=Path(word).name.partition(".")[0])


def join_label_files(
    imported: Sequence[ImportedTrajectory], files: Sequence[LabelFile], mapping: LogMapping, *, is_whole: bool = True
) -> tuple[list[ImportedTrajectory], tuple[str, ...]]:
    """The rollouts with the labels of `files` beside their own, and what was not understood, with its place. Those that
    are added to a run are not the whole of it (`is_whole`): then no label may be of them.

    Raises:
        InputError: a file cannot be read, none of its lines is about one of the rollouts, a line could be about several
            of them or names a step that its rollout does not have, or two labellers have one name.
    """
    found: dict[str, list[Label]] = {}
    places: dict[tuple[str, str, str], str] = {}
    for one in imported:
        for label in one.labels:
            places[label.trajectory, label.labeller, label.kind] = f"{one.log.place} itself"
    problems: list[str] = []
    by_name = _group_by_name(imported)
    for file in files:
        lines = [_read_line(document, file, mapping, by_name) for document in read_documents([file.path])]
        known = [line for line in lines if line.rollout is not None]
        if not known and is_whole:
            raise InputError(_no_match(file, lines, by_name))
        if len(known) < len(lines):
            first = next(line for line in lines if line.rollout is None)
            problems.append(f"{first.place}: {len(lines) - len(known):,} labels are of rollouts that are not here")
        for line in known:
            labels, said = line.read()
            problems += said
            for label in labels:
                _claim(places, label, line.place)
                found.setdefault(label.trajectory, []).append(label)
    joined = [replace(one, labels=(*one.labels, *found.get(one.trajectory.id, ()))) for one in imported]
    return joined, tuple(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """A line of a file of labels, and the rollout that it is about; None: it is not here."""

    row: Mapping[str, Any]
    place: str
    name: str
    labeller: str
    mapping: LogMapping
    rollout: ImportedTrajectory | None

    def read(self) -> tuple[tuple[Label, ...], list[str]]:
        """Its labels, and what was not understood."""
        assert self.rollout is not None  # only these are read
        log, trajectory = self.rollout.log, self.rollout.trajectory
        agents = {act.number: act.agent for act in log.acts if act.number is not None}
        try:
            labels = read_logged_labels(self.row, self.mapping, messages=log.entries, agents=agents)
        except LogFormatError as problem:
            raise InputError(f"{self.place}: {problem}") from None
        made = build_labels(trajectory, replace(log, labels=labels), labeller=self.labeller)
        return made, [f"{self.place}: {problem}; this label is left out" for problem in labels.problems]


def _group_by_name(imported: Sequence[ImportedTrajectory]) -> dict[str, list[ImportedTrajectory]]:
    """Rollouts by each of their names: that in the log, the task's, and the id."""
    by_name: dict[str, list[ImportedTrajectory]] = {}
    for one in imported:
        for name in _names_of(one.trajectory):
            by_name.setdefault(name, []).append(one)
    return by_name


def _names_of(trajectory: Trajectory) -> set[str]:
    return {str(trajectory.task.meta[RUN_NAME]), trajectory.task.id, trajectory.id}


def _read_line(
    document: Document, file: LabelFile, mapping: LogMapping, by_name: Mapping[str, Sequence[ImportedTrajectory]]
) -> _Line:
    row, place = document.row, document.place
    mapping = _with_known_keys(row, mapping)
    keys = NAME_KEYS if mapping.labels_of is None else (mapping.labels_of,)
    name = next((str(value) for key in keys if (value := lookup(row, key)) not in (None, "")), None)
    if name is None:
        there = ", ".join(sorted(row)) or "no keys"
        raise InputError(f"{place}: nothing names the rollout; here are {there}: name the right key with --labels-of")
    about = by_name.get(name, ())
    if len(about) > 1:
        runs = ", ".join(one.trajectory.id for one in about[:MAX_SHOWN_NAMES])
        raise InputError(
            f"{place}: {name} may be one of {len(about):,} rollouts ({runs}): name a key that tells them apart with "
            "--labels-of"
        )
    return _Line(
        row=row,
        place=place,
        name=name,
        labeller=file.labeller if mapping.labelled_by is None else _read_labeller(row, mapping.labelled_by, place),
        mapping=mapping,
        rollout=about[0] if about else None,
    )


def _with_known_keys(row: Mapping[str, Any], mapping: LogMapping) -> LogMapping:
    """The mapping with the keys of a known kind of file, where it names no others."""
    if isinstance(row.get("failures"), list) and isinstance(row.get("root_cause"), Mapping):
        return mapping.with_defaults(
            guilty_agent=f"{_ROOT_CAUSE}.failed_agent",
            guilty_step=f"{_ROOT_CAUSE}.step_number",
            guilt_reason=f"{_ROOT_CAUSE}.step_reason",
            guilt_category=f"{_ROOT_CAUSE}.failure_category",
            steps_from=1,
        )
    if "mistake_agent" in row or "mistake_step" in row:
        return mapping.with_defaults(
            guilty_agent="mistake_agent", guilty_step="mistake_step", guilt_reason="mistake_reason"
        )
    return mapping


def _read_labeller(row: Mapping[str, Any], key: str, place: str) -> str:
    name = lookup(row, key)
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"{place}: {key}: no name of a labeller, and --labelled-by names it: {name!r}")
    return name


def _claim(places: dict[tuple[str, str, str], str], label: Label, place: str) -> None:
    """Note who labelled what. Raises InputError where somebody of that name did in another place."""
    first = places.setdefault((label.trajectory, label.labeller, label.kind), place)
    if first == place:
        return
    advice = f"of {PEOPLE}: give the other labeller a name" if label.labeller == PEOPLE else "of two labellers"
    raise InputError(
        f"{place}: {label.labeller} labelled this rollout already, in {first}: if these are labels {advice}, name the "
        "file's with --labels NAME=FILE or the key of the name in its lines with --labelled-by; else leave one out"
    )


def _no_match(file: LabelFile, lines: Sequence[_Line], by_name: Mapping[str, object]) -> str:
    named = ", ".join(line.name for line in lines[:MAX_SHOWN_NAMES])
    here = ", ".join(list(by_name)[:MAX_SHOWN_NAMES])
    return (
        f"{file.path}: none of its {len(lines):,} labels is of a rollout here: they are of {named}, and the rollouts "
        f"are called {here}: name the key of the label's with --labels-of, or of the log's with --task-id"
    )
