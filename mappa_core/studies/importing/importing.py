"""A log made into a run folder, which is observed, judged, viewed and reported like any other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import msgspec

from mappa_core.config.compose import restore
from mappa_core.config.layers import annotate
from mappa_core.config.text import write_yaml
from mappa_core.defaults.rows import read_rows
from mappa_core.errors import InputError
from mappa_core.plugins import CORE, Registry
from mappa_core.protocols import Split
from mappa_core.records import Completion, Failure, Step, Trajectory
from mappa_core.rollout.team import Job
from mappa_core.store.database import Store
from mappa_core.store.files import write_atomic
from mappa_core.store.folder import CONFIG, RunFolder, new_name
from mappa_core.store.summary import Summary, write_summary
from mappa_core.studies.importing.mapping import METRIC, Act, BadLog, Format, Log, Mapped
from mappa_core.studies.importing.messages import log_of_line
from mappa_core.studies.importing.spans import Span, looks_like_spans, spans_of_line
from mappa_core.studies.importing.traces import logs_of_spans
from mappa_core.training.report import agent_figures

RECIPE = "imported"
TASKS = "tasks.jsonl"
SPLIT: Split = "train"
FAILED = "Imported"
"""The kind of failure of a trajectory whose log says that it went wrong."""
UNKNOWN = "unknown"
"""The model of an agent whose log names none."""
_DIGITS = 12
"""Hex digits of a task's name that is made of its prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What became of a log. `measured` trajectories have the outcome that the run is measured by."""

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
    mapped: Mapped,
    *,
    root: Path,
    name: str | None = None,
    file_format: Format | None = None,
) -> Imported:
    """Make the log at `path` a run in `root`. `file_format` None goes by the first line.

    Raises:
        InputError: the file cannot be read, or a line makes no sense; the message names file, line and key. Nothing is
            written then.
        RunError: the run exists already, or the storage failed.
    """
    logs, chosen = read_logs(path, mapped, file_format)
    agents = Counter(act.agent for log in logs for act in log.acts)
    trajectories = _trajectories(logs)
    name = new_name(CORE, RECIPE) if name is None else name
    config = _config(root / name, {**dict.fromkeys(agents, ""), **mapped.agents}, _models(logs), source=path)
    with RunFolder.create(root, name, plugin=CORE, recipe=RECIPE, config=config) as folder:
        composed = restore(registry, folder.path / CONFIG)
        folder.write_config(composed.yaml())
        write_atomic(folder.path / TASKS, _tasks(trajectories))
        for trajectory in trajectories:
            _keep(folder.store, trajectory)
        folder.store.event("imported", file=str(path), format=chosen, trajectories=len(trajectories))
        summary = Summary(
            plugin=CORE, recipe=RECIPE, recipe_hash=composed.recipe_hash, seed=composed.config.seed, status="done"
        )
        write_summary(folder.path, replace(summary, agents=agent_figures(tuple(agents), trajectories)))
    return Imported(
        folder=folder.path,
        format=chosen,
        trajectories=len(trajectories),
        tasks=len({one.task.id for one in trajectories}),
        measured=sum(METRIC in one.outcome for one in trajectories),
        agents=dict(agents),
    )


def read_logs(path: Path, mapped: Mapped, file_format: Format | None) -> tuple[list[Log], Format]:
    """The trajectories of a log, in its order, and the format it has. Raises as `import_file` does."""
    rows = read_rows(path)
    chosen: Format = file_format or ("spans" if looks_like_spans(rows.rows[0]) else "messages")
    logs: list[Log] = []
    spans: list[Span] = []
    index = 0
    try:
        for index, row in enumerate(rows.rows):
            if chosen == "messages":
                logs.append(log_of_line(row, mapped))
            else:
                spans += spans_of_line(row, rows.place(index))
    except BadLog as problem:
        raise InputError(f"{rows.place(index)}: {problem}") from None
    if chosen == "spans":
        logs = logs_of_spans(spans, mapped)
    if not logs:
        raise InputError(f"{path}: no span in it is an action of a model (see --format)")
    return logs, chosen


def _trajectories(logs: Sequence[Log]) -> list[Trajectory]:
    """Logs of one task are its samples, in order."""
    samples: Counter[str] = Counter()
    made = []
    for log in logs:
        name = log.task.id or f"task-{sha256(log.task.prompt.encode(errors='replace')).hexdigest()[:_DIGITS]}"
        job = Job(task=replace(log.task, id=name), split=SPLIT, iteration=0, sample=samples[name])
        samples[name] += 1
        made.append(
            Trajectory(
                id=job.id,
                task=job.task,
                sample=job.sample,
                iteration=job.iteration,
                steps=_steps(job.id, log.acts),
                outcome=log.outcome,
                error=None if log.error is None else Failure(kind=FAILED, message=log.error, where=job.id),
                seconds=log.seconds,
            )
        )
    return made


def _steps(trajectory: str, acts: Sequence[Act]) -> tuple[Step, ...]:
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
                calls=tuple(call for call, _ in act.answered),
                results=tuple(result for _, result in act.answered),
            )
        )
        turns[act.agent] += 1
    return tuple(steps)


def _keep(store: Store, trajectory: Trajectory) -> None:
    store.begin(SPLIT, trajectory.id, trajectory.task, trajectory.sample, trajectory.iteration)
    for step in trajectory.steps:
        store.step(trajectory.id, step)
    store.end(trajectory)


def _tasks(trajectories: Sequence[Trajectory]) -> bytes:
    """The tasks as lines that `tasks.use: file` reads."""
    tasks = {one.task.id: one.task for one in trajectories}
    rows = (
        {"id": task.id, "prompt": task.prompt, "answer": task.reference, "stratum": task.stratum}
        for task in tasks.values()
    )
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _models(logs: Sequence[Log]) -> dict[str, str]:
    """What the log says is behind each agent; the last word counts."""
    return {act.agent: act.model for log in logs for act in log.acts if act.model is not None}


def _config(folder: Path, briefs: Mapping[str, str], models: Mapping[str, str], *, source: Path) -> str:
    """The config of a run that can be judged, and not played: its policies stay as they are and are nowhere."""
    tasks = {"path": str(folder / TASKS), "stratum": "stratum", "suffix": ""}
    settings = {
        "tasks": {"use": "file", "options": tasks},
        "workflow": {"use": RECIPE, "options": {"agents": dict(briefs)}},
        "coach": {"use": RECIPE},
        "policies": {agent: {"kind": "frozen", "model": models.get(agent, UNKNOWN)} for agent in briefs},
    }
    return f"recipe: {CORE}/{RECIPE}\n" + write_yaml(annotate(settings, f"mappa import {source}"))
