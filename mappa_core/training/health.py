"""Health monitoring: warnings on update metrics which show that a policy stops learning.

A warning is raised when a metric of one policy is beyond a limit of `train.health`, by its median over the last
iterations, because one iteration is noise. It is raised again only after the metric was within its limit for as many
iterations. A warning stops nothing: it says where to look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np

from mappa_core.config.schema import HealthSection
from mappa_core.experience import Experience
from mappa_core.store.iteration_report import HealthWarning

RECENT_ITERATIONS = 5
"""Iterations whose median is checked, and that a warning takes to clear."""
START_ITERATIONS = 3
"""First iterations, whose mean is the start value of a metric."""
BURST_ITERATIONS = 2
"""Minimum length of a burst in iterations."""
BASELINE_ITERATIONS = 20
"""Maximum number of iterations before a burst that it is compared to; the minimum is `RECENT_ITERATIONS`."""

Measure = Callable[[Sequence[float]], float | None]
"""Computes the value to compare to the limit from all values of a metric so far; None if they are too few."""


def recent_median(values: Sequence[float]) -> float | None:
    """Median of the last values."""
    return median(values[-RECENT_ITERATIONS:]) if len(values) >= RECENT_ITERATIONS else None


def recent_share_of_start(values: Sequence[float]) -> float | None:
    """Median of the last values as a share of the mean of the first values."""
    start = fmean(values[:START_ITERATIONS])
    return (
        median(values[-RECENT_ITERATIONS:]) / start
        if len(values) >= START_ITERATIONS + RECENT_ITERATIONS and start > 0.0
        else None
    )


def burst_ratio(values: Sequence[float]) -> float | None:
    """Minimum of the last two values in multiples of the median before them."""
    before = values[-BURST_ITERATIONS - BASELINE_ITERATIONS : -BURST_ITERATIONS]
    usual = median(before) if len(before) >= RECENT_ITERATIONS else 0.0
    return min(values[-BURST_ITERATIONS:]) / usual if usual > 0.0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRule:
    """A limit on a metric of the engine. `limit` is the key of `train.health`; `says` is the message template with
    value and limit; `do` is the advice."""

    limit: str
    figure: str
    measure: Measure
    above: bool
    says: str
    do: str


HEALTH_RULES = (
    HealthRule(
        limit="entropy",
        figure="entropy",
        measure=recent_share_of_start,
        above=False,
        says="entropy is {value:.0%} of what it was at the start (limit {limit:.0%}): the policy repeats itself, and "
        "siblings that are alike teach nothing",
        do="lower train.learning_rate, or set train.entropy_coef or a divergence from the reference",
    ),
    HealthRule(
        limit="grad_norm",
        figure="grad_norm",
        measure=burst_ratio,
        above=True,
        says="the gradient's norm is {value:.1f} times its running median (limit {limit:g}): updates follow a few rows",
        do="lower train.learning_rate or train.grad_clip, and look at the rewards of these iterations",
    ),
    HealthRule(
        limit="clip_share",
        figure="clip_share",
        measure=recent_median,
        above=True,
        says="the loss clips {value:.0%} of tokens (limit {limit:.0%}): the policy moves further in an iteration than "
        "its samples can tell",
        do="take fewer train.epochs, larger train.minibatch_rows or a lower train.learning_rate",
    ),
    HealthRule(
        limit="ess",
        figure="ess",
        measure=recent_median,
        above=False,
        says="the effective sample size is {value:.0%} of the sample (limit {limit:.0%}): what sampled is no longer "
        "what learns",
        do="lower engine.options.max_staleness; where mismatch_max is high without it, the two compute differently",
    ),
    HealthRule(
        limit="kl",
        figure="kl",
        measure=recent_median,
        above=True,
        says="the policy is {value:.2f} nats a token from its reference (limit {limit:g}): what the start model knew "
        "is being unlearned",
        do="lower train.learning_rate, or weigh the divergence more (kl_coef of the estimator or the loss)",
    ),
    HealthRule(
        limit="equal_groups",
        figure="equal_groups",
        measure=recent_median,
        above=True,
        says="in {value:.0%} of groups all siblings have the same reward (limit {limit:.0%}): an estimator that "
        "compares siblings learns nothing from them",
        do="take tasks that are solved sometimes, more train.samples, or a coach that tells actions apart",
    ),
)


@dataclass(slots=True)
class _RuleState:
    values: list[float] = field(default_factory=list)
    quiet: int = RECENT_ITERATIONS
    """Iterations within the limit since it was broken last; a warning clears at `RECENT_ITERATIONS`."""

    def raises(self, is_broken: bool) -> bool:
        """Update the state with one check of the limit; return whether it raises a warning."""
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
        warnings = (self._check(rule, policy, figures) for policy, figures in policies.items() for rule in HEALTH_RULES)
        return tuple(warning for warning in warnings if warning is not None)

    def _check(self, rule: HealthRule, policy: str, figures: Mapping[str, float]) -> HealthWarning | None:
        limit = self._limits[rule.limit]
        if limit is None or rule.figure not in figures:
            return None
        state = self._states.setdefault((rule.limit, policy), _RuleState())
        figure = figures[rule.figure]
        # NaN is beyond any limit.
        state.values.append((math.inf if rule.above else -math.inf) if math.isnan(figure) else figure)
        value = rule.measure(state.values)
        if value is None or not state.raises(value > limit if rule.above else value < limit):
            return None
        says = rule.says.format(value=value, limit=limit)
        return HealthWarning(rule=rule.limit, policy=policy, value=value, limit=limit, says=says, do=rule.do)


def reward_spread(experience: Experience) -> dict[str, dict[str, float]]:
    """Spread of rewards by policy, over rows of positive weight: `reward_std`, and `equal_groups`, the share of groups
    of at least two siblings (task, agent, turn) whose rewards are all equal. Without such rows there is no entry."""
    metrics: dict[str, dict[str, float]] = {}
    for number, policy in enumerate(experience.policies):
        rows = np.flatnonzero((experience.policy == number) & (experience.weight > 0))
        if not len(rows):
            continue
        reward, group = experience.reward[rows], experience.group[rows]
        metrics[policy] = {"reward_std": float(reward.std(dtype=np.float64))}
        siblings = [reward[group == one] for one in np.unique(group)]
        equal = [bool((one == one[0]).all()) for one in siblings if len(one) > 1]
        if equal:
            metrics[policy]["equal_groups"] = float(np.mean(equal))
    return metrics


def merge_policy_metrics(*parts: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Merge metrics by policy from several sources."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: {figure: value for part in parts for figure, value in part.get(name, {}).items()} for name in names}
