"""The coach: its scores against what came of it, gaps between strata, alarms, failures, cost and latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from starlette.requests import Request

from mappa_core.errors import RunError
from mappa_core.evaluation.agreement import auc
from mappa_core.evaluation.statistics import share_interval
from mappa_core.records import MAX_SCORE
from mappa_core.store.judgements import Judgement
from mappa_core.store.reader import Reader
from mappa_core.store.summary import Interval, Summary, read_summary
from mappa_core.view.chart import PERCENT_TICKS, Chart, chart, fitted
from mappa_core.view.curves import Iterations, between, curve, last
from mappa_core.view.drift import watch_of
from mappa_core.view.report import gap_charts

LATEST = 1000
"""Verdicts that are looked at one by one, the newest of the training rollouts, however long a run is."""
BINS = 5
"""Of scores, each of `MAX_SCORE / BINS` points."""
TOLD = 50
"""Verdicts without a score that are looked up for their reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Verdicts of about one score: their mean points, and the mean outcome of their trajectories, tasks as clusters."""

    points: float
    outcome: Interval
    verdicts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """What the scores of an agent's actions tell of the outcome. `auc` is the chance that an action of a trajectory at
    the full mark has more points than one of another, None where all came out alike."""

    agent: str
    verdicts: int
    auc: float | None
    bins: tuple[Bin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Seconds that verdicts of one coach took: median, 95th percentile and most."""

    coach: str
    phase: str
    verdicts: int
    unscored: int
    median: float
    p95: float
    most: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why scores are missing: a reason, how often, and the newest trajectory and action that it was said of."""

    status: str
    text: str
    count: int
    trajectory: str
    position: int


def page(reader: Reader, folder: Path, request: Request) -> dict[str, Any]:
    iterations, watch = reader.iterations(), watch_of(reader)
    latest = reader.judgements("train", limit=LATEST)
    names = sorted({name for one in latest for name in one.outcome})
    summary = _summary(folder)
    metric = _metric(request.query_params.get("outcome"), names, summary)
    rankings = [] if metric is None else rank(latest, metric)
    return {
        "summary": summary,
        "verdicts": len(latest),
        "outcomes": names,
        "metric": metric,
        "rankings": rankings,
        "agreement": _agreement(rankings, metric),
        "watch": watch,
        "gap_charts": gap_charts(watch),
        "charts": charts(iterations),
        "latencies": latencies(latest),
        "reasons": reasons(reader, latest),
    }


def rank(judgements: Sequence[Judgement], metric: str) -> list[Ranking]:
    """By agent, over the live scored verdicts on trajectories that have the outcome."""
    known: dict[str, list[Judgement]] = {}
    for one in judgements:
        if one.phase == "live" and one.score is not None and metric in one.outcome:
            known.setdefault(one.agent, []).append(one)
    return [_ranking(agent, known[agent], metric) for agent in sorted(known)]


def _ranking(agent: str, judged: Sequence[Judgement], metric: str) -> Ranking:
    points = np.array([one.score for one in judged], dtype=np.float64)
    outcome = np.array([one.outcome[metric] for one in judged])
    tasks = [one.task for one in judged]
    place = np.minimum((points * BINS / MAX_SCORE).astype(int), BINS - 1)
    above = float(auc(points, outcome >= 1.0)(np.ones((1, len(points))))[0])
    return Ranking(
        agent=agent,
        verdicts=len(judged),
        auc=above if np.isfinite(above) else None,
        bins=tuple(
            Bin(
                points=float(points[rows].mean()),
                outcome=share_interval(np.clip(outcome[rows], 0.0, 1.0), [tasks[row] for row in rows]),
                verdicts=len(rows),
            )
            for rows in (np.flatnonzero(place == number) for number in range(BINS))
            if len(rows)
        ),
    )


def _agreement(rankings: Sequence[Ranking], metric: str | None) -> Chart:
    return chart(
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


def charts(iterations: Iterations) -> list[Chart]:
    """Over iterations: how far points and outcome go together, verdicts without a score, cost and tokens."""
    end = last(iterations)
    agents = between(iterations, "drift/live/", "/correlation")
    together = {agent: curve(iterations, f"drift/live/{agent}/correlation") for agent in agents}
    missing = {name: curve(iterations, f"coach/{name}") for name in ("failed", "abstained")}
    tokens = {
        label: curve(iterations, f"coach/{name}")
        for label, name in (("prompt", "prompt_tokens"), ("completion", "completion_tokens"))
    }
    usd = {"all coaches": curve(iterations, "coach/usd")}
    drawn = (
        ("Correlation of points and outcome so far", together),
        ("Verdicts without a score", missing),
        ("Cost of an iteration, US dollars", usd if any(value for _, value in usd["all coaches"]) else {}),
        ("Tokens of the coach's calls in an iteration", tokens),
    )
    return [fitted(title, lines, x_high=end) for title, lines in drawn if any(lines.values())]


def latencies(judgements: Sequence[Judgement]) -> list[Latency]:
    groups: dict[tuple[str, str], list[Judgement]] = {}
    for one in judgements:
        groups.setdefault((one.coach, one.phase), []).append(one)
    return [_latency(*key, found) for key, found in sorted(groups.items())]


def _latency(coach: str, phase: str, found: Sequence[Judgement]) -> Latency:
    median, p95, most = np.quantile([one.seconds for one in found], [0.5, 0.95, 1.0])
    return Latency(
        coach=coach,
        phase=phase,
        verdicts=len(found),
        unscored=sum(one.score is None for one in found),
        median=float(median),
        p95=float(p95),
        most=float(most),
    )


def reasons(reader: Reader, judgements: Sequence[Judgement]) -> list[Reason]:
    """Why scores are missing among `judgements`, the most frequent first; the newest `TOLD` are looked up."""
    missing = [one for one in judgements if one.score is None][:TOLD]
    whole = [reader.verdict(one.step, one.verdict) for one in missing]
    texts = [(one.status, one.error or one.reasoning) for one in whole]
    newest = dict(zip(reversed(texts), reversed(missing), strict=True))
    return [
        Reason(
            status=status,
            text=text,
            count=count,
            trajectory=newest[status, text].trajectory,
            position=newest[status, text].position,
        )
        for (status, text), count in Counter(texts).most_common()
    ]


def _metric(asked: str | None, names: Sequence[str], summary: Summary | None) -> str | None:
    known = None if summary is None or summary.eval is None else summary.eval.metric
    return next((name for name in (asked, known, *names) if name in names), None)


def _summary(folder: Path) -> Summary | None:
    try:
        return read_summary(folder)
    except RunError:
        return None
