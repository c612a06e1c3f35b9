"""Imports a log as a run folder, which can be observed, judged, viewed and reported like any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import msgspec

from mappa_analysis.importing.chat_messages import read_conversation
from mappa_analysis.importing.log_mapping import (
    IMPORT_METRIC,
    Format,
    LogFormatError,
    LoggedAction,
    LoggedTrajectory,
    LogMapping,
)
from mappa_analysis.importing.spans import Span, looks_like_spans, read_spans
from mappa_analysis.importing.traces import read_traces
from mappa_core import Completion, Failure, InputError, Split, Step, Trajectory
from mappa_core.commands import Registry, format_yaml, restore, with_origin
from mappa_core.data import read_rows
from mappa_core.runs import RunFolder, Summary, new_run_name, summarize_agents, write_atomic, write_summary

CORE = "core"
"""The plugin that an imported run names."""
IMPORT_RECIPE = "imported"
TASKS_FILE = "tasks.jsonl"
IMPORT_SPLIT: Split = "train"
FAILURE_KIND = "Imported"
"""The failure kind of a trajectory that its log marks as failed."""
UNKNOWN_MODEL = "unknown"
"""The model of an agent for which the log names none."""
_TASK_ID_DIGITS = 12
"""Hex digits in a task id that is derived from the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportResult:
    """The result of an import. `measured` trajectories have the outcome `correct`, the metric of the run."""

    folder: Path
    format: Format
    trajectories: int
    tasks: int
    measured: int
    agents: dict[str, int]
    """Actions by agent."""


def import_file(
    registry: Registry,
    path: Path,
    mapping: LogMapping,
    *,
    root: Path,
    name: str | None = None,
    file_format: Format | None = None,
) -> ImportResult:
    """Import the log at `path` as a run in `root`. `file_format` None detects the format from the first line.

    Raises:
        InputError: the file cannot be read, or a line is invalid; the message names file, line and key. Nothing is
            written then.
        RunError: the run exists already, or the storage failed.
    """
    logs, chosen = read_logs(path, mapping, file_format)
    agents = Counter(act.agent for log in logs for act in log.acts)
    trajectories = _build_trajectories(logs)
    name = new_run_name(CORE, IMPORT_RECIPE) if name is None else name
    config = _build_config(
        root / name, {**dict.fromkeys(agents, ""), **mapping.agents}, _models_by_agent(logs), source=path
    )
    with RunFolder.create(root, name, plugin=CORE, recipe=IMPORT_RECIPE, config=config) as folder:
        composed = restore(registry, folder.path)
        folder.write_config(composed.to_yaml())
        write_atomic(folder.path / TASKS_FILE, _encode_tasks(trajectories))
        for trajectory in trajectories:
            _store_trajectory(folder, trajectory)
        folder.store.record_event("imported", file=str(path), format=chosen, trajectories=len(trajectories))
        summary = Summary(
            plugin=CORE,
            recipe=IMPORT_RECIPE,
            recipe_hash=composed.recipe_hash,
            seed=composed.config.seed,
            status="done",
        )
        write_summary(folder.path, replace(summary, agents=summarize_agents(tuple(agents), trajectories)))
    return ImportResult(
        folder=folder.path,
        format=chosen,
        trajectories=len(trajectories),
        tasks=len({one.task.id for one in trajectories}),
        measured=sum(IMPORT_METRIC in one.outcome for one in trajectories),
        agents=dict(agents),
    )


def read_logs(path: Path, mapping: LogMapping, file_format: Format | None) -> tuple[list[LoggedTrajectory], Format]:
    """Read the trajectories of a log, in its order, and its format. Raises as `import_file` does."""
    rows = read_rows(path)
    chosen: Format = file_format or ("spans" if looks_like_spans(rows.rows[0]) else "messages")
    logs: list[LoggedTrajectory] = []
    spans: list[Span] = []
    index = 0
    try:
        for index, row in enumerate(rows.rows):
            if chosen == "messages":
                logs.append(read_conversation(row, mapping))
            else:
                spans += read_spans(row, rows.place(index))
    except LogFormatError as problem:
        raise InputError(f"{rows.place(index)}: {problem}") from None
    if chosen == "spans":
        logs = read_traces(spans, mapping)
    if not logs:
        raise InputError(f"{path}: no span in it is an action of a model (see --format)")
    return logs, chosen


def _build_trajectories(logs: Sequence[LoggedTrajectory]) -> list[Trajectory]:
    """Build the trajectories; those of one task are its samples, in order."""
    samples: Counter[str] = Counter()
    made = []
    for log in logs:
        name = log.task.id or f"task-{sha256(log.task.prompt.encode(errors='replace')).hexdigest()[:_TASK_ID_DIGITS]}"
        sample = samples[name]
        identity = f"{IMPORT_SPLIT}-{0:06d}/{name}/{sample:03d}"
        samples[name] += 1
        made.append(
            Trajectory(
                id=identity,
                task=replace(log.task, id=name),
                sample=sample,
                iteration=0,
                steps=_build_steps(identity, log.acts),
                outcome=log.outcome,
                error=None if log.error is None else Failure(kind=FAILURE_KIND, message=log.error, where=identity),
                seconds=log.seconds,
            )
        )
    return made


def _build_steps(trajectory: str, acts: Sequence[LoggedAction]) -> tuple[Step, ...]:
    turns: Counter[str] = Counter()
    steps = []
    for position, act in enumerate(acts):
        steps.append(
            Step(
                id=f"{trajectory}/{position:03d}",
                agent=act.agent,
                turn=turns[act.agent],
                position=position,
                policy=act.agent,
                messages=act.messages,
                reply=act.reply,
                completion=Completion(
                    text=act.reply.content,
                    prompt_tokens=None,
                    tokens=None,
                    logprobs=None,
                    finish=act.finish,
                    usage=act.usage,
                    seconds=act.seconds,
                ),
                tools=tuple(dict.fromkeys(call.name for call in act.reply.tool_calls)),
                calls=tuple(call for call, _ in act.results),
                results=tuple(result for _, result in act.results),
            )
        )
        turns[act.agent] += 1
    return tuple(steps)


def _store_trajectory(folder: RunFolder, trajectory: Trajectory) -> None:
    store = folder.store
    store.begin_trajectory(IMPORT_SPLIT, trajectory.id, trajectory.task, trajectory.sample, trajectory.iteration)
    for step in trajectory.steps:
        store.record_step(trajectory.id, step)
    store.end_trajectory(trajectory)


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


def _build_config(folder: Path, briefs: Mapping[str, str], models: Mapping[str, str], *, source: Path) -> str:
    """The config of a run that can be judged but not rolled out: its policies are frozen and have no weights."""
    tasks = {"path": str(folder / TASKS_FILE), "stratum": "stratum", "suffix": ""}
    settings = {
        "tasks": {"use": "file", "options": tasks},
        "workflow": {"use": IMPORT_RECIPE, "options": {"agents": dict(briefs)}},
        "coach": {"use": IMPORT_RECIPE},
        "policies": {agent: {"kind": "frozen", "model": models.get(agent, UNKNOWN_MODEL)} for agent in briefs},
    }
    return f"recipe: {CORE}/{IMPORT_RECIPE}\n" + format_yaml(with_origin(settings, f"mappa import {source}"))
