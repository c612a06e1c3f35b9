"""Builds the summary of a run from its records and evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mappa.evaluation.heldout import Evaluation
from mappa.store.folder import RunFolder
from mappa.store.iteration_report import VerdictCount
from mappa.store.summary import (
    CoachSummary,
    EvalSummary,
    FigureSummary,
    SelectionSummary,
    StratumSummary,
    Summary,
    ToolSummary,
)
from mappa.store.writer import ENGINE_LOST_EVENT, PROCESS_LOST_EVENT, TRANSPORT_LOST_EVENT, Store


def build_summary(
    summary: Summary, store: Store, evaluations: Sequence[Evaluation], selection: SelectionSummary | None = None
) -> Summary:
    """Complete `summary` from the records, of `evaluations` the one before training and the last, and the `selection`
    of a checkpoint."""
    iterations = store.iterations()
    return replace(
        summary,
        iterations=iterations[-1].iteration if iterations else 0,
        eval=_eval_summary(evaluations, selection),
        agents=iterations[-1].agents if iterations else {},
        coach=_coach_summary([report.coach.total for report in iterations]),
        tools=ToolSummary(
            lost=sum(report.lost for report in iterations),
            retries=sum(report.tool_retries for report in iterations),
        ),
        engine_losses=len(store.events(ENGINE_LOST_EVENT)) + len(store.events(PROCESS_LOST_EVENT)),
        transport_losses=len(store.events(TRANSPORT_LOST_EVENT)),
    )


def _eval_summary(evaluations: Sequence[Evaluation], selection: SelectionSummary | None) -> EvalSummary | None:
    if not evaluations:
        return None
    before = evaluations[0] if evaluations[0].iteration == 0 else None
    after = evaluations[-1] if evaluations[-1] is not before else None
    known = before or evaluations[-1]
    return EvalSummary(
        **_results(before, after),
        metric=known.metric,
        known=tuple(evaluation.known for evaluation in (before, after) if evaluation is not None),
        clusters=known.cluster_count,
        strata={
            name: StratumSummary(**_results(before and before.for_stratum(name), after and after.for_stratum(name)))
            for name in known.by_stratum()
        },
        selection=selection,
    )


def _results(before: Evaluation | None, after: Evaluation | None) -> dict[str, Any]:
    """The fields of a `StratumSummary`, of at least one evaluation."""
    known = before or after
    assert known is not None
    figures = {
        name: FigureSummary(**_intervals(before and before.with_metric(name), after and after.with_metric(name)))
        for name in known.figures
    }
    return {**_intervals(before, after), "n": len(known.problems), "figures": figures}


def _intervals(before: Evaluation | None, after: Evaluation | None) -> dict[str, Any]:
    """The fields of a `FigureSummary`."""
    if before is None or after is None:
        return {"before": before and before.interval, "after": after and after.interval}
    paired = int((np.isfinite(before.by_problem) & np.isfinite(after.by_problem)).sum())
    return {
        "before": before.interval,
        "after": after.interval,
        "gain": after.gain_over(before),
        "paired": paired if 0 < paired < len(before.problems) else None,
    }


def summarize_selection(folder: RunFolder, tasks: int) -> SelectionSummary | None:
    """Summarize the choice of the best checkpoint by all evaluations on `tasks` other tasks; None if there is none."""
    best = folder.checkpoints.best() if tasks else None
    if best is None:
        return None
    recorded = (event.body for event in folder.store.events("evaluation"))
    # By iteration, because a resume records an evaluation again.
    count = len({body["iteration"] for body in recorded if body["part"] == "selection"})
    return SelectionSummary(n=tasks, evaluations=count, iteration=best.iteration, value=best.value)


def _coach_summary(counts: Sequence[VerdictCount]) -> CoachSummary:
    costs = [count.usd for count in counts if count.usd is not None]
    all_known = len(costs) == len(counts)
    return CoachSummary(
        verdicts=sum(count.verdicts for count in counts),
        failed=sum(count.failed for count in counts),
        usd=sum(costs) if all_known else None,
    )
