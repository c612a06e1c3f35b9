"""Inspects an agent's files after each of its actions: is its contract met, and is it done?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mappa_core import Bench, Breach, Inspection, Scene, Step, Task, TaskError
from mappa_dsbench.contracts.check_submission import check_submission, read_ids
from mappa_dsbench.contracts.faults import MISSING, build_fault
from mappa_dsbench.contracts.run_probe import run_probe
from mappa_dsbench.grading.metrics import METRICS
from mappa_dsbench.roles import (
    ANALYST,
    DATA_ENGINEER,
    MODEL,
    MODELER,
    ROLES,
    SUBMISSION,
    TEST,
    TRAIN,
    X_TEST,
    X_TRAIN,
    Y_TRAIN,
)
from mappa_dsbench.table import problem_of_task

Facts = Mapping[str, Any]
"""JSON values. `faults` (see `faults.fault`), `hard` (whether one of them is) and `probed` (whether the files were
opened) are always there."""

_FAULTS_NEEDING_GOOD_FEATURES = frozenset({"predicts_badly", "wrong_kind", "no_probabilities"})
"""Faults of a model that count only where the features are usable."""
_FEATURES = (X_TRAIN, Y_TRAIN, X_TEST)


async def inspect_action(scene: Scene, bench: Bench, *, last: bool, done: bool) -> Inspection:
    """Check that the files exist after `scene.step`, and, once the agent says that it is `done` or its turns end,
    their content.

    Raises:
        TaskError: the task is none of DSBench's.
        ToolError: the machinery failed.
        ConfigError: the run has no tool that runs programs.
    """
    agent = scene.step.agent
    files = bench.files((*scene.earlier, scene.step))
    facts = _missing_facts(agent, files)
    if not facts["hard"] and (last or done):
        facts = await inspect_files(agent, scene.task, files, bench)
    inputs = [
        Breach(agent=agent, kind="broken_input", path=path, reason=one.reason, detail=one.detail)
        for path, one in _broken_files(scene.earlier).items()
        if path in ROLES[agent].needs
    ]
    outputs = [
        Breach(agent=agent, kind="broken_output", path=one["path"], reason=one["code"], detail=one["detail"])
        for one in facts["faults"]
        if one["hard"] and one["code"] != MISSING
    ]
    return Inspection(
        over=done and not facts["hard"],
        breaches=(*inputs, *outputs),
        findings=tuple(_describe_fault(one) for one in facts["faults"] if not one["hard"]),
        facts=facts,
    )


async def inspect_files(agent: str, task: Task, files: Mapping[str, Path], bench: Bench) -> Facts:
    """Open the files that `agent` has to make, all of which are among `files` (by path), and return the facts.

    Of the Data Engineer: `columns` (the names of the training features, empty where they have none), `rows_train`,
    `rows_test`, and `target`: `same`, `recoded` (other labels, or numbers on another scale), `other` or `unknown`.
    Of the Modeler: `model` (the name of its class) and `predictions` for the test features: `how`, and `values`, a list
    of one value per target for each row, None where there are too many; None where it cannot predict.
    Of the Analyst: `reason` (why the submission is rejected, or None), `faithful` and `hard_labels` (None where
    unknown). Where a probe was ended early, the facts are the faults alone.

    Raises: as `inspect_action`.
    """
    facts = await _INSPECTORS[agent](task, files, bench)
    return {**facts, "hard": any(one["hard"] for one in facts["faults"]), "probed": True}


async def _inspect_features(task: Task, files: Mapping[str, Path], bench: Bench) -> dict[str, Any]:
    problem = problem_of_task(task)
    parameters = {
        "prediction": METRICS[problem.metric].prediction,
        "targets": list(problem.targets),
        "id_column": problem.id_column,
    }
    return await run_probe(
        "features", parameters, _FEATURES, {**_task_tables(task), **_select_files(files, _FEATURES)}, bench
    )


async def _inspect_model(task: Task, files: Mapping[str, Path], bench: Bench) -> dict[str, Any]:
    problem = problem_of_task(task)
    parameters = {"prediction": METRICS[problem.metric].prediction, "targets": len(problem.targets)}
    facts = await run_probe("model", parameters, (MODEL,), _select_files(files, (MODEL, X_TEST, Y_TRAIN)), bench)
    if not await _features_are_usable(task, files, bench):
        facts["faults"] = [one for one in facts["faults"] if one["code"] not in _FAULTS_NEEDING_GOOD_FEATURES]
    return facts


async def _inspect_submission(task: Task, files: Mapping[str, Path], bench: Bench) -> dict[str, Any]:
    problem = problem_of_task(task)
    ids = await asyncio.to_thread(read_ids, _task_tables(task)[TEST], problem.id_column)
    predictions, recoded = None, False
    if MODEL in files and X_TEST in files:
        predictions = (await _inspect_model(task, files, bench)).get("predictions")
    if Y_TRAIN in files and X_TRAIN in files and X_TEST in files:
        recoded = (await _inspect_features(task, files, bench)).get("target") == "recoded"
    return await asyncio.to_thread(check_submission, files[SUBMISSION], problem, ids, predictions, recoded=recoded)


_INSPECTORS = {DATA_ENGINEER: _inspect_features, MODELER: _inspect_model, ANALYST: _inspect_submission}


async def _features_are_usable(task: Task, files: Mapping[str, Path], bench: Bench) -> bool:
    """Whether the features exist and have no hard fault, so that they can be used to check a model."""
    if any(path not in files for path in _FEATURES):
        return False
    return not any(one["hard"] for one in (await _inspect_features(task, files, bench))["faults"])


def _missing_facts(agent: str, files: Mapping[str, Path]) -> Facts:
    """Return the facts of files that were not opened: which of them are missing."""
    faults = [build_fault(MISSING, path) for path in ROLES[agent].produces if path not in files]
    return {"faults": faults, "hard": bool(faults), "probed": False}


def _broken_files(steps: Sequence[Step]) -> dict[str, Breach]:
    """Return the files that an action left unusable and no later action wrote."""
    breaches: dict[str, Breach] = {}
    for step in steps:
        for change in (change for result in step.results for change in result.files):
            breaches.pop(change.path, None)
        breaches.update({one.path: one for one in step.breaches if one.kind == "broken_output"})
    return breaches


def _task_tables(task: Task) -> dict[str, Path]:
    """Return the tables of the task. TaskError: one is missing."""
    if lacking := [name for name in (TRAIN, TEST) if name not in task.files]:
        raise TaskError(f"task {task.id!r} has no {' and no '.join(lacking)} among its files")
    return {name: Path(task.files[name]) for name in (TRAIN, TEST)}


def _select_files(files: Mapping[str, Path], paths: Sequence[str]) -> dict[str, Path]:
    return {path: files[path] for path in paths if path in files}


def _describe_fault(one: Mapping[str, Any]) -> str:
    return f"{one['path']}: {one['code']}" + (f" ({one['detail']})" if one["detail"] else "")
