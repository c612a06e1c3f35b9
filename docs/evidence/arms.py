"""What the scripts of this folder share: options, one arm trained, seeds put together, tables, files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np

from mappa.cli.result_tables import evaluation_line
from mappa.evaluation.heldout import Evaluation
from mappa.evaluation.statistics import mean_interval, paired_gain
from mappa.training.listener import Listener
from mappa.training.run import Run, TrainResult
from mappa_core.errors import InputError
from mappa_core.plugins import Registry
from mappa_core.records import Float64, Int64, Interval

RECIPE = "mathchat/tiny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Held-out accuracy (a share) of one arm before and after training, and the gain, paired on the same problems."""

    before: Interval
    after: Interval
    gain: Interval


class Evaluations(Listener):
    """Says every evaluation on standard error."""

    def __init__(self, name: str) -> None:
        self._name = name

    def on_evaluation_end(self, evaluation: Evaluation) -> None:
        click.echo(f"{self._name}: {evaluation_line(evaluation)}", err=True)


def evidence_options(function: Callable[..., None]) -> Callable[..., None]:
    """Options that every script has. Input that cannot be used ends it with a message and exit code 2."""

    @wraps(function)
    def command(**asked: Any) -> None:
        try:
            function(**asked)
        except InputError as error:
            raise click.UsageError(str(error)) from error

    decorators = (
        click.option("--seeds", default="0,1,2", show_default=True, callback=numbers, help="Seeds to train with."),
        click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for all figures."),
        click.argument("settings", nargs=-1, metavar="[KEY=VALUE]..."),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def numbers(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, as an option of click reads them."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers such as 0,1,2") from None


def train(name: str, seed: int, settings: Sequence[str], registry: Registry, recipe: str = RECIPE) -> TrainResult:
    """Train a recipe, changed by `settings`."""
    run = Run.from_recipe(recipe, *settings, seed=seed, registry=registry)
    return run.train(Evaluations(f"{name}, seed {seed}"))


def seconds(run: TrainResult) -> float:
    """Wall time of a run."""
    wall = run.summary.seconds.wall
    assert wall is not None  # a run that ended was timed
    return wall


def figures(runs: Sequence[TrainResult]) -> Figures:
    """The figures of one arm over its runs, one per seed; of a single run those that it printed itself.

    Seeds share the held-out problems, so the values of one problem are one cluster. The intervals speak of other
    problems, not of other seeds: read the seeds one by one for that.
    """
    if len(runs) == 1:
        own = runs[0].summary.eval
        assert own is not None and own.before and own.after and own.gain  # a run that ended was evaluated twice
        return Figures(before=own.before, after=own.after, gain=own.gain)
    before = np.array([run.evaluations[0].by_problem for run in runs])  # (seeds, problems)
    after = np.array([run.evaluations[-1].by_problem for run in runs])
    problems = np.broadcast_to(np.arange(before.shape[1]), before.shape)
    known = np.isfinite(before) & np.isfinite(after)
    return Figures(
        before=_over_problems(before, problems),
        after=_over_problems(after, problems),
        gain=paired_gain(before[known], after[known], clusters=problems[known].tolist()),
    )


def _over_problems(values: Float64, problems: Int64) -> Interval:
    known = np.isfinite(values)
    return mean_interval(values[known], clusters=problems[known].tolist())


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write(out: Path | None, document: object) -> None:
    """Write all figures as JSON, where a file was named. What is not known is null."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
