"""Does a verdict for every action teach more than the outcome whatever model a team starts from? Three warm starts.

The shipped model and two that are made as it was by `mappa mathchat warm-start` with other seeds: other problems, other
draws of the planted habits, other first weights. From each, on the mix *hard* (`process_vs_outcome.py`), *process*
learns from the coach's verdict on each action, *outcome* from whether the final answer was right. All run at the rate
that was best for both from the shipped model in `opponents.py`.

Claimed beforehand. From each start *process* is better than *outcome*. Were it an accident of the one model that ships,
it would not be so from another.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
from claims import Claim, report
from process_vs_outcome import ARMS as REWARDS
from process_vs_outcome import MIXES
from study import UNGUARDED, Asked, Study, Words, study_options

from mappa_mathchat.tiny.warm_start import WARM_START

SHIPPED, OTHERS = 0, (1, 2)
"""Seeds of the models."""
STEPS, QUICK_STEPS = 1600, 10
"""The first is what the shipped model took."""
COMMON: Words = (UNGUARDED, *MIXES["hard"].settings, "train.learning_rate=5e-4")
CLAIMS = tuple(
    Claim(one=f"start {seed}, process", other=f"start {seed}, outcome", expected="better")
    for seed in (SHIPPED, *OTHERS)
)


def make_models(folder: Path, *, steps: int) -> dict[int, Words]:
    """Make the models that are not in `folder` yet; the settings of every start, by its seed."""
    starts: dict[int, Words] = {SHIPPED: ()}
    for seed in OTHERS:
        model = folder / str(seed)
        if not (model / "manifest.json").exists():
            WARM_START.build(model, seed, steps, partial(click.echo, err=True))
        starts[seed] = (f"policies.default.model={model}",)
    return starts


@click.command(help=__doc__)
@study_options
def main(asked: Asked) -> None:
    study = Study(name="warm_starts", asked=asked)
    folder = Path(study.config.run.root) / "models" / study.folder.name
    starts = make_models(folder, steps=QUICK_STEPS if asked.quick else STEPS)
    arms = {
        f"start {seed}, {name}": (*COMMON, *start, *words)
        for seed, start in starts.items()
        for name, words in REWARDS.items()
    }
    report(study, study.train(arms, asked.seeds), CLAIMS)


if __name__ == "__main__":
    main()
