"""`sweep.html`: one self-contained page on a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from mappa_core.evaluation.heldout import part_of
from mappa_core.store.files import write_atomic
from mappa_core.store.reader import Reader
from mappa_core.studies.sweep import Swept
from mappa_core.view.chart import PERCENT_TICKS, Chart, Point, chart

Curve = Mapping[int, float]
"""Held-out means by how many iterations were done."""


def write_sweep(folder: Path, swept: Swept, notes: Sequence[str]) -> Path:
    """Write `sweep.html` into the folder of a sweep and return its path."""
    environment = Environment(
        loader=PackageLoader("mappa_core.view"), autoescape=select_autoescape(), undefined=StrictUndefined
    )
    curves: dict[str, list[Curve]] = {}
    for run in swept.sweep.at("done"):
        curves.setdefault(swept.sweep.setting(run), []).append(_curve(folder / run.folder))
    page = environment.get_template("sweep.html").render(
        name=folder.name,
        sweep=swept.sweep,
        compared=swept.compared,
        notes=notes,
        charts=[learning(curves)] if curves else [],
    )
    path = folder / "sweep.html"
    write_atomic(path, page)
    return path


def learning(curves: Mapping[str, Sequence[Curve]]) -> Chart:
    """A line for every setting: the mean over its seeds wherever all of them were evaluated."""
    lines = {name: _mean(ones) for name, ones in curves.items()}
    return chart(
        "Held-out tasks over iterations, mean over seeds (those that checkpoints are chosen on, where there are such)",
        lines,
        x_high=max([at for points in lines.values() for at, _ in points] + [1]),
        y_high=1.0,
        y_labels=PERCENT_TICKS,
    )


def _mean(curves: Sequence[Curve]) -> list[Point]:
    shared = sorted(set.intersection(*(set(curve) for curve in curves)))
    return [(at, sum(curve[at] for curve in curves) / len(curves)) for at in shared]


def _curve(folder: Path) -> Curve:
    with Reader(folder) as reader:
        bodies = [event.body for event in reader.events("evaluation") if event.body["interval"] is not None]
    choosing = [body for body in bodies if part_of(body) == "selection"]
    return {int(body["iteration"]): float(body["interval"]["mean"]) for body in choosing or bodies}
