"""`summary.json`: what a run came to, for scripts to rely on. What is not known (yet) is null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from mappa_core.store.files import read_versioned, write_atomic

NAME = "summary.json"
SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean and its 95 % interval, in the unit of what it is of."""

    mean: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSummary:
    """One figure (a share, 0-1) before and after training, and its gain, paired on the same tasks."""

    before: Interval | None = None
    after: Interval | None = None
    gain: Interval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StratumSummary:
    """Held-out results within one stratum of `n` tasks."""

    n: int
    before: Interval | None = None
    after: Interval | None = None
    gain: Interval | None = None
    figures: Mapping[str, FigureSummary] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionSummary:
    """How the checkpoint was chosen that is reported: on `n` other tasks, as the best of `evaluations`. It is that
    after `iteration` iterations and came to `value` (a share, 0-1) there, which the choice makes too good."""

    n: int
    evaluations: int
    iteration: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSummary:
    """Held-out results over `n` tasks: the workflow's `metric` (a share, 0-1) before and after training, and its
    further `figures`. `gain` is paired on the same tasks. Intervals are by cluster where tasks come in `clusters`
    (None: every task stands for itself). `after` is of the last weights or, with a `selection`, of those chosen on
    tasks that are none of these."""

    metric: str
    n: int
    clusters: int | None = None
    before: Interval | None = None
    after: Interval | None = None
    gain: Interval | None = None
    figures: Mapping[str, FigureSummary] = field(default_factory=dict)
    strata: Mapping[str, StratumSummary] = field(default_factory=dict)
    selection: SelectionSummary | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSummary:
    """One agent in one iteration, None where there is nothing to average: mean score of its scored actions (points,
    0-10), share of its calls of tools that succeeded, actions per trajectory in which it acted, sampled tokens per
    action."""

    score: float | None = None
    tool_success: float | None = None
    turns: float | None = None
    length: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachSummary:
    """Verdicts over the whole run, and what the calls for them cost; `usd` is None where a price is unknown."""

    verdicts: int = 0
    failed: int = 0
    usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSummary:
    """What failures of the tools' machinery came to in training: trajectories that were lost, and calls that were made
    again."""

    lost: int = 0
    attempts_again: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Time since the run was started, or resumed for the last time; `cpu` is of all its processes."""

    wall: float | None = None
    cpu: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The whole of `summary.json`. `iterations` is how many are done."""

    schema: int = SCHEMA
    plugin: str
    recipe: str
    recipe_hash: str
    seed: int
    status: Literal["running", "done", "stopped", "failed"]
    iterations: int = 0
    eval: EvalSummary | None = None
    agents: Mapping[str, AgentSummary] = field(default_factory=dict)
    coach: CoachSummary = field(default_factory=CoachSummary)
    tools: ToolSummary = field(default_factory=ToolSummary)
    seconds: Seconds = field(default_factory=Seconds)


def write_summary(folder: Path, summary: Summary) -> None:
    """Write `summary.json` of a run folder, whole or not at all. A number that is not finite is written as null."""
    write_atomic(folder / NAME, msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")


def read_summary(folder: Path) -> Summary:
    """The summary of a run folder. Raises RunError where the file is missing, of a newer schema or no summary."""
    return read_versioned(folder / NAME, SCHEMA, lambda text: msgspec.json.decode(text, type=Summary))
