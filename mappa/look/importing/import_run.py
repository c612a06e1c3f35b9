"""Imports a log as a run folder, which can be observed, judged, viewed and reported like any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from mappa.config.compose import read_stored
from mappa.config.yaml_io import format_yaml
from mappa.look.importing.documents import read_documents
from mappa.look.importing.formats import FORMATS, find_format
from mappa.look.importing.label_files import LabelFile, join_label_files
from mappa.look.importing.ledger import Ledger, count_by_file, name_files
from mappa.look.importing.log_mapping import IMPORT_METRIC, Format, LoggedTrajectory, LogMapping
from mappa.look.importing.offers import IMPORT_RECIPE, ImportedWorkflow
from mappa.look.importing.trajectories import IMPORT_SPLIT, ImportedTrajectory, build_trajectories, separate_tasks
from mappa.store.agent_columns import summarize_agents
from mappa.store.folder import RunFolder, new_run_name
from mappa.store.summary import Summary, write_summary
from mappa.store.team_record import TeamRecord
from mappa_core import NOBODY, InputError, RunError, Trajectory
from mappa_core.config.agent_names import describe_name_fault
from mappa_core.config.layers import with_origin
from mappa_core.files import storage_errors, write_file
from mappa_core.plugins import Registry
from mappa_core.records import BLAME_BESIDE_AGENTS
from mappa_core.redaction import clean_name
from mappa_core.tools.owned_folder import OwnedFolder

CORE = "core"
"""The plugin that an imported run names."""
IMPORT_EVENT = "imported"
TASKS_FILE = "tasks.jsonl"
UNKNOWN_MODEL = "unknown"
"""The model of an agent for which the log names none."""
MISMATCH = "the guilty agent is another one than acted in the guilty step"
ABSENT = "the guilty agent acts nowhere"


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
    """The result of an import. `measured` trajectories have the outcome `correct`, the metric of the run. `problems`
    are what was not understood, with places: labels that were left out, scores that cannot be `correct`, and keys that
    mean nothing to the format."""

    folder: Path
    format: Format
    trajectories: int
    tasks: int
    measured: int
    agents: dict[str, int]
    """Actions by agent."""
    counts: ImportCounts
    ledgers: Mapping[str, Ledger]
    """What is in the run and what is not, by file."""
    labels: LabelCounts
    problems: tuple[str, ...]


def import_logs(
    registry: Registry,
    paths: Sequence[Path],
    mapping: LogMapping,
    *,
    root: Path,
    name: str | None = None,
    file_format: Format | None = None,
    label_files: Sequence[LabelFile] = (),
) -> ImportResult:
    """Import the logs at `paths` (files, or folders of files) as one run in `root`. `file_format` None finds the format
    from the first object. With `label_files` the mapping's keys of labels are about their lines. The run is there when
    it is whole, also if the process is killed.

    Raises:
        InputError: a file cannot be read, or an object in it is invalid; the message names file, line and key. Nothing
            is written then.
        RunError: the run exists already, or the storage failed.
    """
    own = mapping.without_labels() if label_files else mapping
    logs, chosen = read_logs(paths, own, file_format)
    logs = separate_tasks(logs)
    imported, unjoined = join_label_files(build_trajectories([log for log in logs if log.acts]), label_files, mapping)
    trajectories = [one.trajectory for one in imported]
    agents, ledgers = count_agents(logs), count_by_file(logs)
    name = new_run_name(CORE, IMPORT_RECIPE) if name is None else name
    run = root / name
    if run.exists():
        raise RunError(f"{run} exists already: choose another --name")
    config = _build_config(run, {**dict.fromkeys(agents, ""), **mapping.agents}, _models_by_agent(logs), sources=paths)
    with storage_errors(run):
        root.mkdir(parents=True, exist_ok=True)
        with closing(OwnedFolder(".import-", root)) as aside:
            with RunFolder.create(aside.path, name, plugin=CORE, recipe=IMPORT_RECIPE, config=config) as folder:
                _write_run(registry, folder, imported, agents, paths, chosen, ledgers)
            folder.path.rename(run)
    return ImportResult(
        folder=run,
        format=chosen,
        trajectories=len(trajectories),
        tasks=len({one.task.id for one in trajectories}),
        measured=sum(IMPORT_METRIC in one.outcome for one in trajectories),
        agents=agents,
        counts=_count_entries(logs, FORMATS[chosen].entries),
        ledgers=ledgers,
        labels=_count_labels(imported),
        problems=(*unjoined, *_find_unused_keys(logs, own), *_find_problems(logs)),
    )


def _write_run(
    registry: Registry,
    folder: RunFolder,
    imported: Sequence[ImportedTrajectory],
    agents: Mapping[str, int],
    paths: Sequence[Path],
    chosen: Format,
    ledgers: Mapping[str, Ledger],
) -> None:
    trajectories = [one.trajectory for one in imported]
    composed = read_stored(folder.path).resolve(registry)
    folder.write_config(composed.to_yaml())
    workflow = ImportedWorkflow(composed.config.workflow.options)
    folder.store.record_team(TeamRecord(agents=workflow.agents, metric=workflow.metric))
    write_file(folder.path, TASKS_FILE, _encode_tasks(trajectories))
    for one in imported:
        _store_trajectory(folder, one)
    source = ", ".join(map(str, paths))
    labellers = sorted({label.labeller for one in imported for label in one.labels})
    folder.store.record_event(
        IMPORT_EVENT,
        file=source,
        format=chosen,
        trajectories=len(trajectories),
        labellers=labellers,
        ledgers=msgspec.to_builtins(ledgers),
    )
    summary = Summary(
        plugin=CORE,
        recipe=IMPORT_RECIPE,
        recipe_hash=composed.recipe_hash,
        seed=composed.config.seed,
        status="done",
    )
    write_summary(folder.path, replace(summary, agents=summarize_agents(tuple(agents), trajectories)))


def read_logs(
    paths: Sequence[Path], mapping: LogMapping, file_format: Format | None
) -> tuple[list[LoggedTrajectory], Format]:
    """Read the rollouts of logs, in their order, and the format. Raises as `import_logs` does."""
    documents = read_documents(paths)
    names = ", ".join(map(str, paths))
    if not documents:
        raise InputError(f"{names}: there is no entry in it")
    chosen = file_format or find_format(documents)
    try:
        logs = FORMATS[chosen].read(documents, mapping)
    except InputError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # whatever is in the log
        raise InputError(
            f"{names}: read as {chosen}, but it is not in this format ({type(error).__name__}: {error}); "
            "another is chosen with --format"
        ) from error
    logs = name_files(logs, documents)
    _check_agents(logs, mapping.agents)
    if FORMATS[chosen].entries == "messages":
        _check_texts(logs, names)
    if not any(log.acts for log in logs):
        why = ", ".join(f"{count:,} {one}" for one, count in _count_entries(logs, "").left_out.items())
        raise InputError(
            f"{names}: read as {chosen}, no entry in it is an action of a model"
            + (f": {why}" if why else "")
            + "; another format is chosen with --format"
        )
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


def _store_trajectory(folder: RunFolder, imported: ImportedTrajectory) -> None:
    store, trajectory = folder.store, imported.trajectory
    store.begin_trajectory(IMPORT_SPLIT, trajectory.id, trajectory.task, trajectory.sample, trajectory.iteration)
    for step in trajectory.steps:
        store.record_step(trajectory.id, step)
    store.end_trajectory(trajectory)
    for label in imported.labels:
        store.record_label(label)


def _encode_tasks(trajectories: Sequence[Trajectory]) -> bytes:
    """Encode the tasks as the lines that `tasks.use: file` reads."""
    tasks = {one.task.id: one.task for one in trajectories}
    rows = (
        {"id": task.id, "prompt": task.prompt, "answer": task.reference, "stratum": task.stratum}
        for task in tasks.values()
    )
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _models_by_agent(logs: Sequence[LoggedTrajectory]) -> dict[str, str]:
    """The model of each agent according to the log; the last one named counts."""
    return {act.agent: act.model for log in logs for act in log.acts if act.model is not None}


def _build_config(
    folder: Path, briefs: Mapping[str, str], models: Mapping[str, str], *, sources: Sequence[Path]
) -> str:
    """The config of a run that can be judged but not rolled out: its policies are frozen and have no weights."""
    tasks = {"path": str(folder / TASKS_FILE), "stratum": "stratum"}
    settings = {
        "tasks": {"use": "file", "options": tasks},
        "workflow": {"use": IMPORT_RECIPE, "options": {"agents": dict(briefs)}},
        "coach": {"use": IMPORT_RECIPE},
        "policies": {agent: {"kind": "frozen", "model": models.get(agent, UNKNOWN_MODEL)} for agent in briefs},
    }
    origin = f"mappa import {' '.join(map(str, sources))}"
    return f"recipe: {CORE}/{IMPORT_RECIPE}\n" + format_yaml(with_origin(settings, origin))
