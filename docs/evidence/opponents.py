"""A verdict for every action against stronger ways to learn from the outcome alone, on the mix *hard*.

*process* is the recipe: the coach's verdict on each action, two samples of a task. The others give every action whether
the final answer was right: by the same estimator (*outcome*), by RLOO and by GRPO with eight samples of a task, and by
GAE with a value head. By *difference* an action is worth what the outcome loses when the action is sampled once more
and the rest played anew. All have 32 rollouts an iteration; *difference* has ten and replays of all their actions,
which take as many actions as the other 22. Each runs at its best learning rate of five, chosen by a seed that is not
reported, on the half of the held-out tasks that is not reported either.

Claimed beforehand. After 768 rollouts each of the others is worse than *process*, significantly. Were it the choice of
a weak opponent that made verdicts look good, one of them would be level.
"""

from __future__ import annotations

from collections.abc import Mapping

import click
from arms import table
from claims import Claim, judged, restricted, results
from curves import Curve, accuracy_over_run, curve_cells, reported_problems
from process_vs_outcome import EVERY, MIXES
from rates import at_best_rates
from study import UNGUARDED, Asked, Study, Words, study_options

OUTCOME = "shapers=[{use: outcome}]"
EIGHT: Words = (OUTCOME, "train.prompts=4", "train.samples=8")
ARMS: Mapping[str, Words] = {
    "process": (),
    "outcome": (OUTCOME,),
    "outcome, RLOO": (*EIGHT, "estimator={use: rloo, options: {kl_coef: 0.01}}"),
    "outcome, GRPO": (*EIGHT, "estimator={use: grpo}"),
    "difference": ("shapers=[{use: difference}]", "credit.counterfactual.use=resample", "train.prompts=5"),
    "outcome, GAE": (OUTCOME, "estimator={use: gae, options: {normalize: policy}}", "policies.default.value_head=true"),
}
RATES = (1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3)
CHOOSER = 100
"""The seed that chooses the rates."""


@click.command(help=__doc__)
@click.option("--arm", "named", multiple=True, type=click.Choice(tuple(ARMS)), default=tuple(ARMS), help="Who learns.")
@study_options
def main(asked: Asked, named: tuple[str, ...]) -> None:
    study = Study(name="opponents", asked=asked)
    every = (f"eval.every={max(1, study.config.train.iterations // 2)}",) if asked.quick else EVERY
    rates = RATES[2:3] if asked.quick else RATES
    arms = {arm: (UNGUARDED, *every, *MIXES["hard"].settings, *ARMS[arm]) for arm in named}
    choices = at_best_rates(study, arms, dict.fromkeys(arms, rates), accuracy_over_run, choosing=(CHOOSER,))
    header = ("arm", "rate", "accuracy over the run where the rate was chosen, in per cent")
    click.echo(table(header, [one.cells for one in choices]))
    curves = {one.arm: Curve.of(one.rate, one.runs, study.rollouts_per_iteration, choosing=False) for one in choices}
    after = tuple(str(rollouts) for rollouts in next(iter(curves.values())).rollouts)
    click.echo("\nAccuracy in per cent after so many rollouts, on the other tasks:\n")
    click.echo(
        table(("mix", "arm", "rate", *after, "s"), [curve_cells("hard", arm, own) for arm, own in curves.items()])
    )
    runs = {one.arm: one.runs for one in choices}
    reported = reported_problems(choices[0].runs[0])
    claims = [Claim(one=arm, other="process", expected="worse") for arm in runs if arm != "process"]
    found = judged(
        claims if "process" in runs else (),
        {arm: [restricted(one, reported) for one in group] for arm, group in results(runs).items()},
    )
    click.echo()
    click.echo(table(("pair", "tasks", "difference", "p", "found", "claimed", ""), [one.cells for one in found]))
    study.finish(
        study.write(
            rates=[one.told for one in choices],
            curves={arm: own.told for arm, own in curves.items()},
            claims=found,
        )
    )


if __name__ == "__main__":
    main()
