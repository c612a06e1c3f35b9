"""Provenance of a run in its report: settings, versions, and the cost of its coaches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mappa_analysis.view.metric_points import IterationMetrics, names_between
from mappa_core.store.folder import CONFIG
from mappa_core.store.reader import Reader

COST_FIGURES = ("verdicts", "failed", "calls", "prompt_tokens", "completion_tokens", "usd")


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachCost:
    """Verdicts, calls, tokens and US dollars of one coach in training; a figure is None if it is unknown for some
    iteration or if the coach calls no provider."""

    coach: str
    verdicts: float | None
    failed: float | None
    calls: float | None
    prompt_tokens: float | None
    completion_tokens: float | None
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Settings, versions and costs of a run. `settings` is the text of config.yaml, which has the origin of every
    value; `versions` are package versions, empty if the run recorded none."""

    settings: str
    versions: Mapping[str, str]
    costs: tuple[CoachCost, ...]


def read_provenance(folder: Path, reader: Reader, iterations: IterationMetrics) -> Provenance:
    """Read the provenance of the run in `folder`."""
    versions: dict[str, str] = {}
    for event in reader.events("versions"):
        versions |= event.body["packages"]
    for event in reader.events("processes"):
        for process in event.body["processes"]:
            versions |= process["versions"]
    return Provenance(
        settings=(folder / CONFIG).read_text("utf-8"),
        versions=dict(sorted(versions.items(), key=lambda item: item[0].lower())),
        costs=tuple(
            CoachCost(coach=name, **_sum_figures(iterations, f"coach/name/{name}/"))
            for name in names_between(iterations, "coach/name/", "/verdicts")
        ),
    )


def _sum_figures(iterations: IterationMetrics, prefix: str) -> dict[str, float | None]:
    """Sum the figures over the iterations with verdicts of the coach; a figure that one of them lacks is None."""
    judged = [metrics for _, metrics in iterations if f"{prefix}verdicts" in metrics]
    return {
        figure: sum(metrics[prefix + figure] for metrics in judged)
        if all(prefix + figure in metrics for metrics in judged)
        else None
        for figure in COST_FIGURES
    }
