"""Held-out results as tables and documents: the metric and the further figures, over all tasks and by stratum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mappa_core.cli.progress import evaluation_line, share
from mappa_core.evaluation.heldout import Evaluation
from mappa_core.store.summary import EvalSummary, FigureSummary, Interval, SelectionSummary, StratumSummary
from mappa_core.view.health import Warned


def show_evaluation(console: Console, evaluation: Evaluation, played: str | None = None) -> None:
    """What was evaluated, in a line, and by stratum where there are several; `played` as in `evaluation_line`."""
    console.print(evaluation_line(evaluation, played), soft_wrap=True, highlight=False)
    if evaluation.by_stratum():
        console.print(evaluation_table(evaluation))


def evaluation_table(evaluation: Evaluation) -> Table:
    """A row for all problems and for each stratum, a column for the metric and for each further figure."""
    table = _table("", "problems", *evaluation.measures)
    for name, part in {"all": evaluation, **evaluation.by_stratum()}.items():
        shares = (share(part.of(measure).interval) for measure in evaluation.measures)
        table.add_row(escape(name), str(len(part.problems)), *shares)
    return table


def gains_table(results: EvalSummary) -> Table:
    """Before, after and gain of the metric, then of each further figure: over all tasks, then by stratum."""
    table = _table("", "before", "after", "gain")
    parts: dict[str, EvalSummary | StratumSummary] = {"all": results, **results.strata}
    for measure in (results.metric, *results.figures):
        if results.figures:
            table.pad_edge = False
            table.add_row(f"[bold]{escape(measure)}[/]")
        for name, part in parts.items():
            found = part if measure == results.metric else part.figures[measure]
            table.add_row(escape(name), *_gain(found))
    return table


def chosen(selection: SelectionSummary) -> str:
    """How the weights were chosen that the column `after` is of, in a sentence."""
    return (
        f"after: the weights of iteration {selection.iteration}, the best of {selection.evaluations} evaluations on "
        f"{selection.n} other tasks ({selection.value:.1%} there, which the choice makes too good)"
    )


def show_warnings(console: Console, warnings: Sequence[Warned]) -> None:
    """A line per warning of a policy's health."""
    for one in warnings:
        told = f"health, {one.rule}, after iteration {one.iteration}: {one.text}"
        console.print(told, style="yellow", markup=False, highlight=False, soft_wrap=True)


def as_document(evaluation: Evaluation) -> dict[str, Any]:
    """An evaluation as JSON values: mean and bounds of the metric and of each further figure, and by stratum. Shares
    are 0-1."""
    strata = {name: _measured(evaluation.within(name)) for name in sorted(set(evaluation.strata))}
    return {**_measured(evaluation), "strata": strata}


def _measured(evaluation: Evaluation) -> dict[str, Any]:
    return {
        "problems": len(evaluation.problems),
        "clusters": evaluation.cluster_count,
        **_bounds(evaluation.interval),
        "figures": {name: _bounds(evaluation.of(name).interval) for name in evaluation.figures},
    }


def _bounds(interval: Interval | None) -> Mapping[str, float | None]:
    """mean, low and high; all null where every problem was lost."""
    return {name: getattr(interval, name, None) for name in ("mean", "low", "high")}


def _gain(found: EvalSummary | StratumSummary | FigureSummary) -> tuple[str, str, str]:
    return share(found.before), share(found.after), share(found.gain, sign=True)


def _table(*names: str) -> Table:
    table = Table(box=None, header_style="dim")
    for name in names:
        table.add_column(name, justify="right" if name else "left")
    return table
