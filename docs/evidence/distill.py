"""Do a coach's reasons teach beside its points? Process rewards alone, against process rewards and self-distillation.

On the hard mix (three steps, at least one of which multiplies or divides) `process` learns from the points of the rule
coach, and `process + distill` half from these and half from the same policy with the coach's reason behind its prompt
(`estimator.use=distill`, SDPO). A policy can teach itself only by reasons that it can read, so both are trained twice:
from the model that is *shipped*, which has never read one, and from one that *reads*: the shipped one, shown better
replies to reasons (`reading_model.py`). All run at 2.5e-4, the rate that `process_vs_outcome.py` chose for process
rewards on this mix, for 16 iterations (512 rollouts), where accuracy still rises. Reasons of two agents name the right
answer of a training task (`truth: true`).

Claimed beforehand. `reads, process + distill` is better than `reads, process`: what a reason says of a reply points at
the tokens that were wrong, which a number does not. `shipped, process + distill` is worse than `shipped, process`: what
it makes of a text that it cannot read has nothing to do with the action, and takes half of the signal. Were it the
disturbance of the prompt that helps, it would help both; were reasons worth nothing beside points, neither.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click
from arms import table
from claims import Claim, report
from reading_model import QUICK_STEPS, SHIPPED, STEPS, TEMPLATE, make_reading_model, measure_reading
from study import UNGUARDED, Asked, Study, Words, study_options

SHORT = ("train.iterations=16", "eval.problems=96")
HARD = ("tasks.options.mix=scale", "tasks.options.steps=[3]", "train.learning_rate=2.5e-4")
STARTS = ("reads", "shipped")
REWARDS = "rewards: {use: reinforce_plus_plus, options: {kl_coef: 0.01, normalize: policy}}"
DISTILL = (
    "estimator.use=distill",
    f"estimator.options={{weight: 0.5, truth: true, template: {json.dumps(TEMPLATE)}, {REWARDS}}}",
)
CLAIMS = (
    Claim(one="reads, process + distill", other="reads, process", expected="better"),
    Claim(one="shipped, process + distill", other="shipped, process", expected="worse"),
)


def arms(model: Path, starts: Sequence[str], *shared: str) -> dict[str, Words]:
    """Both ways to learn, from the shipped model and from the one in the folder `model`, which reads; all with the
    settings `shared`."""
    models: dict[str, Words] = {"reads": (f"policies.default.model={model}",), "shipped": (UNGUARDED,)}
    ways: dict[str, Words] = {"process": (), "process + distill": DISTILL}
    return {
        f"{start}, {way}": (*HARD, *shared, *models[start], *words) for start in starts for way, words in ways.items()
    }


@click.command(help=__doc__)
@click.option(
    "--start", "starts", multiple=True, type=click.Choice(STARTS), default=STARTS, help="Models to train from."
)
@study_options
def main(asked: Asked, starts: tuple[str, ...]) -> None:
    study = Study(name="distill", asked=asked)
    model = Path(study.config.run.root) / "models" / f"{study.folder.name}-reads"
    if not (model / "manifest.json").exists():
        make_reading_model(model, steps=QUICK_STEPS if asked.quick else STEPS, report=partial(click.echo, err=True))
    surprise = {"reads": measure_reading(model), "shipped": measure_reading(SHIPPED)}
    header = ("model", "nats a token of better replies, after their own reason", "after another's")
    click.echo(table(header, [(name, f"{one.own:.3f}", f"{one.other:.3f}") for name, one in surprise.items()]) + "\n")
    claims = [claim for claim in CLAIMS if claim.one.startswith(starts)]
    runs = study.train(arms(model, starts, *(() if asked.quick else SHORT)), asked.seeds)
    report(study, runs, claims, surprise=surprise)


if __name__ == "__main__":
    main()
