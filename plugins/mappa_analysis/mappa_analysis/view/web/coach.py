"""The page on a coach: scores against outcomes, gaps between strata, alarms, failures, cost and latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request

from mappa_analysis.coach_eval.bootstrap import auc
from mappa_analysis.view.chart import PERCENT_TICKS, Chart, build_chart, build_fitted_chart
from mappa_analysis.view.drift import read_drift
from mappa_analysis.view.metric_points import IterationMetrics, last_iteration, metric_points, names_between
from mappa_analysis.view.report import build_gap_charts
from mappa_core.errors import RunError
from mappa_core.evaluation.statistics import share_interval
from mappa_core.records import MAX_SCORE
from mappa_core.store.reader import Reader
from mappa_core.store.summary import Interval, Summary, read_summary
from mappa_core.store.verdict_outcomes import VerdictWithOutcome

MAX_LATEST_VERDICTS = 1000
"""Verdicts that are read individually: the newest of the training rollouts, however long a run is."""
SCORE_BINS = 5
"""Number of score bins, each `MAX_SCORE / SCORE_BINS` points wide."""
MAX_REASON_LOOKUPS = 50
"""Verdicts without a score whose reason is looked up."""


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


def build_coach_page(reader: Reader, folder: Path, request: Request) -> dict[str, Any]:
    iterations, drift = reader.iterations(), read_drift(reader)
    latest = reader.judgements("train", limit=MAX_LATEST_VERDICTS)
    names = sorted({name for one in latest for name in one.outcome})
    summary = _read_summary(folder)
    metric = _choose_metric(request.query_params.get("outcome"), names, summary)
    rankings = [] if metric is None else rank_agents(latest, metric)
    return {
        "summary": summary,
        "verdicts": len(latest),
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


def rank_agents(judgements: Sequence[VerdictWithOutcome], metric: str) -> list[OutcomeRanking]:
    """Rank by agent, over the live scored verdicts on trajectories that have the outcome."""
    known: dict[str, list[VerdictWithOutcome]] = {}
    for one in judgements:
        if one.phase == "live" and one.score is not None and metric in one.outcome:
            known.setdefault(one.agent, []).append(one)
    return [_rank_agent(agent, known[agent], metric) for agent in sorted(known)]


def _rank_agent(agent: str, judged: Sequence[VerdictWithOutcome], metric: str) -> OutcomeRanking:
    points = np.array([one.score for one in judged], dtype=np.float64)
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
        f"Mean {metric} of trajectories (up) by points of an action (across), with 95 % intervals",
        {one.agent: [(part.points, part.outcome.mean) for part in one.bins] for one in rankings},
        x_high=MAX_SCORE,
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


def build_coach_charts(iterations: IterationMetrics) -> list[Chart]:
    """Build charts over iterations: correlation of points and outcome, verdicts without a score, cost and tokens."""
    end = last_iteration(iterations)
    agents = names_between(iterations, "drift/live/", "/correlation")
    together = {agent: metric_points(iterations, f"drift/live/{agent}/correlation") for agent in agents}
    missing = {name: metric_points(iterations, f"coach/{name}") for name in ("failed", "abstained")}
    tokens = {
        label: metric_points(iterations, f"coach/{name}")
        for label, name in (("prompt", "prompt_tokens"), ("completion", "completion_tokens"))
    }
    usd = {"all coaches": metric_points(iterations, "coach/usd")}
    drawn = (
        ("Correlation of points and outcome so far", together),
        ("Verdicts without a score", missing),
        ("Cost of an iteration, US dollars", usd if any(value for _, value in usd["all coaches"]) else {}),
        ("Tokens of the coach's calls in an iteration", tokens),
    )
    return [build_fitted_chart(title, lines, x_high=end) for title, lines in drawn if any(lines.values())]


def measure_latencies(judgements: Sequence[VerdictWithOutcome]) -> list[Latency]:
    groups: dict[tuple[str, str], list[VerdictWithOutcome]] = {}
    for one in judgements:
        groups.setdefault((one.coach, one.phase), []).append(one)
    return [_measure_latency(*key, found) for key, found in sorted(groups.items())]


def _measure_latency(coach: str, phase: str, found: Sequence[VerdictWithOutcome]) -> Latency:
    median, p95, maximum = np.quantile([one.seconds for one in found], [0.5, 0.95, 1.0])
    return Latency(
        coach=coach,
        phase=phase,
        verdicts=len(found),
        unscored=sum(one.score is None for one in found),
        median=float(median),
        p95=float(p95),
        max=float(maximum),
    )


def count_missing_scores(reader: Reader, judgements: Sequence[VerdictWithOutcome]) -> list[MissingScoreReason]:
    """Count why scores are missing in `judgements`, the most frequent reason first. The newest `MAX_REASON_LOOKUPS` are
    looked up."""
    missing = [one for one in judgements if one.score is None][:MAX_REASON_LOOKUPS]
    whole = [reader.verdict(one.step, one.verdict) for one in missing]
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


def _read_summary(folder: Path) -> Summary | None:
    try:
        return read_summary(folder)
    except RunError:
        return None
