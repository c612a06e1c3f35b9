"""Builds trajectories, and their labels, of the rollouts of a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from mappa.look.importing.log_mapping import LoggedAction, LoggedTrajectory
from mappa_core import Completion, Failure, Split, Step, Task, Trajectory
from mappa_core.records import Label

IMPORT_SPLIT: Split = "train"
FAILURE_KIND = "Imported"
"""The failure kind of a trajectory that its log marks as failed."""
RUN_NAME, MESSAGE_NUMBERS, SPAN_IDS = "run", "messages", "spans"
"""Keys of a task's `meta`: the name of the rollout in its log (of spans: the id of the trace), the number of each
action's message there and, of spans, the id of each action's span."""
PEOPLE = "people"
"""The labeller of labels that came with a log."""
_TASK_ID_DIGITS = 12
"""Hex digits in a task id that is derived from the prompt."""
_TEXT_DIGITS = 6
"""Hex digits that tell tasks of one id apart."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImportedTrajectory:
    """A trajectory of a log with its labels, and the log that it was built from."""

    trajectory: Trajectory
    labels: tuple[Label, ...]
    log: LoggedTrajectory


def name_task(log: LoggedTrajectory) -> str:
    """The id of the task of a log: its own, or one made of its text."""
    return log.task.id or f"task-{_hash(log.task.prompt)[:_TASK_ID_DIGITS]}"


def name_samples(task: str) -> str:
    """What the ids of the trajectories of a task begin with."""
    return f"{IMPORT_SPLIT}-{0:06d}/{task}/"


def build_trajectories(logs: Sequence[LoggedTrajectory]) -> list[ImportedTrajectory]:
    """Build the trajectories; those of one task are its samples, in order."""
    samples: Counter[str] = Counter()
    made = []
    for log in logs:
        made.append(build_trajectory(log, samples[name_task(log)]))
        samples[name_task(log)] += 1
    return made


def build_trajectory(log: LoggedTrajectory, sample: int) -> ImportedTrajectory:
    """Build the trajectory of a log, as a sample of its task."""
    name = name_task(log)
    identity = f"{name_samples(name)}{sample:03d}"
    numbers = [act.number for act in log.acts]
    known: dict[str, Any] = {RUN_NAME: log.run or log.place, MESSAGE_NUMBERS: numbers}
    if any(act.span is not None for act in log.acts):
        known[SPAN_IDS] = [act.span for act in log.acts]
    trajectory = Trajectory(
        id=identity,
        task=replace(log.task, id=name, meta={**log.task.meta, **known}),
        sample=sample,
        iteration=0,
        steps=_build_steps(identity, log.acts),
        outcome=log.outcome,
        error=None if log.error is None else Failure(kind=FAILURE_KIND, message=log.error),
        seconds=log.seconds,
    )
    return ImportedTrajectory(trajectory=trajectory, labels=build_labels(trajectory, log), log=log)


def separate_tasks(
    logs: Sequence[LoggedTrajectory], find_task: Callable[[str], Task | None] = lambda name: None
) -> list[LoggedTrajectory]:
    """The logs, where tasks that share an id and differ in their text have ids of their own, which is a problem of the
    first rollout of each. `find_task` finds the task that a run has under an id, which keeps it."""
    first: dict[str, LoggedTrajectory] = {}
    texts: dict[str, set[str]] = {}
    for log in logs:
        if log.task.id and log.has_text:
            first.setdefault(log.task.id, log)
            texts.setdefault(log.task.id, set()).add(log.task.prompt)
    known = {name: find_task(name) for name in texts}
    named: set[str] = set()

    def separate(log: LoggedTrajectory) -> LoggedTrajectory:
        if not log.task.id or not log.has_text:
            return log
        recorded, own = known[log.task.id], f"{log.task.id}-{_hash(log.task.prompt)[:_TEXT_DIGITS]}"
        if recorded is not None:
            if recorded.prompt == log.task.prompt:
                return log
            where, is_new = str(recorded.meta.get(RUN_NAME)), find_task(own) is None
        elif len(texts[log.task.id]) < 2 and find_task(own) is None:
            return log
        else:
            origin = first[log.task.id]
            where, is_new = origin.place, log is not origin and log.task.prompt != origin.task.prompt
        problems = log.problems
        if is_new and own not in named:
            problem = f"task {log.task.id}: its text is another than in {where}, so it is called {own} here"
            problems = (*problems, problem)
        named.add(own)
        return replace(log, task=replace(log.task, id=own), problems=problems)

    return [separate(log) for log in logs]


def _hash(text: str) -> str:
    return sha256(text.encode(errors="replace")).hexdigest()


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
                strata=act.strata,
            )
        )
        turns[act.agent] += 1
    return tuple(steps)


def build_labels(trajectory: Trajectory, log: LoggedTrajectory, *, labeller: str = PEOPLE) -> tuple[Label, ...]:
    """The labels of a log as those of `labeller`, about the trajectory that was built of it."""
    labels, found = log.labels, []
    steps = {act.number: step.id for act, step in zip(log.acts, trajectory.steps, strict=True)}
    if labels.agent is not None or labels.step is not None:
        step = None if labels.step is None else steps[labels.step]
        by_step = {one.id: one.agent for one in trajectory.steps}
        agent = by_step[step] if labels.agent is None and step is not None else labels.agent
        found.append(
            Label(
                kind="guilt",
                trajectory=trajectory.id,
                step=step,
                agent=agent,
                reason=labels.reason,
                category=labels.category,
                labeller=labeller,
            )
        )
    found += [
        Label(kind="quality", trajectory=trajectory.id, step=steps[number], value=value, labeller=labeller)
        for number, value in sorted(labels.values.items())
    ]
    if labels.whole is not None:
        found.append(Label(kind="quality", trajectory=trajectory.id, value=labels.whole, labeller=labeller))
    return tuple(found)
