"""Is the agent that a coach blames guilty? Actions of a team are replaced while it trains, in three stages of training.

While the team of a recipe trains, every action of half of its rollouts is sampled anew, twice, and the rest is played
on (`credit.counterfactual`); nothing is learned from that. In a failed rollout the actions whose replacement helps most
are *guilty*, and so are their agents; a failure that no replacement mends has no guilty agent and is left out. Held
against it are the verdicts that the rule coach of the recipe gave while the team played, before anything was replaced.
It is shown the truth where the recipe does so. A stage is a third of the iterations, over all seeds.

Claimed beforehand. In every stage the agents that the coach blames are guilty more often than agents that are drawn at
random, and more often than whichever one agent is best blamed always: the 95 % intervals of both differences lie above
0. Were blame no more than a guess, the first would be 0; were it only that one agent is bad, the second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from arms import table
from claims import Standing
from study import UNGUARDED, Asked, Study, Words, study_options

from mappa.look.coach_eval.blame import guilty_agents
from mappa.look.coach_eval.bootstrap import Estimate, estimate, paired_difference, ratio
from mappa.look.coach_eval.labelled_actions import label_runs
from mappa.runs import RunReader
from mappa_core import NOBODY
from mappa_core.plugins import Registry
from mappa_core.records import Float64

STAGES = 3
REPLACED: Words = (
    UNGUARDED,
    "credit.counterfactual.use=resample",
    "credit.counterfactual.samples=2",
    "credit.counterfactual.share=0.5",
)
SIZES: Mapping[str, Words] = {
    "mathchat": (),
    "dsbench": ("train.iterations=6", "train.prompts=8", "eval.problems=8", "eval.samples=1"),
}
"""Teams, and where they play less than other studies do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed rollout with guilty agents: in which third of its run, who of its `agents` is `guilty`, and whom the
    coach blames, once for each verdict that blames."""

    stage: int
    task: str
    agents: tuple[str, ...]
    guilty: tuple[str, ...]
    blamed: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Shares of blames that hit, over the failures of a stage. `best` is the agent that is guilty most often."""

    stage: str
    failures: int
    unblamed: int
    right: Estimate | None
    chance: Estimate | None
    beyond_chance: Estimate | None
    best: str
    always_best: Estimate | None
    beyond_best: Estimate | None
    standing: Standing

    @property
    def cells(self) -> tuple[str, ...]:
        shares = (_points(one) for one in (self.right, self.chance, self.beyond_chance, self.always_best))
        return (
            self.stage, f"{self.failures:,}", f"{self.unblamed:,}", *shares, self.best, _points(self.beyond_best),
            self.standing,
        )  # fmt: skip


HEADER = (
    "third", "failures", "nobody blamed", "blamed is guilty", "at random", "beyond that", "the best one always",
    "who", "beyond that", "claims",
)  # fmt: skip


async def read_failures(registry: Registry, folder: Path) -> list[Failure]:
    """The failures of one run in which an action was replaced and helped."""
    labels = await label_runs(registry, [folder], label_source="counterfactual")
    names = dict.fromkeys(action.trajectory for action in labels.actions)
    found = []
    with RunReader(folder) as reader:
        rows = {f"{folder}:{row.id}": row for row in reader.trajectories.where(split="train")}
        iterations = 1 + max(row.iteration for row in rows.values())
        for name in names:
            row, actions = rows[name], [one for one in labels.actions if one.trajectory == name]
            if not (guilty := guilty_agents(actions)):
                continue
            verdicts = reader.trajectory(row.id).verdicts
            found.append(
                Failure(
                    stage=STAGES * row.iteration // iterations,
                    task=actions[0].scene.task.cluster or row.task,
                    agents=tuple(sorted({one.scene.step.agent for one in actions})),
                    guilty=tuple(sorted(guilty)),
                    blamed=tuple(one.blame for one in verdicts if one.blame is not None and one.blame != NOBODY),
                )
            )
    return found


def summarize(stage: str, failures: Sequence[Failure]) -> Stage:
    """One stage; intervals are by task, as the seeds share tasks."""
    known = [one for one in failures if one.blamed]
    clusters = [one.task for one in known]
    each = np.ones(len(known))
    right = np.array([_share(one.blamed, one.guilty) for one in known])
    chance = np.array([_share(one.agents, one.guilty) for one in known])
    always = {
        agent: np.array([float(agent in one.guilty) for one in known])
        for agent in sorted({agent for one in known for agent in one.agents})
    }
    best = max(always, key=lambda agent: float(always[agent].mean()))

    def beyond(other: Float64) -> Estimate | None:
        return estimate(paired_difference(ratio(right, each), ratio(other, each)), clusters)

    differences = beyond(chance), beyond(always[best])
    return Stage(
        stage=stage,
        failures=len(failures),
        unblamed=len(failures) - len(known),
        right=estimate(ratio(right, each), clusters),
        chance=estimate(ratio(chance, each), clusters),
        beyond_chance=differences[0],
        best=best,
        always_best=estimate(ratio(always[best], each), clusters),
        beyond_best=differences[1],
        standing=_standing(differences),
    )


def right_share(failures: Sequence[Failure], stage: int) -> float | None:
    """Share of blames of a stage that hit; None where nobody was blamed."""
    shares = [_share(one.blamed, one.guilty) for one in failures if one.stage == stage and one.blamed]
    return float(np.mean(shares)) if shares else None


def _share(named: Sequence[str], guilty: Iterable[str]) -> float:
    return sum(name in guilty for name in named) / len(named)


def _standing(differences: Sequence[Estimate | None]) -> Standing:
    lows = [None if one is None else one.low for one in differences]
    if any(low is None for low in lows):
        return "open"
    return "held" if all(low is not None and low > 0 for low in lows) else "not held"


def _points(value: Estimate | None) -> str:
    if value is None or value.low is None or value.high is None:
        return "-" if value is None else f"{100 * value.value:.1f}"
    return f"{100 * value.value:.1f} [{100 * value.low:.1f}, {100 * value.high:.1f}]"


@click.command(help=__doc__)
@click.option("--team", type=click.Choice(list(SIZES)), default="mathchat", show_default=True, help="Who plays.")
@study_options
def main(asked: Asked, team: str) -> None:
    study = Study(name=f"blamed_agents_{team}", asked=asked, recipe=f"{team}/tiny")
    (runs,) = study.train({"replaced": (*REPLACED, *(() if asked.quick else SIZES[team]))}, asked.seeds).values()
    by_seed = {
        seed: asyncio.run(read_failures(study.registry, run)) for seed, run in zip(asked.seeds, runs, strict=True)
    }
    failures = [one for found in by_seed.values() for one in found]
    stages = [
        summarize(name, [one for one in failures if one.stage == stage])
        for stage, name in enumerate(("first", "second", "last"))
    ]
    click.echo(table(HEADER, [one.cells for one in stages]))
    shares = {seed: [right_share(found, stage) for stage in range(STAGES)] for seed, found in by_seed.items()}
    study.finish(study.write(stages=stages, right_by_seed=shares))


if __name__ == "__main__":
    main()
