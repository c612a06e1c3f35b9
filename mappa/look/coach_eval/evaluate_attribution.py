"""Evaluation of coaches on labelled runs: who is guilty, which step decided, and how good each step was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mappa.look.coach_eval.agreement import LabelledPlay, LabellerAgreement, measure_agreement
from mappa.look.coach_eval.attribution import Grade, attribute, grade
from mappa.look.coach_eval.attribution_figures import (
    Calibration,
    Figure,
    compute_calibration,
    compute_figures,
    share_same,
)
from mappa.look.coach_eval.batch_judge import JudgingLimits, judge_actions, judge_in_turn
from mappa.look.coach_eval.labelled_runs import Benchmark, LabelledRun, LabelledRuns
from mappa.look.coach_eval.metrics import JudgingCost, VerdictCounts, count_statuses, judging_cost
from mappa.look.coach_eval.naive_answers import grade_naive_answers
from mappa.look.coach_eval.published import PublishedFigure, compute_published
from mappa.look.coach_eval.unseen_runs import count_overlap
from mappa.rollout.named_coach import NamedCoach
from mappa_core import ConfigError, Usage, Verdict
from mappa_core.records import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionMetrics:
    """Metrics of one coach. `usage` adds up what its verdicts reported, None if none did; `same` is the share of pairs
    of repeats with the same answer about a run. `published` are the figures of a public set by its own rules, of the
    first repeat."""

    name: str
    figures: tuple[Figure, ...]
    calibration: tuple[Calibration, ...]
    published: tuple[PublishedFigure, ...]
    counts: VerdictCounts
    effort: JudgingCost
    usage: Usage | None
    same: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionEvaluation:
    """Coaches on the same labelled runs, with or without the truth and what came later shown to them. `left_out` counts
    runs by reason, `overlap` those that a coach was fitted on, by its name: its figures on them certify nothing.
    `agreement` is that of people, where several labelled."""

    runs: int
    questions: int
    actions: int
    strata: Mapping[str, int]
    repeats: int
    truth: bool
    hindsight: bool
    left_out: Mapping[str, int]
    overlap: Mapping[str, int]
    agreement: LabellerAgreement | None
    coaches: tuple[AttributionMetrics, ...]


async def evaluate_attribution(
    judges: Sequence[Sequence[NamedCoach]],
    labelled: LabelledRuns,
    limits: JudgingLimits,
    *,
    benchmark: Benchmark | None = None,
    on_verdict: Callable[[Verdict], None] | None = None,
) -> AttributionEvaluation:
    """Judge every action of labelled runs by every coach, one coach after another, and hold it against the labels. In
    hindsight the actions of a run are judged together, else one by one, unless the coach judges by trajectory.

    Args:
        judges: every coach as often as it is to judge; one that keeps its verdicts is another object each time.
        benchmark: the public set that the runs are of, for its published figures.
        on_verdict: called with every verdict.

    Raises:
        ConfigError: a coach would have to be paid for runs that have labels and no texts.
    """
    runs = labelled.runs
    _refuse_empty(judges, runs)
    naive = grade_naive_answers(runs)

    def record(verdict: Verdict) -> Verdict:
        if on_verdict is not None:
            on_verdict(verdict)
        return verdict

    async def judge_once(judge: NamedCoach) -> list[list[Verdict]]:
        review = labelled.hindsight or judge.coach.by_trajectory
        return await judge_actions(judge, [run.scenes for run in runs], limits, review=review, finalize=record)

    every = [judge for repeats in judges for judge in repeats]
    passes = iter(await judge_in_turn(every, map(judge_once, every)))
    found = []
    for repeats in judges:
        given = [next(passes) for _ in repeats]
        found.append(_compute_metrics(repeats[0], runs, given, naive, benchmark))
    return AttributionEvaluation(
        runs=len(runs),
        questions=len({run.cluster for run in runs}),
        actions=sum(len(run.scenes) for run in runs),
        strata=Counter(run.stratum for run in runs),
        repeats=max(map(len, judges), default=0),
        truth=labelled.truth,
        hindsight=labelled.hindsight,
        left_out=labelled.left_out,
        overlap=count_overlap(labelled, [judge for judge, *_ in judges]),
        agreement=measure_agreement(
            [LabelledPlay(labels=run.labels, positions=run.positions, cluster=run.cluster) for run in runs]
        ),
        coaches=tuple(found),
    )


def _refuse_empty(judges: Sequence[Sequence[NamedCoach]], runs: Sequence[LabelledRun]) -> None:
    empty = sum(not run.has_text for run in runs)
    asked = ", ".join(one.name for one, *_ in judges if one.coach.providers)
    if empty and asked:
        raise ConfigError(
            f"{empty:,} of {len(runs):,} runs have labels and no texts, so there is nothing to show to {asked}: "
            "give the files with the texts alone, or judge by recorded verdicts"
        )


def _compute_metrics(
    judge: NamedCoach,
    runs: Sequence[LabelledRun],
    given: Sequence[Sequence[Sequence[Verdict]]],
    naive: Mapping[str, Sequence[Grade]],
    benchmark: Benchmark | None,
) -> AttributionMetrics:
    answers = [[attribute(run, verdicts) for run, verdicts in zip(runs, repeat, strict=True)] for repeat in given]
    grades = [[grade(run, said) for run, said in zip(runs, repeat, strict=True)] for repeat in answers]
    verdicts = [verdict for repeat in given for one in repeat for verdict in one]
    usages = [verdict.usage for verdict in verdicts if verdict.usage is not None and not verdict.replayed]
    return AttributionMetrics(
        name=judge.name,
        figures=compute_figures(runs, grades, naive),
        calibration=compute_calibration(
            [*runs] * len(given),
            [one for repeat in given for one in repeat],
            [one for repeat in answers for one in repeat],
        ),
        published=() if benchmark is None else compute_published(benchmark, runs, answers[0]),
        counts=count_statuses(verdicts),
        effort=judging_cost(verdicts, judge.coach.providers),
        usage=sum(usages[1:], usages[0]) if usages else None,
        same=share_same(runs, answers),
    )
