"""Writes `sweep.html`, one self-contained page on a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from mappa.look.sweep import SweepResult
from mappa.look.view.chart import PERCENT_TICKS, Chart, Point, build_chart
from mappa.look.view.visible_text import finalize
from mappa.runs import RunReader
from mappa_core.files import write_atomic

EvaluationCurve = Mapping[int, float]
"""Held-out means by number of finished iterations."""


def write_sweep_page(folder: Path, result: SweepResult, notes: Sequence[str]) -> Path:
    """Write `sweep.html` into the folder of a sweep and return its path."""
    environment = Environment(
        loader=PackageLoader("mappa.look.view"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        finalize=finalize,
    )
    curves: dict[str, list[EvaluationCurve]] = {}
    for run in result.sweep.runs_with_status("done"):
        curves.setdefault(result.sweep.setting(run), []).append(read_curve(folder / run.folder))
    page = environment.get_template("sweep.html").render(
        name=folder.name,
        sweep=result.sweep,
        compared=result.compared,
        notes=notes,
        charts=[build_learning_chart(curves)] if curves else [],
    )
    path = folder / "sweep.html"
    write_atomic(path, page)
    return path


def build_learning_chart(curves: Mapping[str, Sequence[EvaluationCurve]]) -> Chart:
    """Build a chart with a line per setting: the mean over its seeds at iterations at which all were evaluated."""
    lines = {name: _mean_curve(ones) for name, ones in curves.items()}
    return build_chart(
        "Held-out tasks over iterations, mean over seeds (those that checkpoints are chosen on, where there are such)",
        lines,
        x_high=max([at for points in lines.values() for at, _ in points] + [1]),
        y_high=1.0,
        y_labels=PERCENT_TICKS,
    )


def _mean_curve(curves: Sequence[EvaluationCurve]) -> list[Point]:
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    return [(at, sum(curve[at] for curve in curves) / len(curves)) for at in shared]


def read_curve(folder: Path) -> EvaluationCurve:
    """Read the held-out means of the run in `folder`: on tasks that choose its checkpoint, if there are such."""
    with RunReader(folder) as reader:
        known = [(one, one.interval.mean) for one in reader.evaluations if one.interval is not None]
    selection = [(one, mean) for one, mean in known if one.part == "selection"]
    return {one.iteration: mean for one, mean in selection or known}
