"""Early warnings: figures of an update that tell that a policy is about to stop learning, or has.

A warning is a rule that one policy breaks: a figure beyond a limit of `train.health`, by its median over the last
iterations, as one iteration is noise. It is raised once, until the figure has been within its limit for as many.
Nothing is stopped by it: a figure says where to look, and people decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np

from mappa_core.config.schema import HealthSection
from mappa_core.experience import Experience

LAST = 5
"""Iterations whose median is judged, and that a warning takes to clear."""
START = 3
"""First iterations whose mean is where a figure started."""
BURST = 2
"""Iterations that a burst lasts at least."""
WINDOW = 20
"""Most iterations before a burst that it is held against; they are at least `LAST`."""

Measure = Callable[[Sequence[float]], float | None]
"""What is held against the limit, from a figure's values so far, the last one among them; None: too few to tell."""


def level(values: Sequence[float]) -> float | None:
    """The median of the last ones."""
    return median(values[-LAST:]) if len(values) >= LAST else None


def of_start(values: Sequence[float]) -> float | None:
    """The median of the last ones as a share of the mean of the first ones."""
    start = fmean(values[:START])
    return median(values[-LAST:]) / start if len(values) >= START + LAST and start > 0.0 else None


def burst(values: Sequence[float]) -> float | None:
    """The least of the last two in multiples of the median before them."""
    before = values[-BURST - WINDOW : -BURST]
    usual = median(before) if len(before) >= LAST else 0.0
    return min(values[-BURST:]) / usual if usual > 0.0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A figure of the engine and what it may come to. `limit` names the key of `train.health`; `says` has the value and
    the limit put in; `do` is what usually helps."""

    limit: str
    figure: str
    measure: Measure
    above: bool
    says: str
    do: str


RULES = (
    Rule(
        limit="entropy",
        figure="entropy",
        measure=of_start,
        above=False,
        says="entropy is {value:.0%} of what it was at the start (limit {limit:.0%}): the policy repeats itself, and "
        "siblings that are alike teach nothing",
        do="lower train.learning_rate, or set train.entropy_coef or a divergence from the reference",
    ),
    Rule(
        limit="grad_norm",
        figure="grad_norm",
        measure=burst,
        above=True,
        says="the gradient's norm is {value:.1f} times its running median (limit {limit:g}): updates follow a few rows",
        do="lower train.learning_rate or train.grad_clip, and look at the rewards of these iterations",
    ),
    Rule(
        limit="clip_share",
        figure="clip_share",
        measure=level,
        above=True,
        says="the loss clips {value:.0%} of tokens (limit {limit:.0%}): the policy moves further in an iteration than "
        "its samples can tell",
        do="take fewer train.epochs, larger train.minibatch_rows or a lower train.learning_rate",
    ),
    Rule(
        limit="ess",
        figure="ess",
        measure=level,
        above=False,
        says="the effective sample size is {value:.0%} of the sample (limit {limit:.0%}): what sampled is no longer "
        "what learns",
        do="lower engine.options.max_staleness; where mismatch_max is high without it, the two compute differently",
    ),
    Rule(
        limit="kl",
        figure="kl",
        measure=level,
        above=True,
        says="the policy is {value:.2f} nats a token from its reference (limit {limit:g}): what the start model knew "
        "is being unlearned",
        do="lower train.learning_rate, or weigh the divergence more (kl_coef of the estimator or the loss)",
    ),
    Rule(
        limit="equal_groups",
        figure="equal_groups",
        measure=level,
        above=True,
        says="in {value:.0%} of groups all siblings have the same reward (limit {limit:.0%}): an estimator that "
        "compares siblings learns nothing from them",
        do="take tasks that are solved sometimes, more train.samples, or a coach that tells actions apart",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthWarning:
    """A rule that a policy breaks. `value` and `limit` are in the rule's own unit."""

    rule: str
    policy: str
    value: float
    limit: float
    says: str
    do: str

    def __str__(self) -> str:
        return f"policy {self.policy}: {self.says}. What may help: {self.do}."


@dataclass(slots=True)
class _Watched:
    values: list[float] = field(default_factory=list)
    quiet: int = LAST
    """Iterations within the limit since it was broken last; a warning has cleared at `LAST`."""

    def raises(self, is_broken: bool) -> bool:
        """Whether a look at the limit raises a warning."""
        had_cleared = self.quiet >= LAST
        self.quiet = 0 if is_broken else self.quiet + 1
        return is_broken and had_cleared


class Health:
    """The rules that are on, over the iterations of a run so far. What it says hangs on the figures alone, so a resumed
    run that is told those of before goes on as if it had never stopped."""

    def __init__(self, limits: HealthSection) -> None:
        self._limits = {rule.limit: getattr(limits, rule.limit) for rule in RULES}
        self._watched: dict[tuple[str, str], _Watched] = {}

    def observe(self, policies: Mapping[str, Mapping[str, float]]) -> tuple[HealthWarning, ...]:
        """Take in one iteration's figures by policy; the warnings that it raises. A figure that is not there, as no
        step was taken, leaves its rule as it was."""
        found = (self._look(rule, policy, figures) for policy, figures in policies.items() for rule in RULES)
        return tuple(warning for warning in found if warning is not None)

    def replay(self, iterations: Sequence[Mapping[str, float]]) -> None:
        """Take in iterations as a store has them, under flat names, `policy/NAME/FIGURE`."""
        for metrics in iterations:
            policies: dict[str, dict[str, float]] = {}
            for name, value in metrics.items():
                owner, _, figure = name.rpartition("/")
                if owner.startswith("policy/"):
                    policies.setdefault(owner.removeprefix("policy/"), {})[figure] = value
            self.observe(policies)

    def _look(self, rule: Rule, policy: str, figures: Mapping[str, float]) -> HealthWarning | None:
        limit = self._limits[rule.limit]
        if limit is None or rule.figure not in figures:
            return None
        watched = self._watched.setdefault((rule.limit, policy), _Watched())
        figure = figures[rule.figure]
        # A figure that is no number is beyond any limit.
        watched.values.append((math.inf if rule.above else -math.inf) if math.isnan(figure) else figure)
        value = rule.measure(watched.values)
        if value is None or not watched.raises(value > limit if rule.above else value < limit):
            return None
        says = rule.says.format(value=value, limit=limit)
        return HealthWarning(rule=rule.limit, policy=policy, value=value, limit=limit, says=says, do=rule.do)


def spread(experience: Experience) -> dict[str, dict[str, float]]:
    """How far rewards differ, by policy, over the rows that count: `reward_std`, and `equal_groups`, the share of
    groups of at least two siblings (task, agent, turn) whose rewards are all equal. Where there are none, nothing."""
    found: dict[str, dict[str, float]] = {}
    for number, policy in enumerate(experience.policies):
        rows = np.flatnonzero((experience.policy == number) & (experience.weight > 0))
        if not len(rows):
            continue
        reward, group = experience.reward[rows], experience.group[rows]
        found[policy] = {"reward_std": float(reward.std(dtype=np.float64))}
        siblings = [reward[group == one] for one in np.unique(group)]
        equal = [bool((one == one[0]).all()) for one in siblings if len(one) > 1]
        if equal:
            found[policy]["equal_groups"] = float(np.mean(equal))
    return found


def joined(*parts: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Figures by policy from several sources as one."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: {figure: value for part in parts for figure, value in part.get(name, {}).items()} for name in names}
