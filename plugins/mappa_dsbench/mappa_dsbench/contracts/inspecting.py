"""Looks into what an agent leaves, after each of its actions: is its contract met, and is it done?"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mappa_core import Bench, Breach, Inspection, Scene, Step, Task, TaskError
from mappa_dsbench.contracts.faults import MISSING, fault
from mappa_dsbench.contracts.handing_in import handed_in, ids_of
from mappa_dsbench.contracts.probing import probed
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
from mappa_dsbench.table import problem_in

Facts = Mapping[str, Any]
"""JSON values. `faults` (see `faults.fault`), `hard` (whether one of them is) and `probed` (whether the files were
opened) are always there."""

_OF_GOOD_FEATURES = frozenset({"predicts_badly", "wrong_kind", "no_probabilities"})
"""Faults that a model is only held to on features that can be used."""
_FEATURES = (X_TRAIN, Y_TRAIN, X_TEST)


async def inspect(scene: Scene, bench: Bench, *, last: bool, done: bool) -> Inspection:
    """Look at the files after `scene.step`: whether they are there, and, once the agent says that it is `done` or its
    turns end, what is in them.

    Raises:
        TaskError: the task is none of DSBench's.
        ToolError: the machinery failed.
        ConfigError: the run has no tool that runs programs.
    """
    agent = scene.step.agent
    files = bench.files((*scene.earlier, scene.step))
    facts = _absent(agent, files)
    if not facts["hard"] and (last or done):
        facts = await look_into(agent, scene.task, files, bench)
    inputs = [
        Breach(agent=agent, kind="broken_input", path=path, reason=one.reason, detail=one.detail)
        for path, one in _broken(scene.earlier).items()
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
        findings=tuple(_sentence(one) for one in facts["faults"] if not one["hard"]),
        facts=facts,
    )


async def look_into(agent: str, task: Task, files: Mapping[str, Path], bench: Bench) -> Facts:
    """Open what `agent` has to make, all of which is among `files`: the content of what actions left, by path.

    Of the Data Engineer: `columns` (the names of the training features, none where they have none), `rows_train`,
    `rows_test`, and `target`: `same`, `recoded` (other labels, or numbers on another scale), `other` or `unknown`.
    Of the Modeler: `model` (the name of its class) and `predictions` of the test features: `how`, and `values`, a list
    of one value per target for each row, None where there are too many; None where it cannot predict.
    Of the Analyst: `reason` (why the submission is rejected, or None), `faithful` and `hard_labels` (None where they
    cannot be told). Where a program ended before its time, only the faults are there.

    Raises: as `inspect`.
    """
    found = await _OF[agent](task, files, bench)
    return {**found, "hard": any(one["hard"] for one in found["faults"]), "probed": True}


async def _features(task: Task, files: Mapping[str, Path], bench: Bench) -> dict[str, Any]:
    problem = problem_in(task)
    told = {
        "prediction": METRICS[problem.metric].prediction,
        "targets": list(problem.targets),
        "id_column": problem.id_column,
    }
    return await probed("features", told, _FEATURES, {**_tables(task), **_some(files, _FEATURES)}, bench)


async def _model(task: Task, files: Mapping[str, Path], bench: Bench) -> dict[str, Any]:
    problem = problem_in(task)
    told = {"prediction": METRICS[problem.metric].prediction, "targets": len(problem.targets)}
    found = await probed("model", told, (MODEL,), _some(files, (MODEL, X_TEST, Y_TRAIN)), bench)
    if not await _sound(task, files, bench):
        found["faults"] = [one for one in found["faults"] if one["code"] not in _OF_GOOD_FEATURES]
    return found


async def _submission(task: Task, files: Mapping[str, Path], bench: Bench) -> dict[str, Any]:
    problem = problem_in(task)
    ids = await asyncio.to_thread(ids_of, _tables(task)[TEST], problem.id_column)
    predictions, recoded = None, False
    if MODEL in files and X_TEST in files:
        predictions = (await _model(task, files, bench)).get("predictions")
    if Y_TRAIN in files and X_TRAIN in files and X_TEST in files:
        recoded = (await _features(task, files, bench)).get("target") == "recoded"
    return await asyncio.to_thread(handed_in, files[SUBMISSION], problem, ids, predictions, recoded=recoded)


_OF = {DATA_ENGINEER: _features, MODELER: _model, ANALYST: _submission}


async def _sound(task: Task, files: Mapping[str, Path], bench: Bench) -> bool:
    """Whether a model can be held to the features that are there."""
    if any(path not in files for path in _FEATURES):
        return False
    return not any(one["hard"] for one in (await _features(task, files, bench))["faults"])


def _absent(agent: str, files: Mapping[str, Path]) -> Facts:
    """The facts of an agent whose files were not opened: which of them are missing."""
    faults = [fault(MISSING, path) for path in ROLES[agent].produces if path not in files]
    return {"faults": faults, "hard": bool(faults), "probed": False}


def _broken(steps: Sequence[Step]) -> dict[str, Breach]:
    """Files that an action left in a state in which they cannot be used, and that no later one wrote."""
    found: dict[str, Breach] = {}
    for step in steps:
        for change in (change for result in step.results for change in result.files):
            found.pop(change.path, None)
        found.update({one.path: one for one in step.breaches if one.kind == "broken_output"})
    return found


def _tables(task: Task) -> dict[str, Path]:
    """The tables of the task. TaskError: one is not given."""
    if lacking := [name for name in (TRAIN, TEST) if name not in task.files]:
        raise TaskError(f"task {task.id!r} has no {' and no '.join(lacking)} among its files")
    return {name: Path(task.files[name]) for name in (TRAIN, TEST)}


def _some(files: Mapping[str, Path], paths: Sequence[str]) -> dict[str, Path]:
    return {path: files[path] for path in paths if path in files}


def _sentence(one: Mapping[str, Any]) -> str:
    return f"{one['path']}: {one['code']}" + (f" ({one['detail']})" if one["detail"] else "")
