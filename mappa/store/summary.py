"""`summary.json`: results of a run in a stable format for scripts. Unknown values are null."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from mappa.store.agent_columns import AgentSummary
from mappa_core.files import read_versioned, write_file
from mappa_core.records import Interval

SUMMARY_NAME = "summary.json"
SUMMARY_SCHEMA = 1
MAX_SUMMARY_BYTES = 16 << 20

PARSED = "parsed"
"""The figure by which a workflow says whether a final answer could be read at all."""


def among_parsed(metric: str) -> str:
    """Name the figure that is the metric among the answers that could be read."""
    return f"{metric}_among_{PARSED}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureSummary:
    """One figure (a share, 0-1) before and after training, and its gain, paired on the same tasks: on as many as
    `paired` where it is unknown for others before or after, None where it is known for all."""

    before: Interval | None = None
    after: Interval | None = None
    gain: Interval | None = None
    paired: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StratumSummary(FigureSummary):
    """Held-out results within one stratum of `n` tasks."""

    n: int
    figures: Mapping[str, FigureSummary] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectionSummary:
    """How the reported checkpoint was chosen: on `n` other tasks, as the best of `evaluations`. It is the one after
    `iteration` iterations; `value` (a share, 0-1) is its mean there, which is biased upwards by the choice."""

    n: int
    evaluations: int
    iteration: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSummary(StratumSummary):
    """Held-out results over `n` tasks: the workflow's `metric` (a share, 0-1) before and after training, and its
    further `figures`; `known` of the tasks have it, before and after. `gain` is paired on the same tasks. Intervals are
    clustered if tasks come in `clusters` (None: independent). `after` is of the last weights or of the `selection`."""

    metric: str
    known: tuple[int, ...] = ()
    clusters: int | None = None
    strata: Mapping[str, StratumSummary] = field(default_factory=dict)
    selection: SelectionSummary | None = None

    @property
    def parsing(self) -> Mapping[str, FigureSummary]:
        """Of the figures those that tell format from skill; empty if the workflow does not say what was parsed."""
        return {name: self.figures[name] for name in (PARSED, among_parsed(self.metric)) if name in self.figures}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachSummary:
    """Verdicts over the whole run, and the cost of their calls; `usd` is None if a price is unknown."""

    verdicts: int = 0
    failed: int = 0
    usd: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSummary:
    """Effects of tool failures in training: number of lost trajectories, and of retries of calls."""

    lost: int = 0
    retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Seconds of all starts of the run but killed ones, whose time is unknown; `cpu` is of all its processes."""

    wall: float | None = None
    cpu: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Contents of `summary.json`. `iterations` is the number of finished ones."""

    schema: int = SUMMARY_SCHEMA
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
    engine_losses: int = 0
    """How often the engine or a process of it died, hung or failed."""
    transport_losses: int = 0
    """How often a provider's client broke or hung, and was replaced."""
    seconds: Seconds = field(default_factory=Seconds)


def write_summary(folder: Path, summary: Summary) -> None:
    """Write `summary.json` of a run folder atomically. Non-finite numbers are written as null."""
    write_file(folder, SUMMARY_NAME, msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")


def read_summary(folder: Path) -> Summary:
    """Read the summary of a run folder. Raises RunError if the file is missing, of another schema or no summary."""
    return read_versioned(
        folder,
        SUMMARY_NAME,
        SUMMARY_SCHEMA,
        lambda text: msgspec.json.decode(text, type=Summary),
        max_bytes=MAX_SUMMARY_BYTES,
    )
