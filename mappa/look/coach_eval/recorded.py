"""Coach `recorded`: verdicts that were given elsewhere, from a file, by run and step.

Lines of the file are objects; `run` is the name of the rollout in its log (or in a run folder its id), a step is the
number of its message in the log (else its place among the actions, or its id):

    {"run": "r1", "step": 4, "score": 2.5, "blame": "planner", "reasoning": "…", "judge": "gpt"}    points, 0-10
    {"run": "r1", "step": 4, "value": -1}                            1 right, 0 neither, -1 wrong
    {"run": "r1", "steps": {"2": 1, "4": -1}, "judge": "gpt"}        the values of all steps
    {"run": "r1", "agent": "planner", "step": 4}                     one guilty agent and step; the others are right

In place of `run` a line may have `dataset`, `query` and `sample`, as the verdicts of AgentProcessBench do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mappa.look.importing.documents import Document, read_documents
from mappa.look.importing.trajectories import MESSAGE_NUMBERS, RUN_NAME
from mappa_core import MAX_SCORE, Coach, ConfigError, InputError, Scene, Verdict

POINTS_PER_VALUE = MAX_SCORE / 2
"""Points between the values -1, 0 and 1 of a step: 0, 5 and 10 points."""
UNSAID = "the judge said nothing on this step"
UNKNOWN_RUN = "the file holds no verdict of this judge on this run"


@dataclass
class RecordedOptions:
    path: str = "???"
    """File with the verdicts: JSON Lines or JSON, also compressed."""
    judge: str | None = None
    """Whose verdicts, where the file holds those of several judges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Given:
    """What a judge said of a run: verdicts by the name of the step, and the one that all other steps get."""

    by_step: Mapping[str, Verdict]
    others: Verdict | None = None


class RecordedCoach(Coach):
    """Looks verdicts up. A step that the judge left out is abstained from: a missing verdict is not a wrong one."""

    def __init__(self, options: RecordedOptions) -> None:
        """Raises InputError for a file that is not of verdicts, ConfigError for a judge that is not in it."""
        judges = _read_judges(Path(options.path).expanduser())
        if options.judge is None and len(judges) > 1:
            raise ConfigError(f"judge: {options.path} holds verdicts of {', '.join(judges)}: name one of them")
        if options.judge is not None and options.judge not in judges:
            raise ConfigError(f"judge: {options.path} holds none of {options.judge}; it has {', '.join(judges)}")
        self._runs = judges[options.judge if options.judge is not None else next(iter(judges))]

    @property
    def by_trajectory(self) -> bool:
        """Whether all actions of a trajectory are looked up together, which is faster."""
        return True

    async def score(self, scene: Scene) -> Verdict:
        known = scene.task.meta
        given = self._runs.get(str(known.get(RUN_NAME))) or self._runs.get(scene.step.id.rpartition("/")[0])
        if given is None:
            return Verdict.abstained(UNKNOWN_RUN)
        numbers = known.get(MESSAGE_NUMBERS)
        number = scene.step.position if not isinstance(numbers, Sequence) else numbers[scene.step.position]
        found = given.by_step.get(scene.step.id) or given.by_step.get(str(number))
        return found or given.others or Verdict.abstained(UNSAID)


def list_judges(path: Path) -> list[str]:
    """Names of the judges of a file. Raises InputError as `RecordedCoach` does."""
    return list(_read_judges(path))


@lru_cache(maxsize=8)
def _read_judges(path: Path) -> Mapping[str, Mapping[str, _Given]]:
    """What each judge said of each run."""
    steps: dict[tuple[str, str], dict[str, Verdict]] = {}
    others: dict[tuple[str, str], Verdict] = {}
    for document in read_documents([path]):
        key = (_read_judge(document), _read_run(document))
        known = steps.setdefault(key, {})
        for name, verdict in _read_verdicts(document).items():
            if known.setdefault(name, verdict) != verdict:
                raise InputError(f"{document.place}: step {name} of {key[1]} is judged already, and otherwise")
        if "agent" in document.row:
            others[key] = Verdict.scored(MAX_SCORE, "another step was blamed")
    judges: dict[str, dict[str, _Given]] = {}
    for (judge, run), known in steps.items():
        judges.setdefault(judge, {})[run] = _Given(by_step=known, others=others.get((judge, run)))
    return judges


def _read_judge(document: Document) -> str:
    judge = document.row.get("judge", "")
    if not isinstance(judge, str):
        raise InputError(f"{document.place}: judge: not a name: {judge!r}")
    return judge


def _read_run(document: Document) -> str:
    row = document.row
    if "run" in row:
        return str(row["run"])
    if {"dataset", "query", "sample"} <= set(row):
        return f"{row['dataset']}/{row['query']}/{row['sample']}"
    raise InputError(f"{document.place}: run: is not there; here are {', '.join(sorted(row)) or 'no keys'}")


def _read_verdicts(document: Document) -> dict[str, Verdict]:
    """The verdicts of a line, by step; a step without a value has none."""
    row = document.row
    if "steps" in row:
        if not isinstance(row["steps"], Mapping):
            raise InputError(f"{document.place}: steps: not an object of steps and their values")
        values = {str(name): value for name, value in row["steps"].items() if value is not None}
        return {name: _scored(document, value, f"steps.{name}", row) for name, value in values.items()}
    if "step" not in row:
        raise InputError(f"{document.place}: neither step nor steps is there")
    if row["step"] is None:
        return {}
    name = str(row["step"])
    if "agent" in row:
        return {name: Verdict.scored(0.0, _read_reason(row), blame=_read_name(document, "agent"))}
    if row.get("score") is not None:
        return {name: _scored_points(document)}
    return {} if row.get("value") is None else {name: _scored(document, row["value"], "value", row)}


def _scored(document: Document, value: Any, key: str, row: Mapping[str, Any]) -> Verdict:
    if isinstance(value, bool) or value not in (-1, 0, 1):
        raise InputError(f"{document.place}: {key}: {value!r} is none of 1, 0, -1")
    return Verdict.scored(POINTS_PER_VALUE * (value + 1), _read_reason(row), blame=_read_name(document, "blame"))


def _scored_points(document: Document) -> Verdict:
    score = document.row["score"]
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise InputError(f"{document.place}: score: not a number: {score!r}")
    if not 0 <= score <= MAX_SCORE:
        raise InputError(f"{document.place}: score: {score:g} does not lie between 0 and {MAX_SCORE:g} points")
    return Verdict.scored(score, _read_reason(document.row), blame=_read_name(document, "blame"))


def _read_name(document: Document, key: str) -> str | None:
    name = document.row.get(key)
    if name is not None and not isinstance(name, str):
        raise InputError(f"{document.place}: {key}: not a name: {name!r}")
    return name


def _read_reason(row: Mapping[str, Any]) -> str:
    reason = row.get("reasoning", row.get("reason"))
    return reason if isinstance(reason, str) else ""
