"""Health monitoring: warnings on update metrics which show that a policy stops learning.

A warning is raised when a policy's metric is beyond a limit of `train.health` by its median over the last iterations,
because one iteration is noise, and again only after it was within the limit for as many. It stops nothing: it says
where to look.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from statistics import fmean, median

import numpy as np

from mappa.evaluation.probe import count_differing, sibling_rewards
from mappa.store.iteration_report import HealthWarning
from mappa_core.config.schema import HealthSection
from mappa_core.experience import Experience

RECENT_ITERATIONS = 5  # their median is checked, and a warning takes as many to clear
START_ITERATIONS = 3  # their mean is the start value of a metric
BURST_ITERATIONS = 2  # minimum length of a burst
BASELINE_ITERATIONS = 20  # maximum number before a burst that it is compared to; the minimum is RECENT_ITERATIONS

Measure = Callable[[Sequence[float]], float | None]
"""Computes the value to compare to the limit from all values of a metric so far; None if they are too few."""


def recent_median(values: Sequence[float]) -> float | None:
    return median(values[-RECENT_ITERATIONS:]) if len(values) >= RECENT_ITERATIONS else None


def recent_share_of_start(values: Sequence[float]) -> float | None:
    """Median of the last values as a share of the mean of the first values."""
    start = fmean(values[:START_ITERATIONS])
    # The two windows must not overlap. A share of a start of 0 says nothing.
    if len(values) < START_ITERATIONS + RECENT_ITERATIONS or start <= 0.0:
        return None
    return median(values[-RECENT_ITERATIONS:]) / start


def burst_ratio(values: Sequence[float]) -> float | None:
    """Minimum of the last two values in multiples of the median before them."""
    before = values[-BURST_ITERATIONS - BASELINE_ITERATIONS : -BURST_ITERATIONS]
    if len(before) < RECENT_ITERATIONS:
        return None
    baseline = median(before)
    # The minimum, so that a single outlier is no burst.
    return min(values[-BURST_ITERATIONS:]) / baseline if baseline > 0.0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRule:
    """A limit on a metric of the engine, named like its key of `train.health`. `says` is the message template with
    value and limit; `do` is the advice."""

    limit: str
    measure: Measure
    above: bool
    says: str
    do: str


MEASURES = {measure.__name__: measure for measure in (recent_median, recent_share_of_start, burst_ratio)}


def _load_health_rules() -> Iterator[HealthRule]:
    text = files(__package__).joinpath("health_rules.toml").read_text("utf-8")
    for limit, rule in tomllib.loads(text).items():
        yield HealthRule(
            limit=limit,
            measure=MEASURES[rule["measure"]],
            above=rule["above"],
            says=rule["says"],
            do=rule["do"],
        )


HEALTH_RULES = tuple(_load_health_rules())


@dataclass(slots=True)
class _RuleState:
    values: list[float] = field(default_factory=list)
    quiet: int = RECENT_ITERATIONS
    """Iterations within the limit since it was broken last; a warning clears at `RECENT_ITERATIONS`."""

    def raises(self, is_broken: bool) -> bool:
        """Add one check of the limit; return whether it raises a warning."""
        had_cleared = self.quiet >= RECENT_ITERATIONS
        self.quiet = 0 if is_broken else self.quiet + 1
        return is_broken and had_cleared


class HealthMonitor:
    """Checks the active rules over the iterations of a run. Its state depends on the metrics alone, so a resumed run
    that replays earlier metrics continues as if it had never stopped."""

    def __init__(self, limits: HealthSection) -> None:
        self._limits = {rule.limit: getattr(limits, rule.limit) for rule in HEALTH_RULES}
        self._states: dict[tuple[str, str], _RuleState] = {}

    def observe(self, policies: Mapping[str, Mapping[str, float]]) -> tuple[HealthWarning, ...]:
        """Add one iteration's metrics by policy; return the warnings that it raises. A missing metric, as when no step
        was taken, leaves the state of its rule unchanged."""
        warnings = []
        for policy, metrics in policies.items():
            for rule in HEALTH_RULES:
                warning = self._check(rule, policy, metrics.get(rule.limit))
                if warning is not None:
                    warnings.append(warning)
        return tuple(warnings)

    def _check(self, rule: HealthRule, policy: str, metric: float | None) -> HealthWarning | None:
        limit = self._limits[rule.limit]
        if limit is None or metric is None:
            return None
        state = self._states.setdefault((rule.limit, policy), _RuleState())
        if math.isnan(metric):
            # Beyond any limit. A NaN in the history would make the median depend on the order of the values.
            metric = math.inf if rule.above else -math.inf
        state.values.append(metric)
        value = rule.measure(state.values)
        if value is None:
            return None
        is_broken = value > limit if rule.above else value < limit
        if not state.raises(is_broken):
            return None
        says = rule.says.format(value=value, limit=limit)
        return HealthWarning(rule=rule.limit, policy=policy, value=value, limit=limit, says=says, do=rule.do)


def reward_spread(experience: Experience) -> dict[str, dict[str, float]]:
    """Spread of rewards by policy, over rows of positive weight: `reward_std`, and `equal_groups`, the share of groups
    of at least two siblings (task, agent, turn) whose rewards are all equal. Without such rows there is no entry."""
    metrics: dict[str, dict[str, float]] = {}
    for policy_number, policy in enumerate(experience.policies):
        rows = np.flatnonzero((experience.policy == policy_number) & (experience.weight > 0))
        if not len(rows):
            continue
        metrics[policy] = {"reward_std": float(experience.reward[rows].std(dtype=np.float64))}
        if groups := sibling_rewards(experience, rows):
            metrics[policy]["equal_groups"] = (len(groups) - count_differing(groups)) / len(groups)
    return metrics


def teacher_gap(experience: Experience) -> dict[str, dict[str, float]]:
    """By policy, over rows of positive weight that have a teacher: their number `teacher_rows`, and `teacher_kl`, the
    mean over tokens of learner less teacher, nats: an estimate of KL(policy || teacher)."""
    if experience.teacher_logprobs is None or experience.old_logprobs is None:
        return {}
    taught = (experience.token_weight > 0) & ~np.isnan(experience.teacher_logprobs)
    # Over tokens that the policy sampled, the mean of this difference is unbiased for the divergence; a single one may
    # be negative.
    gap = np.subtract(experience.old_logprobs, experience.teacher_logprobs, dtype=np.float64)
    metrics: dict[str, dict[str, float]] = {}
    for number, policy in enumerate(experience.policies):
        tokens = taught & (experience.policy == number)[experience.row_of_token]
        metrics[policy] = {"teacher_rows": float(len(np.unique(experience.row_of_token[tokens])))}
        if tokens.any():
            metrics[policy]["teacher_kl"] = float(gap[tokens].mean())
    return metrics


def merge_policy_metrics(*parts: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Merge metrics by policy; of a metric that several parts hold, the last counts."""
    merged: dict[str, dict[str, float]] = {}
    for part in parts:
        for policy, metrics in part.items():
            merged.setdefault(policy, {}).update(metrics)
    return merged
