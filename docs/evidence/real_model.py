"""Does a pretrained model learn from verdicts, on two CPU cores? SmolLM2-135M-Instruct, three agents, an adapter each.

Each seed begins with a warm start from examples of its own (`mappa mathchat examples`), so few that each agent is
seldom right and samples still differ, and every arm of a seed starts from it. All arms play as many rollouts; only
what an action is paid differs:

- `verdicts`: the recipe. The rule coach's verdict on each action, against those of its siblings (RLOO, as in all arms
  but the last).
- `outcome`: whether the final answer was right, for every action of the rollout.
- `permuted`: the verdicts, given to actions that did not earn them.
- `best actions`: the warm start goes on with examples of the team's own. What the coach gave ten points is imitated,
  all else is left out (rejection sampling with fresh samples, as in expert iteration).

The stories are problems as in the examples. The chain sums are of another project, and no example shows one; there
only *verdicts* and *permuted* are run, as the question is whether a team learns other people's tasks by them at all.

Its seeds are 6, 7 and 8 (`--seeds 6,7,8`): 0 to 5 and 100 were looked at while examples, estimator, length and schedule
were chosen.

Claimed beforehand. With *verdicts* the team gains 30 points or more on the stories, every seed more than 15 by the
lower end of its interval, and 20 or more among answers that could be parsed; *verdicts* ends above *permuted*, above
*outcome* and above *best actions*. On the chain sums *verdicts* ends above *permuted*.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path

import click
import control_offers
import imitation_offers
import msgspec
import numpy as np
from arms import table, write
from claims import Claim, Judged, judged
from claims import rows as rows_of
from specialists import AGENTS, PAIRS, Points, play_exchanged, points_of
from stored import joined, read_results, stored_evaluations
from study import UNGUARDED, Asked, Study, Words, study_options

from mappa.cli.formats import format_share
from mappa.evaluation.statistics import pass_at_k
from mappa.look.run_results import RunResult
from mappa.runs import RunReader
from mappa.store.summary import FigureSummary, read_summary
from mappa_core import MAX_SCORE, NOBODY, Trajectory
from mappa_engine.node import bfloat16_instructions

RECIPE = "mathchat/smol"
SIZES: Words = ("train.iterations=16", "eval.every=16")
HELD_OUT: Words = ("tasks.options.eval=96", "eval.problems=96")
COMMON: Words = (
    UNGUARDED,
    *("checkpoint.every=2", "checkpoint.keep=1", "checkpoint.best=false"),
    *("engine.options.threads=1", f"engine.options.dtype={'bfloat16' if bfloat16_instructions() else 'float32'}"),
)
"""A thread for each of two runs at a time does more than two threads for one. All compute alike, whatever a trial at
the start of one would choose; stored results are of bfloat16."""
EXAMPLES: Words = ("--count", "800", "--agent", "code_executor=100", "--agent", "verifier=100")
"""Each is shown once: to read a story is learned more slowly than to write down its program."""
QUICK_EXAMPLES = 10
STORIES, CHAINS = "stories", "chain sums"
FAMILIES: Mapping[str, Words] = {
    STORIES: (),
    CHAINS: (
        "tasks={use: reasoning-gym, options: {dataset: chain_sum, train: 2048, eval: 96}}",
        "tasks.options.config={min_terms: 3, max_terms: 4, min_digits: 2, max_digits: 2}",
    ),
}
ARMS: Mapping[str, Words] = {
    "verdicts": (),
    "outcome": ("shapers=[{use: outcome}]",),
    "permuted": ("estimator={use: permuted, options: {baseline: true, kl_coef: 0}}",),
    "best actions": ("shapers=[{use: best_actions}]", "estimator={use: reinforce}"),
}
ARMS_OF = {STORIES: tuple(ARMS), CHAINS: ("verdicts", "permuted")}
CLAIMS = (
    Claim(one=f"{STORIES}, verdicts", other=f"{STORIES}, permuted", expected="better"),
    Claim(one=f"{STORIES}, verdicts", other=f"{STORIES}, outcome", expected="better"),
    Claim(one=f"{STORIES}, verdicts", other=f"{STORIES}, best actions", expected="better"),
    Claim(one=f"{CHAINS}, verdicts", other=f"{CHAINS}, permuted", expected="better"),
)
OFFERS = {"controls": control_offers, "imitation": imitation_offers}
LEAST_GAIN, LEAST_LOW, LEAST_SKILL = 0.30, 0.15, 0.20
RIGHT = "right"
STANDINGS = {True: "yes", False: "no", None: "cannot be told"}
SPAN = 2
"""Iterations at a run's beginning, and at its end, over which pass@k and points are averaged."""
EXCHANGED = {f"{one} and {other} exchanged": (one, other) for one, other in PAIRS}
HEADER = ("arm", "seed", "before", "after", "gain", "gain among parsed", "parsed", "pass@1, @k", "CPU min")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one run came to; shares, and minutes of CPU. `passed` are pass@1 and pass@k of the team in the rollouts of
    each iteration, `faults` counts those of the first and of the last iterations that were right, and the others by
    who was the first to earn less than half of the points, `phases` the wall seconds of a mean iteration by what they
    went to."""

    arm: str
    seed: int
    correct: FigureSummary
    parsed: FigureSummary
    among_parsed: FigureSummary
    passed: tuple[tuple[float, float], ...]
    points: tuple[Points, ...]
    faults: tuple[Mapping[str, int], Mapping[str, int]]
    minutes: float
    phases: Mapping[str, float]

    @property
    def cells(self) -> tuple[str, ...]:
        return (
            self.arm,
            str(self.seed),
            format_share(self.correct.before),
            format_share(self.correct.after),
            format_share(self.correct.gain, sign=True),
            format_share(self.among_parsed.gain, sign=True),
            f"{format_share(self.parsed.before)} to {format_share(self.parsed.after)}",
            " to ".join(_percentages(np.mean(part, axis=0)) for part in (self.passed[:SPAN], self.passed[-SPAN:])),
            f"{self.minutes:.0f}",
        )


@click.command(help=__doc__)
@click.option(
    "--family", "families", multiple=True, type=click.Choice(tuple(FAMILIES)), default=tuple(FAMILIES), help="Tasks."
)
@click.option("--arm", "arms", multiple=True, type=click.Choice(tuple(ARMS)), default=tuple(ARMS), help="Arms to run.")
@click.option("--add", is_flag=True, help="Put what is run together with what the file of results holds.")
@study_options
def main(asked: Asked, families: tuple[str, ...], arms: tuple[str, ...], add: bool) -> None:
    sizes = () if asked.quick else (*SIZES, *HELD_OUT)
    asked = replace(asked, settings=(*asked.settings, *COMMON, *sizes))
    study = Study(name="real_model", asked=asked, offers=OFFERS, recipe=RECIPE)
    runs = train(study, families, arms)
    part = study.document(
        rows=[read_row(arm, folder) for arm, folders in runs.items() for folder in folders],
        exchanged=play_pairs(study, runs.get(f"{STORIES}, verdicts", ())),
    )
    found = json.loads(msgspec.json.encode(part))
    if add and study.place.exists():
        found = joined(json.loads(study.place.read_text()), found)
    rows, played = msgspec.convert(found["rows"], list[Row]), read_results(found)
    claims = judged([claim for claim in CLAIMS if {claim.one, claim.other} <= played.keys()], played)
    write(study.place, found | {"claims": claims, "learned": learned(rows)})
    show(rows, claims, {arm: results for arm, results in played.items() if arm in EXCHANGED})
    study.finish(study.place)


def train(study: Study, families: Sequence[str], arms: Sequence[str]) -> dict[str, list[Path]]:
    """The runs of every arm of every family, one a seed, each from its seed's warm start."""
    runs: dict[str, list[Path]] = {}
    starts = {seed: warm_start(study, seed) for seed in study.asked.seeds}
    for family, (seed, start) in product(families, starts.items()):
        words = {
            f"{family}, {arm}": (*ARMS[arm], *FAMILIES[family], f"policies.default.from={start}@last")
            for arm in ARMS_OF[family]
            if arm in arms
        }
        for arm, folders in study.train(words, (seed,)).items():
            runs.setdefault(arm, []).extend(folders)
    return runs


def play_pairs(study: Study, trained: Sequence[Path]) -> list[dict[str, object]]:
    """Evaluations of trained teams, two agents with each other's weights."""
    return [
        {"arm": arm, "seed": seed, "evaluations": stored_evaluations(folder)}
        for arm, pair in EXCHANGED.items()
        if trained
        for seed, folder in zip(study.asked.seeds, play_exchanged(study, trained, *pair), strict=True)
    ]


def warm_start(study: Study, seed: int) -> Path:
    """Teach a team by examples that `seed` draws, if that was not done; its run folder."""
    root = study.folder.with_name(f"{study.folder.name}-starts").resolve()
    folder = root / str(seed)
    if folder.exists() and read_summary(folder).status == "done":
        return folder
    if folder.exists():
        _mappa("train", "--resume", str(folder))
        return folder
    examples = root / "examples" / str(seed)
    if not examples.exists():
        count = ("--count", str(QUICK_EXAMPLES)) if study.asked.quick else EXAMPLES
        _mappa("mathchat", "examples", str(examples), "--seed", str(seed), *count)
    chosen = ("--plugin", "mathchat", "--recipe", "smol", "--examples", str(examples))
    # An iteration of a warm start is an epoch. What it came to is measured by the runs that start from it.
    words = (*study.asked.settings, f"run.root={root}", f"seed={seed}", "train.iterations=1", "eval.problems=8")
    _mappa("warm-start", *chosen, "--name", folder.name, *words)
    return folder


def _mappa(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "mappa", *arguments], check=True, stdout=sys.stderr)


def show(rows: Sequence[Row], claims: Sequence[Judged], exchanged: Mapping[str, Sequence[RunResult]]) -> None:
    """Print what the runs came to."""
    click.echo(table(HEADER, [row.cells for row in rows]))
    click.echo()
    click.echo(table(("pair", "tasks", "difference", "p", "found", "claimed", ""), [claim.cells for claim in claims]))
    click.echo(f"\nlearned as claimed: {STANDINGS[learned(rows)]}\n")
    click.echo(table(("agents", "tasks", "after", "by seed"), rows_of(exchanged)))
    click.echo(f"\nMean points of each agent in the first and the last {SPAN} iterations:\n")
    cells = [(row.arm, str(row.seed), *points.cells[1:]) for row in rows for points in row.points]
    click.echo(table(("arm", "seed", "agent", "first", "last", "change"), cells))
    click.echo(
        f"\nRollouts of the first and the last {SPAN} iterations that were right, and by the first who was not:\n"
    )
    cells = [
        (row.arm, str(row.seed), who, *(str(part.get(who, 0)) for part in row.faults))
        for row in rows
        for who in (RIGHT, *AGENTS, NOBODY)
    ]
    click.echo(table(("arm", "seed", "", "first", "last"), cells))
    click.echo("\nPer cent of the rollouts of each iteration that were right:\n")
    cells = [(row.arm, str(row.seed), _percentages(share for share, _ in row.passed)) for row in rows]
    click.echo(table(("arm", "seed", "by iteration"), cells))


def read_row(arm: str, folder: Path) -> Row:
    """The figures of a run that ended."""
    summary = read_summary(folder)
    own, cpu = summary.eval, summary.seconds.cpu
    assert own is not None and cpu is not None  # a run that ended was evaluated and timed
    parsed, among_parsed = own.parsing.values()
    with RunReader(folder) as reader:
        metrics = [row.metrics() for row in reader.iterations]
        passed = tuple(passed_by_iteration(reader))
        faults = (count_faults(reader, range(SPAN)), count_faults(reader, range(len(metrics) - SPAN, len(metrics))))
    phases = sorted({name for row in metrics for name in row if name.startswith("seconds/")})
    return Row(
        arm=arm,
        seed=summary.seed,
        correct=FigureSummary(before=own.before, after=own.after, gain=own.gain),
        parsed=parsed,
        among_parsed=among_parsed,
        passed=passed,
        points=tuple(points_of({arm: [folder]}, SPAN)),
        faults=faults,
        minutes=cpu / 60,
        phases={name.removeprefix("seconds/"): float(np.mean([row[name] for row in metrics])) for name in phases},
    )


def passed_by_iteration(reader: RunReader) -> Iterator[tuple[float, float]]:
    """Of the groups of each iteration, what share of samples was right, and of groups with any that was."""
    played = sorted(reader.trajectories.where(split="train"), key=lambda row: (row.iteration, row.task))
    for _, rows in groupby(played, key=lambda row: row.iteration):
        pairs = []
        for _, group in groupby(rows, key=lambda row: row.task):
            right = [row.outcome["correct"] > 0.5 for row in group if row.outcome]
            if n := len(right):
                pairs.append((pass_at_k(n, sum(right), 1), pass_at_k(n, sum(right), n)))
        one, k = np.mean(pairs, axis=0).tolist()
        yield one, k


def count_faults(reader: RunReader, iterations: range) -> Mapping[str, int]:
    """Of the rollouts of `iterations` that have an outcome, how many were right, and of the others whose action was the
    first that earned less than half of the points, or nobody's."""
    counts = Counter[str]()
    for row in reader.trajectories.where(split="train"):
        if row.iteration in iterations and row.outcome:
            counts[RIGHT if row.outcome["correct"] > 0.5 else _first_fault(reader.trajectory(row.id))] += 1
    return counts


def _first_fault(played: Trajectory) -> str:
    points = {verdict.step: verdict.score for verdict in played.verdicts if verdict.score is not None}
    return next((step.agent for step in played.steps if points.get(step.id, MAX_SCORE) < MAX_SCORE / 2), NOBODY)


def _percentages(shares: Iterable[float]) -> str:
    return ", ".join(f"{100 * share:.0f}" for share in shares)


def learned(told: Sequence[Row]) -> bool | None:
    """Whether the team learned the stories as was claimed; None where that was not run, or a bound is not known."""
    own = [row for row in told if row.arm == f"{STORIES}, verdicts"]
    gains = [row.correct.gain for row in own]
    skills = [row.among_parsed.gain for row in own]
    known = [gain for gain in gains if gain is not None and gain.low is not None]
    skilled = [gain.mean for gain in skills if gain is not None]
    if not own or len(known) < len(own) or len(skilled) < len(own):
        return None
    mean = float(np.mean([gain.mean for gain in known]))
    lows = [gain.low for gain in known if gain.low is not None]
    return mean >= LEAST_GAIN and min(lows) > LEAST_LOW and float(np.mean(skilled)) >= LEAST_SKILL


if __name__ == "__main__":
    main()
