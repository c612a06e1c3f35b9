"""What stands in a report beside its figures: settings, versions, and what the coaches cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mappa_core.store.folder import CONFIG
from mappa_core.store.reader import Reader
from mappa_core.view.curves import Iterations, between

FIGURES = ("verdicts", "failed", "calls", "prompt_tokens", "completion_tokens", "usd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What one coach did in training: verdicts, calls, tokens and US dollars; None where a figure is not known of every
    iteration, or was not asked of a provider."""

    coach: str
    verdicts: float | None
    failed: float | None
    calls: float | None
    prompt_tokens: float | None
    completion_tokens: float | None
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """`settings` is the text of config.yaml, where every value has its origin; `versions` maps packages to theirs,
    empty where the run kept none."""

    settings: str
    versions: Mapping[str, str]
    spent: tuple[Spent, ...]


def record_of(folder: Path, reader: Reader, iterations: Iterations) -> Record:
    """The record of the run in `folder`."""
    versions: dict[str, str] = {}
    for event in reader.events("versions"):
        versions |= event.body["packages"]
    for event in reader.events("processes"):
        for process in event.body["processes"]:
            versions |= process["versions"]
    return Record(
        settings=(folder / CONFIG).read_text("utf-8"),
        versions=dict(sorted(versions.items(), key=lambda item: item[0].lower())),
        spent=tuple(
            Spent(coach=name, **_summed(iterations, f"coach/name/{name}/"))
            for name in between(iterations, "coach/name/", "/verdicts")
        ),
    )


def _summed(iterations: Iterations, prefix: str) -> dict[str, float | None]:
    """Sums over the iterations in which the coach was asked; a figure that one of them lacks is not known."""
    asked = [metrics for _, metrics in iterations if f"{prefix}verdicts" in metrics]
    return {
        figure: sum(metrics[prefix + figure] for metrics in asked)
        if all(prefix + figure in metrics for metrics in asked)
        else None
        for figure in FIGURES
    }
