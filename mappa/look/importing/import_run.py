"""Imports logs as a run folder, which can be observed, judged, viewed and reported like any other, and adds to it what
came since."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path

import msgspec

from mappa.config.compose import read_stored
from mappa.config.yaml_io import format_yaml
from mappa.look.importing.documents import read_documents
from mappa.look.importing.formats import FORMATS, find_format
from mappa.look.importing.label_files import LabelFile, join_label_files
from mappa.look.importing.log_mapping import IMPORT_METRIC, Format, LoggedTrajectory, LogMapping
from mappa.look.importing.offers import IMPORT_RECIPE, ImportedWorkflow
from mappa.look.importing.play_sources import (
    PLAY,
    LogFiles,
    LoggedPlay,
    NewPlays,
    NoNotes,
    PlayNote,
    PlaySource,
    digest_begin,
    digest_play,
    parse_documents,
)
from mappa.look.importing.trajectories import (
    IMPORT_SPLIT,
    ImportedTrajectory,
    build_trajectory,
    name_samples,
    name_task,
    separate_tasks,
)
from mappa.session.trust import restore_trusted
from mappa.store.agent_columns import AgentSummary
from mappa.store.folder import RunFolder, is_run_folder
from mappa.store.summary import Summary, write_summary
from mappa.store.team_record import TeamRecord
from mappa_core import NOBODY, InputError, RunError, Step, Task
from mappa_core.config.agent_names import describe_name_fault
from mappa_core.config.layers import with_origin
from mappa_core.files import damage_reported, storage_errors
from mappa_core.plugins import Registry
from mappa_core.records import BLAME_BESIDE_AGENTS
from mappa_core.redaction import clean_name
from mappa_core.safe_files import open_own
from mappa_core.tools.owned_folder import OwnedFolder

CORE = "core"
"""The plugin that an imported run names."""
IMPORT_EVENT = "imported"
TASKS_FILE = "tasks.jsonl"
KEEPS_NOTE, TALLY_NOTE, TASKS_NOTE = "import", "tally", "tasks"
"""Notes of an imported run: how it was imported, what its agents did, and the bytes of its file of tasks."""
MAX_NAME = 40
"""Characters of the name of a log in that of its run."""
UNKNOWN_MODEL = "unknown"
"""The model of an agent for which the log names none."""
MISMATCH = "the guilty agent is another one than acted in the guilty step"
ABSENT = "the guilty agent acts nowhere"


class NoPlaysError(InputError):
    """There is no action in a log, which may come yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportCounts:
    """What went in and what came out: of the `entries` of a log (`unit`: messages or spans) `actions` are actions, and
    the others are counted in `left_out`, by reason. `without_text` rollouts have labels alone; rollouts
    `without_action` are not imported."""

    unit: str
    entries: int
    actions: int
    left_out: Mapping[str, int]
    without_text: int
    without_action: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCounts:
    """Labels: rollouts with a guilty agent and with a guilty step, labelled steps by value, rollouts with a value of
    the whole, and rollouts whose labels say something odd, by what it is."""

    agents: int
    steps: int
    values: Mapping[str, int]
    wholes: int
    odd: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """The result of an import. Of its `trajectories`, which are new or `went_on` since they were read, `measured` have
    the outcome `correct`, the metric of the run. `problems` are what was not understood, with places: labels that were
    left out, scores that cannot be `correct`, and keys that mean nothing to the format; `unfinished` is what is still
    being written, and read the next time."""

    folder: Path
    format: Format
    is_new: bool
    """Whether the run was made now, and not added to."""
    trajectories: int
    recorded: tuple[str, ...]
    """Ids of the trajectories."""
    went_on: int
    tasks: int
    measured: int
    agents: dict[str, int]
    """Actions by agent."""
    counts: ImportCounts
    labels: LabelCounts
    problems: tuple[str, ...]
    unfinished: tuple[str, ...]


class _Keeps(msgspec.Struct):
    """How a run was imported, which is how what is added to it is read."""

    format: Format
    mapping: LogMapping


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelJoin:
    """Files of labels that are joined to the plays that are imported now, and how they are read."""

    files: Sequence[LabelFile] = ()
    mapping: LogMapping = field(default_factory=LogMapping)


def import_logs(
    registry: Registry,
    paths: Sequence[Path],
    mapping: LogMapping,
    *,
    root: Path,
    name: str | None = None,
    file_format: Format | None = None,
    label_files: Sequence[LabelFile] = (),
    trust: bool = False,
) -> ImportResult:
    """Import the logs at `paths` (files, folders, patterns of names) as one run in `root`, or add what is new in them
    to the run that is there. What was read once is not read again; a play that went on takes the place of what was
    there of it and of the verdicts on that. A new run is there when it is whole, and what is added to one is added as
    a whole, also if the process is killed.

    Args:
        mapping: the options of the import. A run that is there keeps its own: these are the same, or the defaults.
        name: of the run; None derives it from the paths, so that the same ones find it again.
        file_format: None finds the format from the first object.
        label_files: files of labels on plays that are new; the mapping's keys of labels are then about their lines.
        trust: add to a run of somebody else.

    Raises:
        InputError: a file cannot be read, or an object in it is invalid; the message names file, line and key. Nothing
            is written then. NoPlaysError if a run that is not there yet would have no action.
        RunError: the run is none that was imported, or was so with other options, or is in use; or the storage failed.
        UntrustedRun: somebody else made the run.
    """
    own = mapping.without_labels() if label_files else mapping
    run = root / (name_run(paths) if name is None else name)
    if not is_run_folder(run):
        return create_run(
            registry,
            LogFiles(paths=paths, mapping=own, file_format=file_format),
            run,
            own,
            labels=LabelJoin(files=label_files, mapping=mapping),
        )
    restore_trusted(registry, run, trust=trust)
    with RunFolder.open(run) as folder:
        keeps = _read_keeps(folder, own, file_format)
        # An option may name keys of labels in their files alone, which the run does not keep.
        source = LogFiles(paths=paths, mapping=keeps.mapping, file_format=keeps.format, is_awaited=True)
        return add_plays(registry, source, folder, labels=LabelJoin(files=label_files, mapping=mapping))


def name_run(paths: Sequence[Path]) -> str:
    """Name the run of logs by where they lie, so that the same paths have the same one, and so has a pattern that
    matches more files later. Several paths are named by the folder that they share."""
    places = [_fixed_part(path) for path in paths]
    place = places[0] if len(places) == 1 else Path(os.path.commonpath(places))
    plain = re.sub(r"[^\w-]+", "-", clean_name(place.name.partition(".")[0]))[:MAX_NAME].strip("-_")
    return f"{plain or 'logs'}-{sha256(os.fsencode(place)).hexdigest()[:6]}"


def _fixed_part(path: Path) -> Path:
    """The absolute path; of a pattern that of the folder below which it matches."""
    whole = path.absolute()
    if whole.exists() or not glob.has_magic(str(whole)):
        return whole
    return next(parent for parent in whole.parents if not glob.has_magic(str(parent)))


def _read_keeps(folder: RunFolder, mapping: LogMapping, file_format: Format | None) -> _Keeps:
    """How the run was imported. Raises RunError if it was not, or otherwise than is asked for now."""
    keeps = folder.store.note(KEEPS_NOTE, _Keeps)
    if keeps is None:
        raise RunError(f"{folder.path} was not imported from a log: choose another --name")
    asked = {"format": file_format or keeps.format} | {one.name: getattr(mapping, one.name) for one in fields(mapping)}
    kept = {"format": keeps.format} | {one.name: getattr(keeps.mapping, one.name) for one in fields(mapping)}
    other = [name for name, value in asked.items() if value != kept[name]]
    if other and (mapping != LogMapping() or "format" in other):
        names = ", ".join(f"{name} ({kept[name]!r})" for name in other)
        raise RunError(
            f"{folder.path} was imported with other options, which it keeps: {names}. Leave them out to add to it, or "
            "choose another --name"
        )
    return keeps


def create_run(
    registry: Registry, source: PlaySource, run: Path, mapping: LogMapping, *, labels: LabelJoin | None = None
) -> ImportResult:
    """Make a run of what a source has, which keeps `mapping` as how it was read. Raises as `import_logs`."""
    if os.path.lexists(run):
        raise RunError(f"{run} exists already, and is no run: choose another --name")
    found = source.read_new(NoNotes())
    chosen, logs = found.format, [play.log for play in found.plays]
    if chosen is None or not any(log.acts for log in logs):
        raise NoPlaysError(_say_no_action(source.name, found))
    _check_agents(logs, mapping.agents)
    if FORMATS[chosen].entries == "messages":
        _check_texts(logs, source.name)
    briefs = {**dict.fromkeys(count_agents(logs), ""), **mapping.agents}
    config = _build_config(run, briefs, _models_by_agent(logs), origin=source.name)
    with storage_errors(run):
        run.parent.mkdir(parents=True, exist_ok=True)
        with closing(OwnedFolder(".import-", run.parent)) as aside:
            with RunFolder.create(aside.path, run.name, plugin=CORE, recipe=IMPORT_RECIPE, config=config) as folder:
                folder.store.set_note(KEEPS_NOTE, _Keeps(format=chosen, mapping=mapping))
                _write_config(registry, folder, config)
                made = _add_plays(registry, source, found, folder, labels or LabelJoin(), chosen)
            folder.path.rename(run)
    unused = tuple(_find_unused_keys(logs, mapping))
    return replace(made, folder=run, is_new=True, problems=(*unused, *made.problems))


def add_plays(
    registry: Registry, source: PlaySource, folder: RunFolder, *, labels: LabelJoin | None = None
) -> ImportResult:
    """Add what is new in a source to a run that was imported. Raises as `import_logs`."""
    keeps = folder.store.note(KEEPS_NOTE, _Keeps)
    assert keeps is not None  # callers open imported runs
    found = source.read_new(folder.store)
    logs = [play.log for play in found.plays]
    stored = read_stored(folder.path).settings.plain
    with damage_reported(folder.path):
        briefs = dict(stored["workflow"]["options"]["agents"])
        models = {agent: policy["model"] for agent, policy in stored["policies"].items() if agent in briefs}
    _check_agents(logs, briefs)
    told = _models_by_agent(logs)
    if count_agents(logs).keys() - briefs.keys() or any(models.get(agent) != model for agent, model in told.items()):
        # Before the plays: a team may name an agent that does nothing, but no agent may act that it does not name.
        briefs = {**briefs, **dict.fromkeys(count_agents(logs).keys() - briefs.keys(), "")}
        config = _build_config(folder.path, briefs, {**models, **told}, origin=source.name)
        _write_config(registry, folder, config)
    return _add_plays(registry, source, found, folder, labels or LabelJoin(), keeps.format)


def _write_config(registry: Registry, folder: RunFolder, config: str) -> None:
    """Write the config with all defaults, and record the team."""
    folder.write_config(config)
    composed = read_stored(folder.path).resolve(registry)
    folder.write_config(composed.to_yaml())
    workflow = ImportedWorkflow(composed.config.workflow.options)
    folder.store.record_team(TeamRecord(agents=workflow.agents, metric=workflow.metric))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _ChangedPlay:
    """A play that is new, or went on since it was read as `known`."""

    play: LoggedPlay
    known: PlayNote | None
    digest: str
    log: LoggedTrajectory
    """As it is recorded, with the id of its task."""


def _add_plays(
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
                IMPORT_EVENT, file=source.name, format=chosen, trajectories=len(imported), labellers=labellers
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
        counts=_count_entries(logs, FORMATS[chosen].entries),
        labels=_count_labels(imported),
        problems=(*unjoined, *_find_problems(logs)),
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


def _write_summary(registry: Registry, folder: RunFolder, tally: Mapping[str, _AgentTally]) -> None:
    composed = read_stored(folder.path).resolve(registry)
    summary = Summary(
        plugin=CORE,
        recipe=IMPORT_RECIPE,
        recipe_hash=composed.recipe_hash,
        seed=composed.config.seed,
        status="done",
        agents={agent: one.summarize() for agent, one in tally.items()},
    )
    write_summary(folder.path, summary)


def _say_no_action(names: str, found: NewPlays) -> str:
    if found.format is None:
        return f"{names}: there is no entry in it" + "".join(f"; {one}" for one in found.unfinished)
    why = ", ".join(f"{count:,} {one}" for one, count in _count_entries(_logs(found), "").left_out.items())
    return (
        f"{names}: read as {found.format}, no entry in it is an action of a model{f': {why}' if why else ''}; another "
        "format is chosen with --format"
    )


def _logs(found: NewPlays) -> list[LoggedTrajectory]:
    return [play.log for play in found.plays]


def read_logs(
    paths: Sequence[Path], mapping: LogMapping, file_format: Format | None
) -> tuple[list[LoggedTrajectory], Format]:
    """Read the rollouts of logs, in their order, and the format. Raises InputError as `import_logs` does."""
    documents = read_documents(paths)
    names = ", ".join(map(str, paths))
    if not documents:
        raise InputError(f"{names}: there is no entry in it")
    chosen = file_format or find_format(documents)
    logs = parse_documents(documents, mapping, chosen)
    _check_agents(logs, mapping.agents)
    if FORMATS[chosen].entries == "messages":
        _check_texts(logs, names)
    return logs, chosen


def _check_agents(logs: Sequence[LoggedTrajectory], declared: Iterable[str]) -> None:
    """Raise InputError for names that a verdict could not hold; the place is that of the log that brings them."""
    names = list(declared)
    if fault := describe_name_fault(names):
        raise InputError(f"--agent: {fault}; name the agent otherwise")
    for log in logs:
        new = {act.agent: None for act in log.acts if act.agent not in names}
        names += new
        if new and (fault := describe_name_fault(names)):
            raise InputError(
                f"{clean_name(log.place)}: {fault}; --agent-from names the key (of spans: the attribute) that holds "
                "the name of an agent, --person a speaker that is none, --unnamed who acts where none is named"
            )


def _check_texts(logs: Sequence[LoggedTrajectory], names: str) -> None:
    """Raise InputError if nobody says anything: the texts stand elsewhere, and empty actions would be judged."""
    replies = [act.reply for log in logs if log.has_text for act in log.acts]
    if replies and not any(reply.content.strip() or reply.reasoning or reply.tool_calls for reply in replies):
        raise InputError(
            f"{names}: {len(replies):,} of {len(replies):,} actions have no text: which key holds it? --text KEY"
        )


def count_agents(logs: Sequence[LoggedTrajectory]) -> dict[str, int]:
    """Actions by agent, in order of their first."""
    return dict(Counter(act.agent for log in logs for act in log.acts))


def _count_entries(logs: Sequence[LoggedTrajectory], unit: str) -> ImportCounts:
    left_out: Counter[str] = Counter()
    for log in logs:
        left_out.update(log.left_out)
    return ImportCounts(
        unit=unit,
        entries=sum(log.entries for log in logs),
        actions=sum(len(log.acts) for log in logs),
        left_out=dict(left_out.most_common()),
        without_text=sum(not log.has_text for log in logs),
        without_action=sum(not log.acts for log in logs),
    )


def _count_labels(imported: Sequence[ImportedTrajectory]) -> LabelCounts:
    labels = [label for one in imported for label in one.labels]
    acted = {step.id: step.agent for one in imported for step in one.trajectory.steps}
    agents = {one.trajectory.id: {step.agent for step in one.trajectory.steps} for one in imported}
    guilt = [label for label in labels if label.kind == "guilt"]
    of_agents = [label for label in guilt if label.agent not in BLAME_BESIDE_AGENTS]
    values = Counter(
        f"{label.value:+g}".replace("+0", "0") for label in labels if label.value is not None and label.step is not None
    )
    odd = {
        MISMATCH: sum(label.step is not None and acted[label.step] != label.agent for label in of_agents),
        ABSENT: sum(label.agent not in agents[label.trajectory] for label in of_agents),
    }
    return LabelCounts(
        agents=len({label.trajectory for label in guilt if label.agent is not None}),
        steps=len({label.trajectory for label in guilt if label.step is not None}),
        values=dict(values.most_common()),
        wholes=sum(label.kind == "quality" and label.step is None for label in labels),
        odd={what: count for what, count in odd.items() if count},
    )


def _find_problems(logs: Sequence[LoggedTrajectory]) -> Iterator[str]:
    """Problems of rollouts and labels that were left out, with their places, and unread keys with their number and
    first place."""
    for log in logs:
        yield from (f"{log.place}: {problem}" for problem in log.problems)
    for log in logs:
        yield from (f"{log.place}: {problem}; this label is left out" for problem in log.labels.problems)
    first: dict[str, str] = {}
    for log in logs:
        for key in log.unread:
            first.setdefault(key, log.place)
    times = Counter(key for log in logs for key in log.unread)
    for key, count in times.items():
        yield f"{first[key]}: {key}: not read" + (f" (and in {count - 1:,} more)" if count > 1 else "")


def _find_unused_keys(logs: Sequence[LoggedTrajectory], mapping: LogMapping) -> Iterator[str]:
    """Keys of outcomes and labels that an option names and no rollout has a value at."""
    tried = [problem for log in logs for problem in log.labels.problems]
    used = {
        "--guilty-agent": (mapping.guilty_agent, any(log.labels.agent is not None for log in logs)),
        "--guilty-step": (
            mapping.guilty_step,
            any(log.labels.step is not None or log.labels.agent == NOBODY for log in logs),
        ),
        "--guilt-category": (mapping.guilt_category, any(log.labels.category is not None for log in logs)),
        "--step-values": (mapping.step_values, any(log.labels.values for log in logs)),
    }
    for option, (key, is_used) in used.items():
        if key is not None and not is_used and not any(problem.startswith(key) for problem in tried):
            yield f"{key}: no rollout has a value there, and {option} names it"
    for name, key in mapping.outcomes.items():
        if not any(name in log.outcome for log in logs):
            yield f"{key}: no rollout has a value there, and --outcome names it"


def _encode_tasks(tasks: Sequence[Task]) -> bytes:
    rows = ({"id": task.id, "prompt": task.prompt, "answer": task.reference, "stratum": task.stratum} for task in tasks)
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _models_by_agent(logs: Sequence[LoggedTrajectory]) -> dict[str, str]:
    """The model of each agent according to the log; the last one named counts."""
    return {act.agent: act.model for log in logs for act in log.acts if act.model is not None}


def _build_config(folder: Path, briefs: Mapping[str, str], models: Mapping[str, str], *, origin: str) -> str:
    """The config of a run that can be judged but not rolled out: its policies are frozen and have no weights."""
    tasks = {"path": str(folder / TASKS_FILE), "stratum": "stratum"}
    settings = {
        "tasks": {"use": "file", "options": tasks},
        "workflow": {"use": IMPORT_RECIPE, "options": {"agents": dict(briefs)}},
        "coach": {"use": IMPORT_RECIPE},
        "policies": {agent: {"kind": "frozen", "model": models.get(agent, UNKNOWN_MODEL)} for agent in briefs},
    }
    return f"recipe: {CORE}/{IMPORT_RECIPE}\n" + format_yaml(with_origin(settings, f"mappa import {origin}"))
