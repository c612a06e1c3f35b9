"""Does a failure flip where the coach's correction takes the place of the blamed action? Before training, and after it.

Every seed trains the recipe's team. The held-out tasks are played by the start model and by the last checkpoint, and
whom the coach blames in the failed plays is put to the proof as `mappa prove` does: its correction replaces
the blamed action and the rest is played on; beside it a random action of the play is replaced the same way, and the
blamed action is sampled anew. The coach is the rule coach of the recipe, which is shown the truth. Intervals are by
task, over all seeds together, as the seeds share their tasks.

Claimed beforehand, of the trained team. Half of the failures flip at the blamed action, or more: the 95 % interval does
not lie below 50 %. And more flip than with either other replacement: the intervals of both differences lie above 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec
from arms import table
from claims import Standing
from stored import pack
from study import Asked, Study, study_options

from mappa.look.blame_proof import ARMS, Proof, flip_share, gain_beyond, prove_blame
from mappa.sessions import evaluate_standalone, restore_trusted
from mappa.statistics import Interval
from mappa_core.plugins import Registry

STAGES = ("before", "after")
GOAL = 0.5
HEADER = (
    "training", "blamed failures", "with a correction", "flip at the blamed action", "with a correction",
    "at a random one", "beyond that", "sampled anew", "beyond that", "claims",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Shares of failed plays that flip, before training or after it; `beyond` are those of the blamed action less the
    others'. None: no such play."""

    stage: str
    proofs: int
    corrected: int
    shares: Mapping[str, Interval | None]
    corrected_share: Interval | None
    beyond: Mapping[str, Interval | None]
    standing: Standing


async def prove_stage(registry: Registry, run: Path, stage: str) -> list[Proof]:
    """The proofs of blame in the held-out plays of the team of `run`, with its start models or its last checkpoint."""
    start = (f"policies.default.from={run}@last",) if stage == "after" else ()
    played = await evaluate_standalone(
        restore_trusted(registry, run, ("run.name=null", *start)), registry, purpose=stage
    )
    corrected = restore_trusted(registry, played.folder, ("run.name=null", "coach.options.correction=true"))
    return list((await prove_blame(corrected, registry, played.folder, split="eval")).proofs)


def summarize(stage: str, proofs: Sequence[Proof]) -> Stage:
    """One stage, over all seeds."""
    shares = {arm: flip_share(proofs, arm) for arm in ARMS}
    beyond = {arm: gain_beyond(proofs, arm) for arm in ARMS if arm != "blamed"}
    return Stage(
        stage=stage,
        proofs=len(proofs),
        corrected=sum(one.corrected for one in proofs),
        shares=shares,
        corrected_share=flip_share([one for one in proofs if one.corrected], "blamed"),
        beyond=beyond,
        standing=_standing(shares["blamed"], list(beyond.values())),
    )


def _standing(share: Interval | None, beyond: Sequence[Interval | None]) -> Standing:
    known = [one for one in beyond if one is not None]
    if share is None or len(known) < len(beyond):
        return "open"
    return "held" if share.high >= GOAL and all(one.low > 0 for one in known) else "not held"


def row(found: Stage) -> tuple[str, ...]:
    """The cells of a stage."""
    others = (cell for arm in found.beyond for cell in (_points(found.shares[arm]), _points(found.beyond[arm])))
    shares = _points(found.shares["blamed"]), _points(found.corrected_share)
    claims = found.standing if found.stage == "after" else ""
    return (found.stage, f"{found.proofs:,}", f"{found.corrected:,}", *shares, *others, claims)


def _points(value: Interval | None) -> str:
    return "-" if value is None else f"{100 * value.mean:.1f} [{100 * value.low:.1f}, {100 * value.high:.1f}]"


@click.command(help=__doc__)
@study_options
def main(asked: Asked) -> None:
    study = Study(name="flips", asked=asked)
    (runs,) = study.train({"trained": ()}, asked.seeds).values()
    proofs = {
        stage: {
            seed: asyncio.run(prove_stage(study.registry, run, stage))
            for seed, run in zip(asked.seeds, runs, strict=True)
        }
        for stage in STAGES
    }
    stages = [summarize(stage, [one for found in proofs[stage].values() for one in found]) for stage in STAGES]
    click.echo(table(HEADER, map(row, stages)))
    brief = {
        stage: pack(
            {
                str(seed): msgspec.to_builtins([replace(one, reason="") for one in found])
                for seed, found in by_seed.items()
            }
        )
        for stage, by_seed in proofs.items()
    }
    study.finish(study.write(stages=stages, proofs=brief))


if __name__ == "__main__":
    main()
