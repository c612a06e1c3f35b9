"""The page on a coach: scores against outcomes, gaps between strata, alarms, failures, cost and latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request

from mappa.evaluation.statistics import share_interval
from mappa.look.coach_eval.bootstrap import auc
from mappa.look.counted_verdicts import latest_counted, with_counted_verdicts
from mappa.look.view.chart import PERCENT_TICKS, Chart, build_chart, build_fitted_chart
from mappa.look.view.drift import read_drift
from mappa.look.view.metric_points import Iterations, last_iteration, metric_points
from mappa.look.view.report import build_gap_charts
from mappa.runs import RunReader
from mappa.runs.rows import VerdictRow
from mappa.store.summary import Summary
from mappa_core import MAX_SCORE, RunError
from mappa_core.records import Interval

MAX_LATEST_VERDICTS = 1000
"""Verdicts that are read individually: the newest, however long a run is."""
SCORE_BINS = 5
"""Number of score bins, each `MAX_SCORE / SCORE_BINS` points wide."""
MAX_REASONS = 50
"""Verdicts without a score whose reason is shown, the newest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreBin:
    """Verdicts of similar score: their mean points, and the mean outcome of their trajectories, tasks as clusters."""

    points: float
    outcome: Interval
    verdicts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRanking:
    """How well the scores of an agent's actions predict the outcome. `auc` is the probability that an action of a
    trajectory with outcome 1 has more points than one of another; None if all outcomes are alike."""

    agent: str
    verdicts: int
    auc: float | None
    bins: tuple[ScoreBin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds per verdict of one coach: median, 95th percentile and maximum."""

    coach: str
    phase: str
    verdicts: int
    unscored: int
    median: float
    p95: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingScoreReason:
    """A reason why scores are missing: its text, its count, and the newest trajectory and action that has it."""

    status: str
    text: str
    count: int
    trajectory: str
    position: int


def build_coach_page(reader: RunReader, folder: Path, request: Request) -> dict[str, Any]:
    iterations, drift = list(reader.iterations), read_drift(reader)
    split, latest = latest_counted(reader, limit=MAX_LATEST_VERDICTS)
    names = sorted({name for one in latest for name in one.outcome})
    summary = _read_summary(reader)
    if summary is not None:
        summary = with_counted_verdicts(summary, reader)
    metric = _choose_metric(request.query_params.get("outcome"), names, summary)
    rankings = [] if metric is None else rank_agents(latest, metric)
    return {
        "summary": summary,
        "verdicts": len(latest),
        "split": split,
        "outcomes": names,
        "metric": metric,
        "rankings": rankings,
        "agreement": _build_agreement_chart(rankings, metric),
        "drift": drift,
        "gap_charts": build_gap_charts(drift),
        "charts": build_coach_charts(iterations),
        "latencies": measure_latencies(latest),
        "reasons": count_missing_scores(reader, latest),
    }


def rank_agents(verdicts: Sequence[VerdictRow], metric: str) -> list[OutcomeRanking]:
    """Rank by agent, over the scored verdicts on trajectories that have the outcome: the live ones, or where there are
    none those in hindsight, or those of `mappa judge`."""
    scored = [one for one in verdicts if one.verdict.score is not None and metric in one.outcome]
    phases = {one.verdict.phase for one in scored}
    counted = next((phase for phase in ("live", "after", "again") if phase in phases), None)
    known: dict[str, list[VerdictRow]] = {}
    for one in scored:
        if one.verdict.phase == counted:
            known.setdefault(one.agent, []).append(one)
    return [_rank_agent(agent, known[agent], metric) for agent in sorted(known)]


def _rank_agent(agent: str, judged: Sequence[VerdictRow], metric: str) -> OutcomeRanking:
    points = np.array([one.verdict.score for one in judged], dtype=np.float64)
    outcome = np.array([one.outcome[metric] for one in judged])
    tasks = [one.task for one in judged]
    place = np.minimum((points * SCORE_BINS / MAX_SCORE).astype(int), SCORE_BINS - 1)
    above = float(auc(points, outcome >= 1.0)(np.ones((1, len(points))))[0])
    return OutcomeRanking(
        agent=agent,
        verdicts=len(judged),
        auc=above if np.isfinite(above) else None,
        bins=tuple(
            ScoreBin(
                points=float(points[rows].mean()),
                outcome=share_interval(np.clip(outcome[rows], 0.0, 1.0), [tasks[row] for row in rows]),
                verdicts=len(rows),
            )
            for rows in (np.flatnonzero(place == number) for number in range(SCORE_BINS))
            if len(rows)
        ),
    )


def _build_agreement_chart(rankings: Sequence[OutcomeRanking], metric: str | None) -> Chart:
    return build_chart(
        f"Mean {metric} of trajectories by points of an action, with 95 % intervals",
        {one.agent: [(part.points, part.outcome.mean) for part in one.bins] for one in rankings},
        x_high=MAX_SCORE,
        x_label="points of an action",
        y_high=1.0,
        y_labels=PERCENT_TICKS,
        bands={
            one.agent: [
                (part.points, part.outcome.low, part.outcome.high)
                for part in one.bins
                if part.outcome.low is not None and part.outcome.high is not None
            ]
            for one in rankings
        },
    )


def build_coach_charts(iterations: Iterations) -> list[Chart]:
    """Build charts over iterations: verdicts without a score, cost and tokens."""
    end = last_iteration(iterations)
    missing = {
        "failed": metric_points(iterations, lambda report: report.coach.total.failed),
        "abstained": metric_points(iterations, lambda report: report.coach.total.abstained),
    }
    tokens = {
        "prompt": metric_points(iterations, lambda report: getattr(report.coach.total.usage, "prompt_tokens", None)),
        "completion": metric_points(
            iterations, lambda report: getattr(report.coach.total.usage, "completion_tokens", None)
        ),
    }
    usd = {"all coaches": metric_points(iterations, lambda report: report.coach.total.usd)}
    drawn = (
        ("Verdicts without a score", missing),
        ("Cost of an iteration, US dollars", usd if any(value for _, value in usd["all coaches"]) else {}),
        ("Tokens of the coach's calls in an iteration", tokens),
    )
    return [build_fitted_chart(title, lines, x_high=end) for title, lines in drawn if any(lines.values())]


def measure_latencies(verdicts: Sequence[VerdictRow]) -> list[Latency]:
    groups: dict[tuple[str, str], list[VerdictRow]] = {}
    for one in verdicts:
        groups.setdefault((one.verdict.coach, one.verdict.phase), []).append(one)
    return [_measure_latency(*key, found) for key, found in sorted(groups.items())]


def _measure_latency(coach: str, phase: str, found: Sequence[VerdictRow]) -> Latency:
    median, p95, maximum = np.quantile([one.verdict.seconds for one in found], [0.5, 0.95, 1.0])
    return Latency(
        coach=coach,
        phase=phase,
        verdicts=len(found),
        unscored=sum(one.verdict.score is None for one in found),
        median=float(median),
        p95=float(p95),
        max=float(maximum),
    )


def count_missing_scores(reader: RunReader, verdicts: Sequence[VerdictRow]) -> list[MissingScoreReason]:
    """Count why scores are missing in `verdicts`, the most frequent reason first."""
    missing = [one for one in verdicts if one.verdict.score is None][:MAX_REASONS]
    whole = [reader.verdict(one.verdict.step, one.verdict.id) for one in missing]
    texts = [(one.status, one.error or one.reasoning) for one in whole]
    newest = dict(zip(reversed(texts), reversed(missing), strict=True))
    return [
        MissingScoreReason(
            status=status,
            text=text,
            count=count,
            trajectory=newest[status, text].trajectory,
            position=newest[status, text].position,
        )
        for (status, text), count in Counter(texts).most_common()
    ]


def _choose_metric(requested: str | None, names: Sequence[str], summary: Summary | None) -> str | None:
    known = None if summary is None or summary.eval is None else summary.eval.metric
    return next((name for name in (requested, known, *names) if name in names), None)


def _read_summary(reader: RunReader) -> Summary | None:
    with suppress(RunError):
        return reader.summary
    return None
