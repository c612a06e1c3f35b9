"""Compare settings by their runs' held-out results: paired on the same tasks, over seeds, corrected for many tests.

An *arm* is one setting, with a run for each of its seeds. Every two arms are compared on the problems that no run of
either lost, by `difference_over_seeds`; the p-values of all pairs are adjusted together (Holm).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from mappa_core.errors import ConfigError
from mappa_core.evaluation.seeds import cohens_h, difference_over_seeds, holm, mean_over_seeds
from mappa_core.records import Bool, Float64
from mappa_core.store.summary import Interval
from mappa_core.studies.results import Result, differing

LEVEL = 0.05
"""Below this an adjusted p-value is called significant."""
Finding = Literal["better", "worse", "no significant difference"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A setting: its runs, one a seed, and the `mean` of all of them with its 95 % interval; None where every problem
    was lost in one of them. `lost` problems are left out of it."""

    name: str
    runs: tuple[str, ...]
    seeds: tuple[int, ...]
    mean: Interval | None
    lost: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What `one` is above `other` by, over `problems`, with its 95 % interval, which is of this difference alone. `p`
    is of this test, `p_adjusted` for all tests together (Holm); None where they cannot be told. `h` is Cohen's effect
    size; `wins`, `losses` and `ties` count problems. Without `over_seeds` one of the two has a single seed, and all
    this speaks of other problems, not of other seeds."""

    one: str
    other: str
    problems: int
    difference: Interval
    p: float | None
    p_adjusted: float | None
    h: float
    wins: int
    losses: int
    ties: int
    over_seeds: bool

    @property
    def finding(self) -> Finding | None:
        """What is to be said of `one`; None where it cannot be told."""
        if self.p_adjusted is None:
            return None
        if self.p_adjusted >= LEVEL:
            return "no significant difference"
        return "better" if self.difference.mean > 0 else "worse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Arms on the same `problems` in `clusters` (None: every problem stands for itself), by `measure`; `pooled` names
    settings that runs of one arm differ in, beside the seed, with the values that were pooled."""

    measure: str
    problems: int
    clusters: int | None
    samples: int
    arms: tuple[Arm, ...]
    pairs: tuple[Pair, ...]
    pooled: Mapping[str, tuple[str, ...]]


def compare(
    groups: Mapping[str, Sequence[Result]], *, measure: str | None = None, against: str | None = None
) -> Compared:
    """Compare arms, given as the results of their runs by name; of one alone there is its mean.

    Args:
        measure: a figure of the workflow in place of its metric.
        against: the arm that all others are held against; None: every two are compared.

    Raises:
        ConfigError: an arm holds a seed twice, or runs evaluated other tasks, other samples
            or with another grader; or `measure` or `against` is unknown.
    """
    if against is not None and against not in groups:
        raise ConfigError(f"--against {against}: no arm is named so; there are {', '.join(groups)}")
    results = [result for group in groups.values() for result in group]
    for name, group in groups.items():
        _refuse_seed_twice(name, group)
    for result in results[1:]:
        result.refuse_unlike(results[0])
    values = {name: _values(group, measure) for name, group in groups.items()}
    first = results[0].evaluation
    pairs = [_pair(*pair, values, first.clusters) for pair in _pairs(list(groups), against)]
    return Compared(
        measure=measure or first.metric,
        problems=len(first.problems),
        clusters=first.cluster_count,
        samples=results[0].samples,
        arms=tuple(_arm(name, group, values[name], first.clusters) for name, group in groups.items()),
        pairs=_adjusted(pairs),
        pooled=_pooled(groups),
    )


def _refuse_seed_twice(name: str, group: Sequence[Result]) -> None:
    seen: dict[int, Result] = {}
    for result in group:
        if result.seed in seen:
            raise ConfigError(
                f"{seen[result.seed].name} and {result.name} are both of seed {result.seed} in the arm {name}, and so "
                "no independent evidence: leave one out, or name the setting they differ in by --by KEY"
            )
        seen[result.seed] = result


def _values(group: Sequence[Result], measure: str | None) -> Float64:
    """The mean of every problem's samples (runs, problems), NaN where a run lost all of them."""
    for result in group:
        known = result.evaluation.measures
        if measure is not None and measure not in known:
            raise ConfigError(f"--measure {measure}: {result.name} has {', '.join(known)}")
    return np.array([(one.evaluation if measure is None else one.evaluation.of(measure)).by_problem for one in group])


def _arm(name: str, group: Sequence[Result], values: Float64, clusters: tuple[str, ...] | None) -> Arm:
    known = _known(values)
    return Arm(
        name=name,
        runs=tuple(result.name for result in group),
        seeds=tuple(result.seed for result in group),
        mean=mean_over_seeds(values[:, known], _chosen(clusters, known)) if known.any() else None,
        lost=int((~known).sum()),
    )


def _pairs(names: Sequence[str], against: str | None) -> list[tuple[str, str]]:
    if against is None:
        return [(later, earlier) for earlier, later in combinations(names, 2)]
    return [(name, against) for name in names if name != against]


def _pair(one: str, other: str, values: Mapping[str, Float64], clusters: tuple[str, ...] | None) -> Pair:
    known = _known(values[one]) & _known(values[other])
    if not known.any():
        raise ConfigError(f"{one} and {other}: there is no problem that none of their runs lost, so nothing to compare")
    mine, theirs = values[one][:, known], values[other][:, known]
    found = difference_over_seeds(mine, theirs, _chosen(clusters, known))
    gains = mine.mean(axis=0) - theirs.mean(axis=0)
    return Pair(
        one=one,
        other=other,
        problems=int(known.sum()),
        difference=found.interval,
        p=found.p,
        p_adjusted=None,
        h=cohens_h(float(mine.mean()), float(theirs.mean())),
        wins=int((gains > 0).sum()),
        losses=int((gains < 0).sum()),
        ties=int((gains == 0).sum()),
        over_seeds=found.over_seeds,
    )


def _adjusted(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """The pairs with their p-values adjusted for all tests that could be made."""
    tested = [index for index, pair in enumerate(pairs) if pair.p is not None]
    adjusted = dict(zip(tested, holm([p for pair in pairs if (p := pair.p) is not None]), strict=True))
    return tuple(
        replace(pair, p_adjusted=adjusted[index]) if index in adjusted else pair for index, pair in enumerate(pairs)
    )


def _pooled(groups: Mapping[str, Sequence[Result]]) -> dict[str, tuple[str, ...]]:
    """Settings whose values differ within an arm."""
    pooled: dict[str, dict[str, None]] = {}
    for group in groups.values():
        for key in differing(group):
            pooled.setdefault(key, {}).update(dict.fromkeys(result.setting(key) for result in group))
    return {key: tuple(values) for key, values in pooled.items()}


def _known(values: Float64) -> Bool:
    return np.asarray(np.isfinite(values).all(axis=0))


def _chosen(clusters: tuple[str, ...] | None, known: Bool) -> list[str] | None:
    return None if clusters is None else [name for name, is_known in zip(clusters, known, strict=True) if is_known]
