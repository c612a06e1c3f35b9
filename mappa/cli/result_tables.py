"""Held-out results as lines, tables and JSON: the metric and the further figures, over all tasks and by stratum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mappa.cli.console import Console, Name
from mappa.cli.formats import format_count, format_problem_count, format_share
from mappa.cli.tables import columns_table
from mappa.evaluation.heldout import Evaluation
from mappa.runs.rows import RaisedWarning
from mappa.store.summary import EvalSummary, FigureSummary, SelectionSummary, StratumSummary
from mappa_core.records import Interval
from mappa_core.redaction import clean_line

EVALUATION_PART_LABELS = {"all": "held-out", "report": "held-out, reported,", "selection": "held-out, to choose by,"}
"""Labels of the tasks of each part of an evaluation."""


def evaluation_line(evaluation: Evaluation, played: str | None = None) -> str:
    """Format an evaluation as one line: all figures with their intervals, and the failures. `played` describes the
    rollouts, unless they are the held-out problems after some iterations."""
    shares = ", ".join(f"{name} {format_share(evaluation.with_metric(name).interval)}" for name in evaluation.measures)
    after = format_count(evaluation.iteration, "iteration")
    what = played or f"{EVALUATION_PART_LABELS[evaluation.part]} after {after}"
    count = format_problem_count(len(evaluation.problems), evaluation.cluster_count, (evaluation.known,))
    line = f"{what}: {shares} over {count}"
    if evaluation.failures:
        kinds = ", ".join(f"{count} {kind}" for kind, count in evaluation.failures.items())
        line += f"; not finished: {kinds}"
    return line


def show_evaluation(console: Console, evaluation: Evaluation, played: str | None = None) -> None:
    """Print an evaluation as a line, and as a table if it has several strata; `played` as in `evaluation_line`."""
    console.print(clean_line(evaluation_line(evaluation, played)), soft_wrap=True, highlight=False, markup=False)
    if evaluation.by_stratum():
        console.print(evaluation_table(evaluation))


def evaluation_table(evaluation: Evaluation) -> Table:
    """Build a table with a row for all problems and per stratum, and a column per figure."""
    table = columns_table("", "tasks", *evaluation.measures)
    for name, part in {"all": evaluation, **evaluation.by_stratum()}.items():
        shares = (format_share(part.with_metric(measure).interval) for measure in evaluation.measures)
        count = len(part.problems)
        table.add_row(Name(name), str(count) if part.known == count else f"{part.known} of {count}", *shares)
    return table


def gains_tables(results: EvalSummary) -> Group:
    """Build a table of before, after and gain for the metric and each further figure: over all tasks and by stratum,
    with the number of tasks where a gain is not over all of them."""
    parts: dict[str, StratumSummary] = {"all": results, **results.strata}
    shown: list[RenderableType] = []
    for measure in (results.metric, *results.figures):
        found = {name: part if measure == results.metric else part.figures[measure] for name, part in parts.items()}
        if results.figures:
            shown.append(Text(clean_line(measure), style="bold"))
        shown.append(_gains_table(found))
    return Group(*shown)


def _gains_table(found: Mapping[str, FigureSummary]) -> Table:
    partly = any(result.paired is not None for result in found.values())
    table = columns_table("", "before", "after", "gain", *(["tasks"] if partly else []))
    for name, result in found.items():
        tasks = [str(result.paired or "")] if partly else []
        shares = (format_share(result.before), format_share(result.after), format_share(result.gain, sign=True))
        table.add_row(Name(name), *shares, *tasks)
    return table


def format_gain(result: FigureSummary) -> str:
    """Format a gain with its 95 % interval, in per cent, and the number of tasks where it is not over all of them."""
    tasks = "" if result.paired is None else f" on {format_count(result.paired, 'task')}"
    return format_share(result.gain, sign=True) + tasks


def selection_sentence(selection: SelectionSummary) -> str:
    """Describe in a sentence how the weights for the column `after` were chosen."""
    return (
        f"after: the weights of iteration {selection.iteration}, the best of {selection.evaluations} evaluations on "
        f"{selection.n} other tasks ({selection.value:.1%} there, which the choice makes too good)"
    )


def show_warnings(console: Console, warnings: Sequence[RaisedWarning]) -> None:
    """Print a line per warning of a policy's health."""
    for warning in warnings:
        line = f"health, {warning.rule}, after iteration {warning.iteration}: {warning.text}"
        console.print(line, style="yellow", markup=False, highlight=False, soft_wrap=True)


def evaluation_json(evaluation: Evaluation) -> dict[str, Any]:
    """Convert an evaluation to JSON values: mean and bounds of every figure, also by stratum. Shares are 0-1."""
    strata = {name: _measures_json(evaluation.for_stratum(name)) for name in sorted(set(evaluation.strata))}
    return {**_measures_json(evaluation), "strata": strata}


def _measures_json(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "problems": len(evaluation.problems),
        "known_problems": evaluation.known,
        "clusters": evaluation.cluster_count,
        **_bounds(evaluation.interval),
        "figures": {name: _bounds(evaluation.with_metric(name).interval) for name in evaluation.figures},
    }


def _bounds(interval: Interval | None) -> Mapping[str, float | None]:
    """Mean, low and high; all null if every problem was lost."""
    return {name: getattr(interval, name, None) for name in ("mean", "low", "high")}
