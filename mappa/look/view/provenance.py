"""Provenance of a run in its report: settings, versions, and the cost of its coaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mappa.look.view.metric_points import Iterations, collect_names
from mappa.runs import RunReader
from mappa.store.iteration_report import VerdictCount


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachCost:
    """Verdicts, calls, tokens and US dollars of one coach in training; a figure is None if it is unknown for some
    iteration or if the coach calls no provider."""

    coach: str
    verdicts: float
    failed: float
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


def read_provenance(reader: RunReader, iterations: Iterations) -> Provenance:
    """Read the provenance of a run."""
    versions: dict[str, str] = {}
    for event in reader.events("versions"):
        versions |= event.body["packages"]
    for event in reader.events("processes"):
        for process in event.body["processes"]:
            versions |= process["versions"]
    return Provenance(
        settings=reader.config,
        versions=dict(sorted(versions.items(), key=lambda item: item[0].lower())),
        costs=tuple(
            _sum_costs(coach, [report.coach.by_coach[coach] for report in iterations if coach in report.coach.by_coach])
            for coach in collect_names(iterations, lambda report: report.coach.by_coach)
        ),
    )


def _sum_costs(coach: str, counts: Sequence[VerdictCount]) -> CoachCost:
    """Sum over iterations; a figure that one of them lacks is None."""
    usages = [count.usage for count in counts]
    calls, prompt, completion = (
        _sum_known([getattr(usage, name, None) for usage in usages])
        for name in ("calls", "prompt_tokens", "completion_tokens")
    )
    return CoachCost(
        coach=coach,
        verdicts=sum(count.verdicts for count in counts),
        failed=sum(count.failed for count in counts),
        calls=calls,
        prompt_tokens=prompt,
        completion_tokens=completion,
        usd=_sum_known([count.usd for count in counts]),
    )


def _sum_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
