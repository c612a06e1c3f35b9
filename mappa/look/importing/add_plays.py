"""Adds what is new in a source of plays to a run that was imported: plays, labels, tasks and the summary."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from mappa.config.compose import read_stored
from mappa.look.importing.formats import FORMATS
from mappa.look.importing.import_result import (
    ImportResult,
    count_agents,
    count_entries,
    count_labels,
    find_log_problems,
)
from mappa.look.importing.imported_config import (
    CORE,
    TASKS_FILE,
    build_config,
    models_by_agent,
    resolve_config,
    write_config,
)
from mappa.look.importing.label_files import LabelFile, join_label_files
from mappa.look.importing.ledger import count_by_file
from mappa.look.importing.log_mapping import IMPORT_METRIC, Format, LoggedTrajectory, LogMapping
from mappa.look.importing.offers import IMPORT_RECIPE
from mappa.look.importing.play_sources import (
    PLAY,
    LoggedPlay,
    NewPlays,
    PlayNote,
    PlaySource,
    digest_begin,
    digest_play,
)
from mappa.look.importing.read_logs import check_agents
from mappa.look.importing.trajectories import (
    IMPORT_SPLIT,
    ImportedTrajectory,
    build_trajectory,
    name_samples,
    name_task,
    separate_tasks,
)
from mappa.store.agent_columns import AgentSummary
from mappa.store.folder import RunFolder
from mappa.store.summary import Summary, write_summary
from mappa_core import Step, Task
from mappa_core.files import damage_reported, storage_errors
from mappa_core.plugins import Registry
from mappa_core.safe_files import open_own

IMPORT_EVENT = "imported"
KEEPS_NOTE, TALLY_NOTE, TASKS_NOTE = "import", "tally", "tasks"
"""Notes of an imported run: how it was imported, what its agents did, and the bytes of its file of tasks."""


class ImportKeeps(msgspec.Struct):
    """How a run was imported, which is how what is added to it is read."""

    format: Format
    mapping: LogMapping


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelJoin:
    """Files of labels that are joined to the plays that are imported now, and how they are read."""

    files: Sequence[LabelFile] = ()
    mapping: LogMapping = field(default_factory=LogMapping)


def add_plays(
    registry: Registry, source: PlaySource, folder: RunFolder, *, labels: LabelJoin | None = None
) -> ImportResult:
    """Add what is new in a source to a run that was imported. Raises as `import_logs`."""
    keeps = folder.store.note(KEEPS_NOTE, ImportKeeps)
    assert keeps is not None  # callers open imported runs
    found = source.read_new(folder.store)
    logs = [play.log for play in found.plays]
    stored = read_stored(folder.path).settings.plain
    with damage_reported(folder.path):
        briefs = dict(stored["workflow"]["options"]["agents"])
        models = {agent: policy["model"] for agent, policy in stored["policies"].items() if agent in briefs}
    check_agents(logs, briefs)
    told = models_by_agent(logs)
    if count_agents(logs).keys() - briefs.keys() or any(models.get(agent) != model for agent, model in told.items()):
        # Before the plays: a team may name an agent that does nothing, but no agent may act that it does not name.
        briefs = {**briefs, **dict.fromkeys(count_agents(logs).keys() - briefs.keys(), "")}
        config = build_config(folder.path, briefs, {**models, **told}, origin=source.name)
        write_config(registry, folder, config)
    return record_plays(registry, source, found, folder, labels or LabelJoin(), keeps.format)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ChangedPlay:
    """A play that is new, or went on since it was read as `known`."""

    play: LoggedPlay
    known: PlayNote | None
    digest: str
    log: LoggedTrajectory
    """As it is recorded, with the id of its task."""


def record_plays(
    registry: Registry, source: PlaySource, found: NewPlays, folder: RunFolder, labels: LabelJoin, chosen: Format
) -> ImportResult:
    store = folder.store
    changed = _find_changed(found.plays, folder)
    built = _build_trajectories(changed, folder)
    imported, unjoined = join_label_files(
        [one for one in built if one is not None],
        labels.files,
        labels.mapping,
        is_whole=store.note(TASKS_NOTE, int) is None,
    )
    logs, joined = [one.log for one in changed], iter(imported)
    ledgers = count_by_file(logs)
    recorded = [None if one is None else next(joined) for one in built]
    with store.together():
        tally = store.note(TALLY_NOTE, dict[str, _AgentTally]) or {}
        for one, made in zip(changed, recorded, strict=True):
            if made is not None:
                _record_play(folder, one, made, tally)
            note = PlayNote(
                trajectory=None if made is None else made.trajectory.id,
                digest=one.digest,
                begin=digest_begin(one.play.log, len(one.play.log.acts)),
                actions=len(one.play.log.acts),
                places=one.play.places,
            )
            store.set_note(PLAY + one.play.key, note)
        for name, value in found.notes.items():
            store.set_note(name, value)
        if changed:
            store.set_note(TALLY_NOTE, tally)
            labellers = sorted({label.labeller for one in imported for label in one.labels})
            store.record_event(
                IMPORT_EVENT,
                file=source.name,
                format=chosen,
                trajectories=len(imported),
                labellers=labellers,
                ledgers=msgspec.to_builtins(ledgers),
            )
        _add_tasks(folder, _first_of_their_task(changed, recorded))
    if changed:
        _write_summary(registry, folder, tally)
    return ImportResult(
        folder=folder.path,
        format=chosen,
        is_new=False,
        trajectories=len(imported),
        recorded=tuple(one.trajectory.id for one in imported),
        went_on=sum(one.known is not None and one.known.trajectory is not None for one in changed),
        tasks=len({one.trajectory.task.id for one in imported}),
        measured=sum(IMPORT_METRIC in one.trajectory.outcome for one in imported),
        agents=count_agents(logs),
        counts=count_entries(logs, FORMATS[chosen].entries),
        ledgers=ledgers,
        labels=count_labels(imported),
        problems=(*unjoined, *find_log_problems(logs)),
        unfinished=found.unfinished,
    )


def _find_changed(plays: Sequence[LoggedPlay], folder: RunFolder) -> list[_ChangedPlay]:
    """The plays that are new or went on, with ids of tasks that are those of one text."""
    store, changed = folder.store, []
    for play in plays:
        known, digest = store.note(PLAY + play.key, PlayNote), digest_play(play.log)
        if known is None or known.digest != digest:
            changed.append((play, known, digest))
    logs = separate_tasks([play.log for play, _, _ in changed], lambda name: store.find_task(name_samples(name)))
    return [
        _ChangedPlay(play=play, known=known, digest=digest, log=log)
        for (play, known, digest), log in zip(changed, logs, strict=True)
    ]


def _build_trajectories(changed: Sequence[_ChangedPlay], folder: RunFolder) -> list[ImportedTrajectory | None]:
    """The trajectory of each play, the next sample of its task; that of one that went on is the same sample. None for a
    play without an action."""
    samples: dict[str, int] = {}
    built: list[ImportedTrajectory | None] = []
    for one in changed:
        if not one.log.acts:
            built.append(None)
            continue
        prefix = name_samples(name_task(one.log))
        former = None if one.known is None else one.known.trajectory
        if former is not None and former.startswith(prefix):
            sample = int(former.removeprefix(prefix))
        else:
            sample = samples[prefix] if prefix in samples else folder.store.next_sample(prefix)
            samples[prefix] = sample + 1
        built.append(build_trajectory(one.log, sample))
    return built


def _record_play(
    folder: RunFolder, changed: _ChangedPlay, made: ImportedTrajectory, tally: dict[str, _AgentTally]
) -> None:
    store, trajectory = folder.store, made.trajectory
    former = None if changed.known is None else changed.known.trajectory
    if former is None:
        store.begin_trajectory(IMPORT_SPLIT, trajectory.id, trajectory.task, trajectory.sample, trajectory.iteration)
    else:
        labellers = {label.labeller for label in made.labels}
        _count_steps(tally, store.reopen_trajectory(former, trajectory, labellers), -1)
    for step in trajectory.steps:
        store.record_step(trajectory.id, step)
    store.end_trajectory(trajectory)
    for label in made.labels:
        store.record_label(label)
    _count_steps(tally, trajectory.steps, 1)


class _AgentTally(msgspec.Struct):
    """What an agent did in all plays: its actions, plays in which it acted, results of its tools, and those that are
    good. Figures of it are made of these, so that no play is read again for them."""

    actions: int = 0
    plays: int = 0
    results: int = 0
    good: int = 0

    def add(self, steps: Sequence[Step], sign: int) -> None:
        """Count the steps of the agent in one play, or with `sign` -1 take them back."""
        results = [result for step in steps for result in step.results]
        self.actions += sign * len(steps)
        self.plays += sign
        self.results += sign * len(results)
        self.good += sign * sum(result.status == "ok" for result in results)

    def summarize(self) -> AgentSummary:
        return AgentSummary(
            turns=self.actions / self.plays if self.plays else None,
            tool_success=self.good / self.results if self.results else None,
        )


def _count_steps(tally: dict[str, _AgentTally], steps: Sequence[Step], sign: int) -> None:
    for agent in dict.fromkeys(step.agent for step in steps):
        tally.setdefault(agent, _AgentTally()).add([step for step in steps if step.agent == agent], sign)


def _first_of_their_task(changed: Sequence[_ChangedPlay], recorded: Sequence[ImportedTrajectory | None]) -> list[Task]:
    """The tasks of which nothing was recorded before."""
    return [
        made.trajectory.task
        for one, made in zip(changed, recorded, strict=True)
        if made is not None
        and made.trajectory.sample == 0
        and (one.known is None or one.known.trajectory != made.trajectory.id)
    ]


def _add_tasks(folder: RunFolder, tasks: Sequence[Task]) -> None:
    """Write tasks as lines that `tasks.use: file` reads, where the lines end that the run knows: after a kill there may
    be others behind them."""
    size = folder.store.note(TASKS_NOTE, int) or 0
    lines = _encode_tasks(tasks)
    with storage_errors(folder.path / TASKS_FILE):
        handle = open_own(folder.path, TASKS_FILE)
        try:
            os.ftruncate(handle, size)
            os.pwrite(handle, lines, size)
        finally:
            os.close(handle)
    folder.store.set_note(TASKS_NOTE, size + len(lines))


def _encode_tasks(tasks: Sequence[Task]) -> bytes:
    rows = ({"id": task.id, "prompt": task.prompt, "answer": task.reference, "stratum": task.stratum} for task in tasks)
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _write_summary(registry: Registry, folder: RunFolder, tally: Mapping[str, _AgentTally]) -> None:
    composed = resolve_config(registry, folder)
    summary = Summary(
        plugin=CORE,
        recipe=IMPORT_RECIPE,
        recipe_hash=composed.recipe_hash,
        seed=composed.config.seed,
        status="done",
        agents={agent: one.summarize() for agent, one in tally.items()},
    )
    write_summary(folder.path, summary)
