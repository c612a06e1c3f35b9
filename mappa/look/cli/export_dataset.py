"""`mappa export --to sft|dpo|kto`: options and output."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from mappa_core import MAX_SCORE, ConfigError, RunError, Split
from mappa_core.records import Phase
from mappa_core.redaction import clean_line

if TYPE_CHECKING:
    from mappa.look.dataset import ExportResult

_SCORE = click.FloatRange(0.0, MAX_SCORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetArguments:
    """Command-line options of data sets; None or () if not given."""

    source: Any
    gap: float | None
    threshold: float | None
    min_score: float | None
    max_score: float | None
    strata: tuple[str, ...]
    blame: tuple[str, ...]
    min_outcome: float | None
    phase: Phase | None
    split: Split | None
    iterations: str | None

    @property
    def given_options(self) -> str:
        """Names of the options that were given."""
        names = {"strata": "stratum"}
        given = (field.name for field in fields(self) if getattr(self, field.name) not in (None, ()))
        return ", ".join(f"--{names.get(name, name).replace('_', '-')}" for name in given)


def dataset_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of data sets to a command; it receives them as `arguments`."""

    @wraps(function)
    def command(**values: Any) -> None:
        own = {field.name: values.pop(field.name) for field in fields(DatasetArguments)}
        function(arguments=DatasetArguments(**own), **values)

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
        click.option(
            "--min-outcome",
            type=float,
            help="Only of rollouts whose outcome is at least this (1: right).",
        ),
        click.option("--phase", type=click.Choice(get_args(Phase)), help="Whose verdicts; live by default."),
        click.option("--split", type=click.Choice(get_args(Split)), help="Which rollouts; train by default."),
        click.option("--iterations", metavar="A-B", help="Only rollouts of these iterations, from 0; A alone is one."),
    )
    for decorate in reversed(decorators):
        command = decorate(command)
    return command


def write_dataset(run: str, out: Path, form: Any, agents: Sequence[str], arguments: DatasetArguments) -> None:
    """Write the data set, and print the number of examples and of actions left out."""
    from mappa.cli.console import Console
    from mappa.look.dataset import ExportRequest, Filters, export_dataset
    from mappa.look.dataset.card import format_unknown_tools

    if "@" in run and not Path(run).is_dir():
        raise RunError(f"{run}: --to {form} takes actions of a whole run; name the run folder, and --iterations")
    filters = Filters(
        split=arguments.split or "train",
        phase=arguments.phase or "live",
        agents=tuple(agents),
        strata=tuple(_stratum(one) for one in arguments.strata),
        min_score=arguments.min_score,
        max_score=arguments.max_score,
        blame=arguments.blame,
        min_outcome=arguments.min_outcome,
        iterations=_iterations(arguments.iterations),
    )
    request = ExportRequest(
        form=form, filters=filters, source=arguments.source, gap=arguments.gap, threshold=arguments.threshold
    )
    exported = export_dataset(Path(run), out, request)
    console = Console()
    for agent in dict.fromkeys((*exported.examples, *exported.left_out)):
        console.print(clean_line(_agent_line(exported, agent)), markup=False, highlight=False, soft_wrap=True)
    if exported.unknown_tools:
        line = f"not in `tools`, as the run has no schema of them: {format_unknown_tools(exported)}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _agent_line(exported: ExportResult, agent: str) -> str:
    """What became of the actions of an agent."""
    left = ", ".join(f"{number:,} {why}" for why, number in exported.left_out.get(agent, {}).items())
    if agent not in exported.examples:
        return f"{agent}  no examples  (left out: {left})"
    line = f"{agent}  {exported.folder / exported.files[agent]}  {exported.examples[agent]:,} examples"
    return line + (f"  (left out: {left})" if left else "")


def _stratum(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    return (name, value) if equals else ("task", text)


def _iterations(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if last < first:
        raise ConfigError(f"--iterations {text}: write A-B, the first and the last iteration from 0, as in 10-19")
    return first, last
