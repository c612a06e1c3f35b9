"""The verdicts that count where an action has several: those of the run's own coach, or, of a run whose coach judged
nothing (an imported one, or one whose verdicts all failed), the last ones that `mappa judge` added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import fmean

from mappa.runs import RunReader
from mappa.runs.rows import VerdictRow
from mappa.store.summary import Summary
from mappa_core import NOBODY, RunError, Verdict
from mappa_core.records import ENVIRONMENT, TASK, USER

DEFAULT_METRIC = "correct"
"""The metric of a run that recorded neither an evaluation nor its team."""
LOW_SCORE = 4.0
"""Score (points) below which an action counts as a failure of its agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentVerdicts:
    """The verdicts on one agent's actions: how many, the mean of those with a score (points, 0-10; None without any),
    how many are below `LOW_SCORE`, and the rollouts that did not succeed in which some verdict blames the agent."""

    agent: str
    verdicts: int
    score: float | None
    low: int
    blamed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlameCounts:
    """Whom verdicts blame, over the rollouts `looked_at`: those that did not succeed, or all where no outcome is known
    (`has_outcome`). In `unblamed` of them no verdict blames anybody; `others` counts those in which one blames the
    user, the environment or the task. `categories` counts the blaming verdicts by the kind of failure, the most
    frequent first."""

    agents: tuple[AgentVerdicts, ...]
    looked_at: int
    has_outcome: bool
    unblamed: int
    others: Mapping[str, int]
    categories: Mapping[str, int]

    @property
    def ranked(self) -> Mapping[str, int]:
        """All who are blamed, agents and others, the most often blamed first."""
        return _rank({one.agent: one.blamed for one in self.agents if one.blamed} | dict(self.others))


def _rank(counts: Mapping[str, int]) -> dict[str, int]:
    """The highest count first, of equals the first name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def select_counted(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Select those that count, given by arrival: of the run's own coach all, unless all of them failed, of `mappa
    judge` the last on each action that did not fail, if there is one."""
    own = tuple(verdict for verdict in verdicts if verdict.phase != "again")
    again: dict[str, Verdict] = {}
    for verdict in verdicts:
        if verdict.phase == "again" and (verdict.status != "failed" or verdict.step not in again):
            again[verdict.step] = verdict
    given = tuple(again.values())
    return own if own and (_all_failed(given) or not _all_failed(own)) else given


def _all_failed(verdicts: Sequence[Verdict]) -> bool:
    return all(verdict.status == "failed" for verdict in verdicts)


def select_counted_rows(rows: Iterable[VerdictRow]) -> list[VerdictRow]:
    """Select the rows of those that count, as `select_counted` does."""
    found = list(rows)
    counted = set(map(id, select_counted([row.verdict for row in found])))
    return [row for row in found if id(row.verdict) in counted]


def latest_counted(reader: RunReader, *, limit: int) -> tuple[str, list[VerdictRow]]:
    """The newest verdicts that count, without their texts, and their split: training rollouts, or held-out ones of a
    run that has no verdict on others."""
    for split in ("train", "eval"):
        if rows := reader.latest_verdicts(split, limit=limit):
            return split, select_counted_rows(rows)
    return "train", []


def read_metric(reader: RunReader, summary: Summary | None) -> str:
    """The metric of a run's workflow, by its evaluation or, before there is one, by the record of its team."""
    if summary is not None and summary.eval is not None:
        return summary.eval.metric
    with suppress(RunError):
        return reader.team.metric
    return DEFAULT_METRIC


def count_failures(rows: Sequence[VerdictRow], metric: str) -> BlameCounts:
    """Count blame over the judged rollouts that did not succeed: whose `metric` is known, and below 1."""
    return count_blame(rows, {row.trajectory for row in rows if is_short(row.outcome, metric)})


def is_short(outcome: Mapping[str, float], metric: str) -> bool:
    """Whether the metric is known, and below 1."""
    return metric in outcome and outcome[metric] < 1.0


def count_blame(rows: Sequence[VerdictRow], looked_at: Collection[str], *, has_outcome: bool = True) -> BlameCounts:
    """Count the verdicts of each agent, in the order of the actions of the first rollouts, then of those whom they
    only blame, and whom and what they blame over the rollouts `looked_at`."""
    blaming = [row for row in rows if row.trajectory in looked_at and row.verdict.blame not in (None, NOBODY)]
    blamed: dict[str, set[str]] = {}
    for row in blaming:
        blamed.setdefault(str(row.verdict.blame), set()).add(row.trajectory)
    return BlameCounts(
        agents=_summarize_agents(rows, blamed),
        looked_at=len(looked_at),
        has_outcome=has_outcome,
        unblamed=len(looked_at) - len({row.trajectory for row in blaming}),
        others={name: len(blamed[name]) for name in (USER, ENVIRONMENT, TASK) if name in blamed},
        categories=_rank(Counter(row.verdict.category for row in blaming if row.verdict.category is not None)),
    )


def _summarize_agents(rows: Sequence[VerdictRow], blamed: Mapping[str, Collection[str]]) -> tuple[AgentVerdicts, ...]:
    points: dict[str, list[float | None]] = {}
    for row in sorted(rows, key=lambda row: row.position):
        points.setdefault(row.agent, []).append(row.verdict.score)
    for name in blamed:  # Also whom only verdicts on others' actions blame.
        if name not in (USER, ENVIRONMENT, TASK):
            points.setdefault(name, [])
    return tuple(
        AgentVerdicts(
            agent=agent,
            verdicts=len(given),
            score=fmean(scores) if (scores := [score for score in given if score is not None]) else None,
            low=sum(score < LOW_SCORE for score in scores),
            blamed=len(blamed.get(agent, ())),
        )
        for agent, given in points.items()
    )


def with_counted_verdicts(summary: Summary, reader: RunReader) -> Summary:
    """Complete the summary of a run that trained on no verdict (imported, evaluated or observed): the agents' scores,
    the verdicts and their cost."""
    if summary.coach.verdicts or not (rows := select_counted_rows(reader.verdicts)):
        return summary
    scores = {one.agent: one.score for one in _summarize_agents(rows, {})}
    coach = replace(
        summary.coach,
        verdicts=len(rows),
        failed=sum(row.verdict.status == "failed" for row in rows),
        usd=_total_usd([row.verdict for row in rows]),
    )
    agents = {agent: replace(figures, score=scores.get(agent)) for agent, figures in summary.agents.items()}
    return replace(summary, agents=agents, coach=coach)


def _total_usd(verdicts: Sequence[Verdict]) -> float | None:
    """What verdicts cost; None if a price is unknown. One whose coach asked no model cost nothing."""
    costs = [verdict.usage.usd for verdict in verdicts if verdict.usage is not None]
    known = [usd for usd in costs if usd is not None]
    return sum(known) if len(known) == len(costs) else None
