"""`IterationReport`: all figures of one iteration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from mappa.store.agent_columns import AgentSummary
from mappa_core.errors import ToolError
from mappa_core.protocols import DriftReport
from mappa_core.records import Usage

USAGE_COUNTS = ("calls", "prompt_tokens", "completion_tokens", "cached_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictCount:
    """Verdicts by status, and the usage of their calls. `usage` is None if no provider was called; verdicts from a
    cassette count as `replayed` and not as usage."""

    scored: int = 0
    abstained: int = 0
    failed: int = 0
    replayed: int = 0
    usage: Usage | None = None

    @property
    def verdicts(self) -> int:
        return self.scored + self.abstained + self.failed

    @property
    def missing(self) -> float:
        """The share of verdicts without a score."""
        return (self.abstained + self.failed) / self.verdicts if self.verdicts else 0.0

    @property
    def usd(self) -> float | None:
        """Cost of the calls; None if the price of any is unknown."""
        return 0.0 if self.usage is None else self.usage.usd

    def metrics(self) -> dict[str, float | None]:
        counted = {"verdicts": self.verdicts, "abstained": self.abstained, "failed": self.failed, "usd": self.usd}
        if self.usage is None:
            return counted
        usage = {name: getattr(self.usage, name) for name in USAGE_COUNTS}
        return {**counted, "replayed": self.replayed, **usage}


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachFigures:
    """Verdict counts of one iteration: total, by agent and by coach; `reasons` counts why scores are missing."""

    total: VerdictCount = field(default_factory=VerdictCount)
    by_agent: Mapping[str, VerdictCount] = field(default_factory=dict)
    by_coach: Mapping[str, VerdictCount] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeFigures:
    """Means over finished rollouts, None if there is none: the workflow's metric, and its further figures by name.
    `unsolved` of the rollouts outgrew the window and count 0 among them (`credit.overflow`)."""

    accuracy: float | None = None
    figures: Mapping[str, float | None] = field(default_factory=dict)
    unsolved: int = 0

    def metrics(self) -> dict[str, float | None]:
        return {"accuracy": self.accuracy, **_prefixed("figure", self.figures)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Age of the sampling weights over tokens, in updates."""

    mean: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterfactualFigures:
    """Counterfactual rollouts, those of them that tools lost or that outgrew the window, actions with a credit, and
    actions without by reason."""

    rollouts: int
    lost: int
    overflowed: int
    settled: int
    missing: Mapping[str, int] = field(default_factory=dict)

    def metrics(self) -> dict[str, float | None]:
        return {
            "rollouts": self.rollouts,
            "lost": self.lost,
            "overflowed": self.overflowed,
            "settled": self.settled,
            **_prefixed("missing", self.missing),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthWarning:
    """A rule of `train.health` that a policy breaks. `value` and `limit` are in the rule's unit."""

    rule: str
    policy: str
    value: float
    limit: float
    says: str
    do: str

    def __str__(self) -> str:
        return f"policy {self.policy}: {self.says}. What may help: {self.do}."


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationReport:
    """Figures of one iteration; `iteration` counts from 1.

    `strata` are the outcomes within each stratum of tasks. `failed_rollouts` counts by kind of error, and `overflowed`
    of them ended in a prompt beyond the window that the team made long; `tool_retries` counts retries of calls after a
    tool's machinery failed. `late` of this iteration's own rollouts are left to a later
    one, `joined` of the `rollouts` come from earlier ones, and `replaced` of them are not learned from (None: dynamic
    sampling is off). `staleness` is None without tokens. `corrections` counts the corrections that were learned from
    and, by reason, those that were not (`credit.demonstrations`); it is empty without a supervised term.
    `counterfactuals` is None if they are off. `seconds` maps a phase (collect, score, update, …) to wall seconds;
    `policies` holds the engine's metrics per policy and the spread of its rewards; `warnings` lists what is newly out
    of bounds.
    """

    iteration: int
    outcomes: OutcomeFigures = field(default_factory=OutcomeFigures)
    strata: Mapping[str, OutcomeFigures] = field(default_factory=dict)
    rollouts: int = 0
    replaced: int | None = None
    late: int = 0
    joined: int = 0
    staleness: Staleness | None = None
    failed_rollouts: Mapping[str, int] = field(default_factory=dict)
    overflowed: int = 0
    tool_retries: int = 0
    tokens: int = 0
    agents: Mapping[str, AgentSummary] = field(default_factory=dict)
    coach: CoachFigures = field(default_factory=CoachFigures)
    drift: DriftReport = field(default_factory=DriftReport)
    policies: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    warnings: tuple[HealthWarning, ...] = ()
    corrections: Mapping[str, int] = field(default_factory=dict)
    counterfactuals: CounterfactualFigures | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """Number of rollouts that could not be finished."""
        return sum(self.failed_rollouts.values())

    @property
    def lost(self) -> int:
        """Number of rollouts lost to tool failures."""
        return sum(count for kind, count in self.failed_rollouts.items() if kind == ToolError.__name__)

    @property
    def total_seconds(self) -> float:
        """Wall seconds of all phases."""
        return sum(self.seconds.values())

    @property
    def throughput(self) -> float | None:
        """Sampled tokens per second over all phases."""
        return self.tokens / self.total_seconds if self.total_seconds > 0 else None

    def metrics(self) -> dict[str, float]:
        """Metrics by flat name, for trackers and data frames (`docs/metrics.md`); an unknown value has no entry."""
        counterfactuals = {} if self.counterfactuals is None else self.counterfactuals.metrics()
        flat: dict[str, float | None] = {
            **self.outcomes.metrics(),
            "rollouts": self.rollouts,
            "rollouts/failed": self.failed,
            "rollouts/overflowed": self.overflowed,
            "rollouts/replaced": self.replaced,
            "rollouts/late": self.late,
            "rollouts/joined": self.joined,
            "staleness_mean": None if self.staleness is None else self.staleness.mean,
            "staleness_max": None if self.staleness is None else self.staleness.max,
            "tools/lost": self.lost,
            "tools/retries": self.tool_retries,
            "tokens": self.tokens,
            **_prefixed("coach", self.coach.total.metrics()),
            **_drift_metrics(self.drift),
            "health/warnings": len(self.warnings),
            **_prefixed("corrections", self.corrections),
            **_prefixed("counterfactual", counterfactuals),
            **_prefixed("seconds", self.seconds),
        }
        for stratum, outcomes in self.strata.items():
            flat |= _prefixed(f"stratum/{stratum}", outcomes.metrics())
        for agent, count in self.coach.by_agent.items():
            flat |= _prefixed(f"coach/agent/{agent}", count.metrics())
        for coach, count in self.coach.by_coach.items():
            flat |= _prefixed(f"coach/name/{coach}", count.metrics())
        for agent, figures in self.agents.items():
            flat |= _prefixed(f"agent/{agent}", asdict(figures))
        for policy, metrics in self.policies.items():
            flat |= _prefixed(f"policy/{policy}", metrics)
        return {name: float(value) for name, value in flat.items() if value is not None}

    def columns(self) -> dict[str, float]:
        """Columns of a data frame of iterations."""
        return {"iteration": self.iteration, **self.metrics()}


def _drift_metrics(report: DriftReport) -> dict[str, float | None]:
    flat: dict[str, float | None] = {"drift/alarms": len(report.alarms)}
    for gap in report.gaps:
        name = f"drift/{gap.phase}/{gap.agent}/{gap.stratifier}/{gap.stratum}"
        if gap.points is not None:
            flat[f"{name}/gap"] = gap.points.mean
            flat[f"{name}/gap_low"], flat[f"{name}/gap_high"] = gap.points.low, gap.points.high
        flat[f"{name}/growth"] = None if gap.growth is None else gap.growth.mean
    return flat


def _prefixed(prefix: str, metrics: Mapping[str, float | None] | Mapping[str, float]) -> dict[str, float | None]:
    return {f"{prefix}/{name}": value for name, value in metrics.items()}
