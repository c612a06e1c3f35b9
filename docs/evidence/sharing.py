"""Shared weights, adapters, or own weights: how should three agents divide a model, at equal rollouts?

`own`: each agent has weights of its own, which is the recipe. `lora`: each has an adapter (rank 16) on one base.
`shared`: one set of weights plays all three, and learns from all their actions. Each arm runs at the best of its three
learning rates, chosen on tasks that are not reported; what is reported is the best checkpoint of every run, which the
same tasks choose.

Claimed beforehand. Roles with different formats and different faults do not disturb each other in weights of their own,
so `own` is better than `shared`. An adapter has rank enough for habits as small as these: `lora` is no different from
`own`. Were the roles to help each other, `shared` would be as good or better, with a third of the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from arms import table
from claims import Claim, report
from rates import at_best_rates
from study import Asked, Study, Words, study_options

from mappa.store.summary import read_summary

AGENTS = ("problem_solver", "code_executor", "verifier")
CHOSEN = ("checkpoint.best=true", "eval.every=8")
ARMS: dict[str, Words] = {
    "own": CHOSEN,
    "lora": (*CHOSEN, "policies.default.kind=lora", "policies.default.lora={rank: 16, alpha: 32}"),
    "shared": (*CHOSEN, *(f"agents.{agent}.policy=team" for agent in AGENTS)),
}
RATES: Mapping[str, Sequence[float]] = {
    "own": (2.5e-4, 5e-4, 1e-3),
    "lora": (1e-3, 3e-3, 1e-2),
    "shared": (2.5e-4, 5e-4, 1e-3),
}
CLAIMS = (
    Claim(one="shared", other="own", expected="worse"),
    Claim(one="lora", other="own", expected="no significant difference"),
)


def selected(runs: Sequence[Path]) -> float:
    """The mean over runs of what their best checkpoints came to on the tasks that chose them."""
    found = [read_summary(run).eval for run in runs]
    values = [own.selection.value for own in found if own is not None and own.selection is not None]
    assert len(values) == len(runs)  # all of them were asked for a best checkpoint
    return sum(values) / len(values)


@click.command(help=__doc__)
@study_options
def main(asked: Asked) -> None:
    study = Study(name="sharing", asked=asked)
    choices = at_best_rates(study, ARMS, RATES, selected)
    click.echo(table(("arm", "rate", "accuracy where it was chosen, in per cent"), [one.cells for one in choices]))
    click.echo()
    report(study, {one.arm: one.runs for one in choices}, CLAIMS, rates=[one.told for one in choices])


if __name__ == "__main__":
    main()
