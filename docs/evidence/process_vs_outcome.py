"""How many rollouts to a held-out accuracy: a verdict for every action, against the outcome for every action.

Both arms run the same code on the same tasks; only the rewards differ. *process* takes the coach's verdict on each
action, *outcome* gives every action of a rollout whether the final answer was right. Each runs at its best learning
rate of three, chosen on one half of the held-out tasks (by hash, as `eval.selection` parts them) and reported on the
other; the mix *hard* has three steps, at least one of which multiplies or divides.

Claimed beforehand. The outcome arm needs more rollouts to every target: the interval of the ratio lies above 1. At the
end of the run the two differ on the ordinary mix by nothing that is significant, for given enough rollouts averaging
does what verdicts do. Were verdicts worth nothing beside the outcome, the ratio would hold 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import click
from arms import table
from claims import Claim, Judged, Standing, judged, restricted, results
from curves import (
    Comparison,
    Curve,
    accuracy_over_run,
    compare_curves,
    comparison_cells,
    curve_cells,
    reported_problems,
)
from rates import Choice, at_best_rates
from study import UNGUARDED, Asked, Study, Words, study_options

EVERY = ("eval.every=6", "eval.problems=192")
"""A curve of five points, on enough problems for half of them to be reported."""
ARMS: Mapping[str, Words] = {"process": (), "outcome": ("shapers=[{use: outcome}]",)}
RATES = (2.5e-4, 5e-4, 1e-3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Tasks to learn, and the accuracies to reach on them."""

    settings: Words
    targets: tuple[float, ...]


MIXES: Mapping[str, Mix] = {
    "ordinary": Mix(settings=(), targets=(0.6,)),
    "hard": Mix(settings=("tasks.options.mix=scale", "tasks.options.steps=[3]"), targets=(0.4, 0.6)),
}
LEVEL_AT_THE_END = Claim(one="outcome", other="process", expected="no significant difference")


@click.command(help=__doc__)
@click.option(
    "--mix", "mixes", multiple=True, type=click.Choice(tuple(MIXES)), default=tuple(MIXES), help="Tasks to learn."
)
@study_options
def main(asked: Asked, mixes: tuple[str, ...]) -> None:
    study = Study(name="process_vs_outcome", asked=asked)
    every = (f"eval.every={max(1, study.config.train.iterations // 2)}",) if asked.quick else EVERY
    choices: list[Choice] = []
    for mix in mixes:
        arms = {f"{mix}, {arm}": (UNGUARDED, *every, *MIXES[mix].settings, *words) for arm, words in ARMS.items()}
        choices += at_best_rates(study, arms, dict.fromkeys(arms, RATES), accuracy_over_run)
    curves = {one.arm: _curve(study, one) for one in choices}
    found = [
        compare_curves(mix, target, {arm: curves[f"{mix}, {arm}"] for arm in ARMS})
        for mix in mixes
        for target in MIXES[mix].targets
    ]
    _show(choices, curves, found)
    ends = [_end(choices)] if "ordinary" in mixes else []
    for end in ends:
        click.echo(f"\nat the end of the ordinary mix: {', '.join(end.cells)}")
    study.finish(
        study.write(
            rates=[one.told for one in choices],
            curves={arm: curve.told for arm, curve in curves.items()},
            comparisons=[{"comparison": one, "standing": needs_more(one)} for one in found],
            claims=ends,
        )
    )


def _curve(study: Study, choice: Choice) -> Curve:
    return Curve.of(choice.rate, choice.runs, study.rollouts_per_iteration, choosing=False)


def _end(choices: Sequence[Choice]) -> Judged:
    """Both arms at the end of the ordinary mix, on the tasks that are reported."""
    runs = {arm: next(one.runs for one in choices if one.arm == f"ordinary, {arm}") for arm in ARMS}
    own = reported_problems(runs["process"][0])
    (end,) = judged(
        (LEVEL_AT_THE_END,), {arm: [restricted(one, own) for one in group] for arm, group in results(runs).items()}
    )
    return end


def needs_more(found: Comparison) -> Standing:
    """Whether the outcome arm needs more rollouts, as was claimed; open where there is no ratio."""
    ratio = found.ratio
    if ratio is None or ratio.low is None:
        return "open"
    return "held" if ratio.low > 1 else "not held"


def _show(choices: Sequence[Choice], curves: Mapping[str, Curve], found: list[Comparison]) -> None:
    header = ("arm", "rate", "accuracy over the run where the rate was chosen, in per cent")
    click.echo(table(header, [one.cells for one in choices]))
    after = tuple(str(rollouts) for rollouts in next(iter(curves.values())).rollouts)
    rows = [curve_cells(*name.split(", "), curve) for name, curve in curves.items()]
    click.echo("\nAccuracy in per cent after so many rollouts, on the other tasks:\n")
    click.echo(table(("mix", "arm", "rate", *after, "s"), rows))
    click.echo("\nRollouts to an accuracy, with 95 % intervals (and by seed):\n")
    header = ("mix", "to", "process", "outcome", "outcome / process", "more rollouts, as claimed")
    click.echo(table(header, [(*comparison_cells(one), needs_more(one)) for one in found]))


if __name__ == "__main__":
    main()
