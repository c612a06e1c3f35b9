"""`mappa export --to sft|dpo|kto`: its options, and what it prints."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any, get_args

import click

from mappa_core.cli.options import load_registry
from mappa_core.errors import ConfigError, RunError
from mappa_core.protocols import Split
from mappa_core.records import MAX_SCORE, Phase

_SCORE = click.FloatRange(0.0, MAX_SCORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetAsked:
    """The options of data sets, as they were given."""

    source: Any
    gap: float | None
    threshold: float | None
    min_score: float | None
    max_score: float | None
    strata: tuple[str, ...]
    blame: tuple[str, ...]
    phase: Phase | None
    split: Split | None
    iterations: str | None

    @property
    def given(self) -> str:
        """The names of those that were."""
        names = {"strata": "stratum"}
        found = (one.name for one in fields(self) if getattr(self, one.name) not in (None, ()))
        return ", ".join(f"--{names.get(name, name).replace('_', '-')}" for name in found)


def dataset_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of data sets; it receives them as `asked`."""

    @wraps(function)
    def command(**given: Any) -> None:
        own = {one.name: given.pop(one.name) for one in fields(DatasetAsked)}
        function(asked=DatasetAsked(**own), **given)

    decorators = (
        click.option(
            "--source",
            type=click.Choice(["actions", "corrections", "siblings"]),
            help="What examples are made of: sft of actions (or corrections), dpo of siblings (or corrections).",
        ),
        click.option("--gap", type=_SCORE, help="dpo: points by which one sibling must be better than the other."),
        click.option("--threshold", type=_SCORE, help="kto: the score from which an action is a good one."),
        click.option("--min-score", type=_SCORE, help="Only actions with at least this score (0-10)."),
        click.option("--max-score", type=_SCORE, help="Only actions with at most this score."),
        click.option(
            "--stratum",
            "strata",
            metavar="[NAME=]VALUE",
            multiple=True,
            help="Only actions in this stratum of tasks, or of the stratifier NAME; all must hold.",
        ),
        click.option("--blame", metavar="AGENT", multiple=True, help="Only where AGENT (or nobody) is to blame."),
        click.option("--phase", type=click.Choice(get_args(Phase)), help="Whose verdicts: live, unless given."),
        click.option("--split", type=click.Choice(get_args(Split)), help="Which rollouts: train, unless given."),
        click.option("--iterations", metavar="A-B", help="Only rollouts of these iterations, from 0; A alone is one."),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def write_dataset(run: str, out: Path, form: Any, agents: Sequence[str], asked: DatasetAsked) -> None:
    """Write what was asked for, and say what it holds and what it lacks."""
    from rich.console import Console

    from mappa_core.studies.dataset import Filters, Order, export_dataset

    if "@" in run and not Path(run).is_dir():
        raise RunError(f"{run}: --to {form} takes actions of a whole run; name the run folder, and --iterations")
    filters = Filters(
        split=asked.split or "train",
        phase=asked.phase or "live",
        agents=tuple(agents),
        strata=tuple(_stratum(one) for one in asked.strata),
        min_score=asked.min_score,
        max_score=asked.max_score,
        blame=asked.blame,
        iterations=_iterations(asked.iterations),
    )
    order = Order(form=form, filters=filters, source=asked.source, gap=asked.gap, threshold=asked.threshold)
    exported = asyncio.run(export_dataset(load_registry(), Path(run), out, order))
    console = Console()
    for agent, count in exported.examples.items():
        left = ", ".join(f"{number:,} {why}" for why, number in exported.left_out.get(agent, {}).items())
        line = f"{agent}  {out / agent}.parquet  {count:,} examples" + (f"  (left out: {left})" if left else "")
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _stratum(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    return (name, value) if equals else ("task", text)


def _iterations(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if last < first:
        raise ConfigError(f"--iterations {text}: write A-B, the first and the last iteration from 0, as in 10-19")
    return first, last
