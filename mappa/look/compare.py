"""Compares settings by the held-out results of their runs: paired by task, over seeds, corrected for multiple tests.

An *arm* is one setting, with one run per seed. Each pair of arms is compared on the problems that no run of either
lost, by `difference_over_seeds`; the p-values of all pairs are adjusted together (Holm).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from mappa.look.across_seeds import cohens_h, difference_over_seeds, holm, mean_over_seeds
from mappa.look.arrays import Bool, Float64
from mappa.look.run_results import RunResult, differing_settings
from mappa.store.summary import PARSED, among_parsed
from mappa_core import ConfigError
from mappa_core.records import Interval

if TYPE_CHECKING:
    from mappa.look.view.picture import Picture

SIGNIFICANCE_LEVEL = 0.05
"""An adjusted p-value below this is called significant."""
FINAL_LEVEL, INTERIM_LEVEL = 0.025, 0.005
"""Of what is looked at as it grows: at its end, and of all looks before together. By simulation they come to 4 %: a
test over few seeds finds a little more than its level."""
MIN_INTERIM_SEEDS = 3
"""Seeds of every arm before which nothing is found while runs are to come: the tail of a test over two is too heavy."""
MAX_LABEL_CHARACTERS = 20
"""Characters for which a picture has room beside its lines."""
PairFinding = Literal["better", "worse", "no significant difference", "cannot be told"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A setting: its runs, one per seed, and their `mean` with its 95 % interval. The mean leaves out the `lost`
    problems; it is None if every problem was lost in some run. `parsing` holds, by figure, the mean share of answers
    that could be read, and of the right ones among these, over the problems whose answer was read in every run; it is
    empty if the workflow does not say so, or if another figure is compared."""

    name: str
    runs: tuple[str, ...]
    seeds: tuple[int, ...]
    mean: Interval | None
    lost: int
    parsing: Mapping[str, Interval | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairComparison:
    """The `difference` of `one` minus `other` over `problems`, with the 95 % interval of this difference alone.

    `p` belongs to this test, `p_adjusted` accounts for all tests together (Holm); both are None if there are too few
    clusters. `h` is Cohen's effect size; `wins`, `losses` and `ties` count problems. If `over_seeds` is false, one of
    the two arms has a single seed: the figures generalize to other problems but not to other seeds, so a difference
    that is significant is one of these runs, and may be none of their settings. An adjusted p-value below `level` is
    called significant.
    """

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
    level: float

    @property
    def finding(self) -> PairFinding:
        """How the setting `one` compares with `other`. It cannot be told from too few clusters, or from one seed; nor
        from too few seeds while runs are to come."""
        if self.p_adjusted is None or not self.over_seeds or not self.level:
            return "cannot be told"
        if self.p_adjusted >= self.level:
            return "no significant difference"
        return "better" if self.difference.mean > 0 else "worse"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison:
    """Arms compared by `measure` on the same `problems` in `clusters` (None: every problem is its own cluster).
    `pooled` holds the settings other than the seed in which runs of one arm differ, with their values; `also_differ`
    those in which arms differ beside the ones that name them, with the values of each arm as text, in order."""

    measure: str
    problems: int
    clusters: int | None
    samples: int
    arms: tuple[Arm, ...]
    pairs: tuple[PairComparison, ...]
    level: float
    pooled: Mapping[str, tuple[str, ...]]
    also_differ: Mapping[str, tuple[str, ...]]

    def plot(self) -> Picture:
        """Draw a line per arm: the mean of the workflow's metric on held-out tasks over iterations, over its seeds. An
        arm of a long name is a letter, as in the text of the comparison."""
        from mappa.look.cli.compare import label_arms
        from mappa.look.view.picture import draw_picture
        from mappa.look.view.sweep_page import build_learning_chart, read_curve

        labels = label_arms([arm.name for arm in self.arms], MAX_LABEL_CHARACTERS)
        curves = {labels[arm.name]: [read_curve(Path(run)) for run in arm.runs] for arm in self.arms}
        chart = build_learning_chart(curves)
        return draw_picture([replace(chart, title="Held-out tasks over iterations, mean over seeds")])

    def __repr__(self) -> str:
        """What `mappa compare` prints."""
        from mappa.look.cli.compare import comparison_notes, show_comparison
        from mappa.look.printed import as_printed

        return as_printed(lambda console: show_comparison(console, self, comparison_notes(self)))

    def _repr_html_(self) -> str:
        from mappa.look.html import comparison_html

        return comparison_html(self)


def compare_arms(
    groups: Mapping[str, Sequence[RunResult]],
    *,
    measure: str | None = None,
    against: str | None = None,
    level: float = SIGNIFICANCE_LEVEL,
    named_by: Collection[str] = (),
) -> Comparison:
    """Compare arms, given as the results of their runs by arm name. A single arm gets its mean alone.

    Args:
        measure: a figure of the workflow to compare by, instead of its metric.
        against: the arm to compare all others with; None compares every pair.
        level: the adjusted p-value below which a difference is called significant.
        named_by: the settings in which the arms are meant to differ.

    Raises:
        ConfigError: an arm holds a seed twice; runs differ in their tasks, samples or grader; or `measure` or
            `against` is unknown.
    """
    if against is not None and against not in groups:
        raise ConfigError(f"--against {against}: no arm is named so; there are {', '.join(groups)}")
    results = [result for group in groups.values() for result in group]
    for name, group in groups.items():
        _reject_duplicate_seeds(name, group)
    for result in results[1:]:
        result.require_comparable(results[0])
    values = {name: _means_by_problem(group, measure) for name, group in groups.items()}
    first = results[0].evaluation
    pairs = [_compare_pair(*pair, values, first.clusters, level) for pair in _pair_names(list(groups), against)]
    parsing = _parsing_figures(results) if measure in (None, first.metric) else ()
    return Comparison(
        measure=measure or first.metric,
        problems=len(first.problems),
        clusters=first.cluster_count,
        samples=results[0].samples,
        arms=tuple(_build_arm(name, group, values[name], parsing) for name, group in groups.items()),
        pairs=_adjust_p_values(pairs),
        level=level,
        pooled=_pooled_settings(groups),
        also_differ=_other_differences(groups, named_by),
    )


def sequential_level(done: int, planned: int, seeds: int) -> float:
    """Return the level of significance when `done` of the `planned` runs are looked at, with at least so many `seeds`
    of every arm, so that all looks at a growing comparison, one after every run, find something that is not there in
    5 % together (Haybittle 1971; Peto et al. 1976): most of it is kept for the end. 0: nothing is found yet."""
    if done >= planned:
        return FINAL_LEVEL
    return INTERIM_LEVEL / planned if seeds >= MIN_INTERIM_SEEDS else 0.0


def _reject_duplicate_seeds(name: str, group: Sequence[RunResult]) -> None:
    seen: dict[int, RunResult] = {}
    for result in group:
        if result.seed in seen:
            raise ConfigError(
                f"{seen[result.seed].name} and {result.name} are both of seed {result.seed} in the arm {name}, and so "
                "no independent evidence: leave one out, or name the setting they differ in by --by KEY"
            )
        seen[result.seed] = result


def _means_by_problem(group: Sequence[RunResult], measure: str | None) -> Float64:
    """The mean over the samples of every problem, (runs, problems); NaN where a run lost all of them."""
    for result in group:
        known = result.evaluation.measures
        if measure is not None and measure not in known:
            raise ConfigError(f"--measure {measure}: {result.name} has {', '.join(known)}")
    return np.array(
        [(one.evaluation if measure is None else one.evaluation.with_metric(measure)).by_problem for one in group]
    )


def _parsing_figures(results: Sequence[RunResult]) -> tuple[str, ...]:
    """The figures that tell format from skill, if all results have them."""
    figures = PARSED, among_parsed(results[0].evaluation.metric)
    return figures if all(PARSED in result.evaluation.figures for result in results) else ()


def _build_arm(name: str, group: Sequence[RunResult], values: Float64, parsing: Sequence[str]) -> Arm:
    clusters = group[0].evaluation.clusters
    return Arm(
        name=name,
        runs=tuple(result.name for result in group),
        seeds=tuple(result.seed for result in group),
        mean=_mean_of_complete(values, clusters),
        lost=int((~_complete_problems(values)).sum()),
        parsing={figure: _mean_of_complete(_means_by_problem(group, figure), clusters) for figure in parsing},
    )


def _mean_of_complete(values: Float64, clusters: tuple[str, ...] | None) -> Interval | None:
    """The mean over the problems that have a value in every run; None if there is none."""
    known = _complete_problems(values)
    return mean_over_seeds(values[:, known], _select_clusters(clusters, known)) if known.any() else None


def _pair_names(names: Sequence[str], against: str | None) -> list[tuple[str, str]]:
    if against is None:
        return [(later, earlier) for earlier, later in combinations(names, 2)]
    return [(name, against) for name in names if name != against]


def _compare_pair(
    one: str, other: str, values: Mapping[str, Float64], clusters: tuple[str, ...] | None, level: float
) -> PairComparison:
    known = _complete_problems(values[one]) & _complete_problems(values[other])
    if not known.any():
        raise ConfigError(f"{one} and {other}: there is no problem that none of their runs lost, so nothing to compare")
    mine, theirs = values[one][:, known], values[other][:, known]
    found = difference_over_seeds(mine, theirs, _select_clusters(clusters, known))
    gains = mine.mean(axis=0) - theirs.mean(axis=0)
    return PairComparison(
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
        level=level,
    )


def _adjust_p_values(pairs: Sequence[PairComparison]) -> tuple[PairComparison, ...]:
    """Adjust the p-values of the pairs for all tests that have one."""
    tested = [index for index, pair in enumerate(pairs) if pair.p is not None]
    adjusted = dict(zip(tested, holm([p for pair in pairs if (p := pair.p) is not None]), strict=True))
    return tuple(
        replace(pair, p_adjusted=adjusted[index]) if index in adjusted else pair for index, pair in enumerate(pairs)
    )


def _pooled_settings(groups: Mapping[str, Sequence[RunResult]]) -> dict[str, tuple[str, ...]]:
    """Settings whose values differ within an arm."""
    pooled: dict[str, dict[str, None]] = {}
    for group in groups.values():
        for key in differing_settings(group):
            pooled.setdefault(key, {}).update(dict.fromkeys(result.setting(key) for result in group))
    return {key: tuple(values) for key, values in pooled.items()}


def _other_differences(
    groups: Mapping[str, Sequence[RunResult]], named_by: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """Settings whose values differ between the arms, without those in `named_by` and those that an arm lacks because it
    chose another offer."""
    keys = differing_settings([result for group in groups.values() for result in group])
    values = {
        key: [list(dict.fromkeys(one.setting(key) for one in group)) for group in groups.values()] for key in keys
    }
    found = {key: ones for key, ones in values.items() if any(set(one) != set(ones[0]) for one in ones)}

    def is_of_other_offer(key: str) -> bool:
        lacking = any("" in one for one in found[key])
        return lacking and any(f"{key[: at.start()]}.use" in found for at in re.finditer(r"\.options\.", key))

    return {
        key: tuple(", ".join(value or "not set" for value in one) for one in ones)
        for key, ones in found.items()
        if key not in named_by and not is_of_other_offer(key)
    }


def setting_notes(compared: Comparison) -> list[str]:
    """Notes on the settings in which runs of one arm differ, and in which the arms differ unnamed."""
    return [
        *(f"pooled in one arm: {key} of {', '.join(values)}" for key, values in compared.pooled.items()),
        *(f"the arms also differ in: {key} ({'; '.join(values)})" for key, values in compared.also_differ.items()),
    ]


def _complete_problems(values: Float64) -> Bool:
    return np.asarray(np.isfinite(values).all(axis=0))


def _select_clusters(clusters: tuple[str, ...] | None, known: Bool) -> list[str] | None:
    return None if clusters is None else [name for name, is_known in zip(clusters, known, strict=True) if is_known]


def format_p(p: float | None) -> str:
    """Format a p-value; a dash if there is none."""
    if p is None:
        return "-"
    return "<0.0001" if p < 1e-4 else f"{p:.4f}"
