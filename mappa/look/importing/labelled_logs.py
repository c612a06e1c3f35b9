"""Reads two public sets of labelled failures: Who&When (ag2ai/Agents_Failure_Attribution), with a guilty agent and step
of each run, and AgentProcessBench (RUCBM/AgentProcessBench), with a value of every step.

Both are messages with labels. AgentProcessBench is read with its texts, or from its labels alone: then an action has a
number and no text, so that only recorded verdicts can be held against it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mappa.look.importing.chat_messages import read_conversation
from mappa.look.importing.documents import Document
from mappa.look.importing.labels import read_logged_labels
from mappa.look.importing.log_mapping import LogFormatError, LoggedAction, LoggedTrajectory, LogMapping, lookup
from mappa_core import InputError, Message, Task

_DATASETS = ("hotpotqa", "gaia_dev", "bfcl", "tau2")
_RUNS_PER_DATASET = 250
"""`total_index` numbers the runs of all data sets, in the order of `_DATASETS`."""


def looks_like_who_and_when(row: Mapping[str, Any]) -> bool:
    """Whether a line holds a conversation with the agent and the step to blame."""
    return isinstance(row.get("history"), list) and ("mistake_agent" in row or "mistake_step" in row)


def looks_like_process_bench(row: Mapping[str, Any]) -> bool:
    """Whether a line holds a rollout of AgentProcessBench, or its labels alone."""
    return "step_labels" in row or {"dataset", "query", "sample", "steps"} <= set(row)


def read_who_and_when(documents: Sequence[Document], mapping: LogMapping) -> list[LoggedTrajectory]:
    """Read a rollout from each line. Raises InputError, naming line and key."""
    mapping = mapping.with_defaults(
        messages="history",
        guilty_agent="mistake_agent",
        guilty_step="mistake_step",
        guilt_reason="mistake_reason",
    )
    return _unique([_placed(document, _read_failure, mapping) for document in documents])


def read_process_bench(documents: Sequence[Document], mapping: LogMapping) -> list[LoggedTrajectory]:
    """Read a rollout from each line; labels and texts of one rollout in two lines are joined. Raises InputError."""
    logs = [_placed(document, _read_process, mapping) for document in documents]
    with_text = {log.run: log for log in logs if log.has_text}
    labels_alone = {log.run: log for log in logs if not log.has_text}
    for run in with_text.keys() & labels_alone.keys():
        if with_text[run].labels.values != labels_alone[run].labels.values:
            raise InputError(
                f"{labels_alone[run].place}: {run} is labelled otherwise in {with_text[run].place}: leave one out"
            )
    _unique([log for log in logs if not log.has_text])
    return _unique([log for log in logs if log.has_text or log.run not in with_text])


def _placed(document: Document, read: Any, mapping: LogMapping) -> LoggedTrajectory:
    try:
        log: LoggedTrajectory = read(document, mapping)
    except LogFormatError as problem:
        raise InputError(f"{document.place}: {problem}") from None
    return replace(log, place=document.place)


def _unique(logs: list[LoggedTrajectory]) -> list[LoggedTrajectory]:
    """The logs, after a check that each run is there once."""
    places: dict[str | None, str] = {}
    for log in logs:
        if (first := places.setdefault(log.run, log.place)) != log.place:
            raise InputError(f"{log.place}: {log.run} is labelled already in {first}: leave one of them out")
    return logs


def _read_failure(document: Document, mapping: LogMapping) -> LoggedTrajectory:
    line = document.row
    own = {"prompt": "question", "task_id": "question_ID"}
    mapping = mapping.with_defaults(**{name: key for name, key in own.items() if line.get(key) not in (None, "")})
    history = lookup(line, mapping.messages)
    named = isinstance(history, list) and any(isinstance(one, Mapping) and "name" in one for one in history)
    log = read_conversation(line, mapping.with_defaults(agent_from="name" if named else "role"))
    run = line.get("source") or f"{document.file.parent.name}/{document.file.name}"
    run = str(run) if line.get("source") or document.place == str(document.file) else document.place
    known = {"source", "system_prompt", "ground_truth", "is_correct", "is_corrected", *_heads(mapping)}
    stratum = log.task.stratum if mapping.stratum else run.rpartition("/")[0] or "all"
    reference = log.task.reference if mapping.truth else _read_target(line.get("ground_truth"))
    return replace(
        log,
        run=run,
        task=replace(log.task, stratum=stratum, reference=reference),
        acts=tuple(_with_own_prompt(act, line.get("system_prompt")) for act in log.acts),
        outcome=log.outcome or ({"correct": 0.0} if line.get("is_correct", line.get("is_corrected")) is False else {}),
        unread=(*log.unread, *(key for key in line if key not in known)),
    )


def _with_own_prompt(act: LoggedAction, prompts: Any) -> LoggedAction:
    """Put the system prompt of the agent before what it was shown."""
    own = prompts.get(act.agent) if isinstance(prompts, Mapping) else None
    if not isinstance(own, str):
        return act
    return replace(act, messages=(Message(role="system", content=own), *act.messages))


def _read_process(document: Document, mapping: LogMapping) -> LoggedTrajectory:
    line, with_text = document.row, "messages" in document.row
    mapping = mapping.with_defaults(step_values="step_labels" if with_text else "steps")
    mapping = mapping.with_defaults(whole_value="final_label" if with_text else "final")
    query, sample = line.get("query_index", line.get("query")), line.get("sample_index", line.get("sample"))
    dataset = _find_dataset(document)
    run = f"{dataset}/{query}/{sample}"
    if with_text:
        known = {"total_index", "query_index", "sample_index", "question", "data_source", "ground_truth"}
        log = read_conversation(line, mapping.with_defaults(prompt="question" if "question" in line else None))
        unread = (key for key in line if key not in {*known, *_heads(mapping)})
        log = replace(log, unread=(*log.unread, *unread))
    else:
        log = _read_labels_alone(line, mapping, run)
    return replace(
        log,
        run=run,
        task=replace(
            log.task,
            id=log.task.id or f"{dataset}-{query}",
            stratum=log.task.stratum if mapping.stratum else dataset,
            reference=log.task.reference or _read_target(line.get("ground_truth")),
        ),
    )


def _read_labels_alone(line: Mapping[str, Any], mapping: LogMapping, run: str) -> LoggedTrajectory:
    steps = line.get("steps")
    if not isinstance(steps, Mapping) or not steps or not all(str(key).isdigit() for key in steps):
        raise LogFormatError("steps: not an object of the numbers of steps and their labels")
    numbers = sorted(int(key) for key in steps)
    empty = Message(role="assistant", content="")
    return LoggedTrajectory(
        task=Task(id="", prompt=f"{run}: its text is not here"),
        acts=tuple(
            LoggedAction(
                agent=mapping.default_agent, model=None, messages=(), reply=empty, finish="stop", number=number
            )
            for number in numbers
        ),
        outcome={},
        labels=read_logged_labels(
            line, mapping, messages=numbers[-1] + 1, agents=dict.fromkeys(numbers, mapping.default_agent)
        ),
        entries=len(numbers),
        has_text=False,
    )


def _find_dataset(document: Document) -> str:
    line = document.row
    if isinstance(line.get("dataset"), str):
        return str(line["dataset"])
    total = line.get("total_index")
    if isinstance(total, int) and 0 <= total < _RUNS_PER_DATASET * len(_DATASETS):
        return _DATASETS[total // _RUNS_PER_DATASET]
    return document.file.name.partition(".")[0]


def _read_target(truth: Any) -> str | None:
    target = truth.get("target") if isinstance(truth, Mapping) else truth
    if isinstance(target, list):
        return "; ".join(map(str, target)) or None
    return None if target is None else str(target)


def _heads(mapping: LogMapping) -> set[str]:
    """Keys of a line that the mapping reads."""
    keys = (
        mapping.messages, mapping.task_id, mapping.prompt, mapping.truth, mapping.stratum, mapping.cluster,
        mapping.guilty_agent, mapping.guilty_step, mapping.guilt_reason, mapping.guilt_category,
        mapping.step_values, mapping.whole_value,
        *mapping.outcomes.values(),
    )  # fmt: skip
    return {key.partition(".")[0] for key in keys if key}
