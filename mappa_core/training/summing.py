"""A run's records and evaluations made into its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mappa_core.evaluation.heldout import Evaluation
from mappa_core.store.database import Store
from mappa_core.store.summary import (
    AgentSummary,
    CoachSummary,
    EvalSummary,
    FigureSummary,
    SelectionSummary,
    StratumSummary,
    Summary,
    ToolSummary,
)


def summed(
    summary: Summary, store: Store, evaluations: Sequence[Evaluation], selections: Sequence[Evaluation] = ()
) -> Summary:
    """`summary` with the figures of all iterations recorded so far and of the first and last of `evaluations`.
    `selections` are those of other tasks, which the best checkpoint was chosen by."""
    iterations = store.iterations()
    return replace(
        summary,
        iterations=iterations[-1][0] if iterations else 0,
        eval=_eval(evaluations, selections),
        agents=_agents(iterations[-1][1]) if iterations else {},
        coach=_coach([metrics for _, metrics in iterations]),
        tools=_tools([metrics for _, metrics in iterations]),
    )


def _eval(evaluations: Sequence[Evaluation], selections: Sequence[Evaluation]) -> EvalSummary | None:
    if not evaluations:
        return None
    before = evaluations[0]
    after = evaluations[-1] if len(evaluations) > 1 else None
    metric, figures = _measured(before, after)
    return EvalSummary(
        metric=before.metric,
        n=len(before.problems),
        clusters=before.cluster_count,
        before=metric.before,
        after=metric.after,
        gain=metric.gain,
        figures=figures,
        strata={
            name: _stratum(then, after.within(name) if after else None) for name, then in before.by_stratum().items()
        },
        selection=_selection(selections),
    )


def _selection(evaluations: Sequence[Evaluation]) -> SelectionSummary | None:
    """The first of the best evaluations; None where none chose."""
    means = [(one, one.interval.mean) for one in evaluations if one.interval is not None]
    if not means:
        return None
    best, value = max(means, key=lambda found: found[1])
    return SelectionSummary(n=len(best.problems), evaluations=len(evaluations), iteration=best.iteration, value=value)


def _stratum(before: Evaluation, after: Evaluation | None) -> StratumSummary:
    metric, figures = _measured(before, after)
    return StratumSummary(
        n=len(before.problems), before=metric.before, after=metric.after, gain=metric.gain, figures=figures
    )


def _measured(before: Evaluation, after: Evaluation | None) -> tuple[FigureSummary, dict[str, FigureSummary]]:
    """The metric, and the further figures by name."""
    found = {name: _figure(before.of(name), after.of(name) if after else None) for name in before.measures}
    return found.pop(before.metric), found


def _figure(before: Evaluation, after: Evaluation | None) -> FigureSummary:
    return FigureSummary(
        before=before.interval,
        after=after.interval if after else None,
        gain=after.gain_over(before) if after else None,
    )


def _agents(metrics: Mapping[str, float]) -> dict[str, AgentSummary]:
    found: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        kind, _, rest = name.partition("/")
        if kind == "agent":
            agent, _, figure = rest.rpartition("/")
            found.setdefault(agent, {})[figure] = value
    return {agent: AgentSummary(**figures) for agent, figures in found.items()}


def _coach(iterations: Sequence[Mapping[str, float]]) -> CoachSummary:
    known = all("coach/usd" in metrics for metrics in iterations)
    return CoachSummary(
        verdicts=int(sum(metrics["coach/verdicts"] for metrics in iterations)),
        failed=int(sum(metrics["coach/failed"] for metrics in iterations)),
        usd=sum(metrics["coach/usd"] for metrics in iterations) if known else None,
    )


def _tools(iterations: Sequence[Mapping[str, float]]) -> ToolSummary:
    return ToolSummary(
        lost=int(sum(metrics["tools/lost"] for metrics in iterations)),
        attempts_again=int(sum(metrics["tools/attempts_again"] for metrics in iterations)),
    )
