"""Do agents with weights of their own become specialists, and what of a team's gain is whose?

`all`: the recipe, in which three agents learn. `AGENT alone`: it learns, and the other two keep the weights that all
start from, so that what changes in their points is what they are handed. `exchanged`: of a team that has learned, two
agents play with each other's weights.

Claimed beforehand. An agent that plays with another's weights does not know its format: with each of the three pairs
exchanged the team is worse than as it learned. No agent alone makes up for the others: each `alone` is worse than
`all`. Were weights of its own no matter to an agent, exchanged teams would be as good; were the faults of one agent
all that stands in the way, that one alone would be level with `all`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import click
import numpy as np
from arms import table
from claims import Claim, judged, results, rows
from stored import stored_evaluations
from study import Asked, Study, Words, study_options

from mappa.evaluation.standalone import evaluate_standalone
from mappa.look.run_results import read_result
from mappa.runs import RunReader
from mappa.training.run import Run

AGENTS = ("problem_solver", "code_executor", "verifier")
PAIRS = tuple(combinations(AGENTS, 2))
ARMS: dict[str, Words] = {
    "all": (),
    **{
        f"{agent} alone": tuple(f"policies.{other}.kind=frozen" for other in AGENTS if other != agent)
        for agent in AGENTS
    },
}
CLAIMS = (
    *(Claim(one=f"{one} and {other} exchanged", other="all", expected="worse") for one, other in PAIRS),
    *(Claim(one=f"{agent} alone", other="all", expected="worse") for agent in AGENTS),
)
SPAN = 6
"""Iterations at a run's beginning, and at its end, over which an agent's points are averaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Mean points of an agent's actions in training, over all seeds of an arm, in its first and last iterations."""

    arm: str
    agent: str
    first: float
    last: float

    @property
    def cells(self) -> tuple[str, ...]:
        return self.arm, self.agent, f"{self.first:.2f}", f"{self.last:.2f}", f"{self.last - self.first:+.2f}"


@click.command(help=__doc__)
@study_options
def main(asked: Asked) -> None:
    study = Study(name="specialists", asked=asked)
    runs = study.train(ARMS, asked.seeds)
    exchanged = {f"{one} and {other} exchanged": play_exchanged(study, runs["all"], one, other) for one, other in PAIRS}
    found = results(runs) | {arm: [read_result(folder) for folder in played] for arm, played in exchanged.items()}
    verdicts = judged(CLAIMS, found)
    points = list(points_of(runs))
    click.echo(table(("arm", "tasks", "after", "by seed"), rows(found)))
    click.echo()
    click.echo(table(("pair", "tasks", "difference", "p", "found", "claimed", ""), [one.cells for one in verdicts]))
    click.echo(f"\nMean points of each agent in the first and the last {SPAN} iterations:\n")
    click.echo(table(("arm", "agent", "first", "last", "change"), [one.cells for one in points]))
    told = [
        {"arm": arm, "seed": seed, "evaluations": stored_evaluations(folder)}
        for arm, played in exchanged.items()
        for seed, folder in zip(asked.seeds, played, strict=True)
    ]
    study.finish(study.write(claims=verdicts, points=points, exchanged=told))


def play_exchanged(study: Study, trained: Sequence[Path], one: str, other: str) -> tuple[Path, ...]:
    """Play the held-out tasks with each trained team, `one` and `other` with each other's weights; their folders."""
    return tuple(
        _play(study, seed, {one: f"{folder}/{other}@last", other: f"{folder}/{one}@last"} | _own(folder, one, other))
        for seed, folder in zip(study.asked.seeds, trained, strict=True)
    )


def _own(folder: Path, *moved: str) -> Mapping[str, str]:
    return {agent: f"{folder}/{agent}@last" for agent in AGENTS if agent not in moved}


def _play(study: Study, seed: int, weights: Mapping[str, str]) -> Path:
    words = (*(f"policies.{agent}.from={one}" for agent, one in weights.items()), f"run.root={study.folder / 'played'}")
    run = Run.from_recipe(study.recipe, *study.asked.settings, *words, seed=seed, registry=study.registry)
    return asyncio.run(evaluate_standalone(run.composed, study.registry)).folder


def points_of(runs: Mapping[str, Sequence[Path]], span: int = SPAN) -> Iterator[Points]:
    """Mean points by arm and agent in the first and the last `span` iterations: an iteration counts once, whatever the
    number of its actions."""
    for arm, folders in runs.items():
        for agent in AGENTS:
            curves = np.array([_scores(folder, agent) for folder in folders])
            first, last = (float(np.nanmean(curves[:, part])) for part in (slice(span), slice(-span, None)))
            yield Points(arm=arm, agent=agent, first=first, last=last)


def _scores(folder: Path, agent: str) -> list[float]:
    """Mean points of an agent in every iteration; NaN where it had no scored action."""
    with RunReader(folder) as reader:
        found = [report.agents[agent].score for report in reader.iterations]
    return [np.nan if score is None else score for score in found]


if __name__ == "__main__":
    main()
