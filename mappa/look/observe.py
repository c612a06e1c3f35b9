"""Diagnoses a team without training it: which agents fail, how often, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mappa.config.compose import ComposedConfig
from mappa.evaluation.heldout import Evaluation, build_evaluation
from mappa.evaluation.standalone import evaluate_standalone
from mappa.evaluation.statistics import mean_interval
from mappa.look.coach_eval.agreement import LabelledPlay, LabellerAgreement, measure_agreement
from mappa.look.counted_verdicts import LOW_SCORE, select_counted
from mappa.look.handoffs import Handoff, summarize_handoffs
from mappa.look.importing.offers import IMPORT_RECIPE
from mappa.look.interventions import SUCCESS
from mappa.look.shortlist import MAX_SUSPECTS, rank_suspects
from mappa.runs import RunReader, TrajectoryRow
from mappa.runs.rows import EvaluationRow
from mappa.store.iteration_report import CoachFigures
from mappa.training.iteration_figures import count_verdicts
from mappa_core import NOBODY, ConfigError, Role, RunError, Split, Trajectory, Verdict
from mappa_core.plugins import Registry
from mappa_core.records import ENVIRONMENT, TASK, USER, Interval, Label
from mappa_core.sandbox import Sandbox
from mappa_core.transport import Provider


@dataclass(frozen=True, slots=True, kw_only=True)
class LowScoredAction:
    """An action that the coach scored low or blamed on its agent, with its reasoning. `step` begins with the
    trajectory's id. `count` such actions of the agent were given this reasoning; this one has their lowest score.
    `labels` are what people say of its step, and of who is guilty of its trajectory."""

    step: str
    score: float
    blame: str | None
    reasoning: str
    count: int
    labels: tuple[Label, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspects:
    """Where to look first in a rollout that did not succeed, the most suspicious action first: the last verdict on
    each, whose reasoning quotes what speaks for it. Nobody is accused by it."""

    trajectory: str
    verdicts: tuple[Verdict, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDiagnosis:
    """One agent over all rollouts.

    `score` is the mean over its scored actions (points, 0-10), with an interval by task, or by cluster of tasks; `low`
    of its `scored` actions are below `LOW_SCORE`. Some verdict blames it in `blamed` of the rollouts looked at.
    `tool_failures` of its `tool_calls` failed. `examples` are its lowest-scored actions, one for each reasoning,
    and the most frequent reasoning first. People label it guilty in `labelled_guilty` rollouts.
    """

    agent: str
    actions: int
    scored: int
    score: Interval | None
    low: int
    blamed: int
    tool_calls: int
    tool_failures: int
    examples: tuple[LowScoredAction, ...]
    labelled_guilty: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Diagnosis:
    """The result of an observation. `unsuccessful` rollouts have a metric below 1 or ended early; `failures` counts the
    reasons of the latter. Blame is counted over the `looked_at` rollouts: those, or all where no outcome is known
    (`has_outcome`). In `cannot_tell` of them no verdict blames anybody, and `blamed_others` counts those in which one
    blames the user, the environment or the task. `categories` counts their blaming verdicts by the kind of failure;
    `suspects` are where to look first. `handoffs` are the files of the team's contract.
    `imported`: the rollouts come from a log. `provable`: the run's own coach blames an agent in a play that the team
    finished and that failed, so that `mappa prove` has something to replace. People name the guilty agent of
    `labelled` of them, whom some verdict blames in `labels_met` of those; `agreement` is that of several people."""

    folder: Path
    split: Split
    evaluation: Evaluation
    rollouts: int
    unsuccessful: int
    looked_at: int
    has_outcome: bool
    cannot_tell: int
    blamed_others: Mapping[str, int]
    categories: Mapping[str, int]
    suspects: tuple[Suspects, ...]
    failures: Mapping[str, int]
    agents: tuple[AgentDiagnosis, ...]
    handoffs: tuple[Handoff, ...]
    coach: CoachFigures
    provable: bool
    imported: bool = False
    labelled: int = 0
    labels_met: int = 0
    agreement: LabellerAgreement | None = None

    def __repr__(self) -> str:
        """What `mappa observe` prints."""
        from mappa.look.cli.diagnosis_tables import show_diagnosis
        from mappa.look.printed import as_printed

        return as_printed(lambda console: show_diagnosis(console, self))

    def _repr_html_(self) -> str:
        from mappa.look.html import diagnosis_html

        return diagnosis_html(self)


async def observe_recipe(
    composed: ComposedConfig,
    registry: Registry,
    *,
    examples: int = 3,
    on_providers: Callable[[Sequence[Provider]], None] | None = None,
    on_sandboxes: Callable[[Mapping[str, Sandbox]], None] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_trajectory: Callable[[Trajectory], None] | None = None,
) -> Diagnosis:
    """Roll out the tasks of `eval.split` with the coach on, into a new run folder, and diagnose the agents.

    Args:
        examples: how many of each agent's lowest-scored actions to return, one for each reasoning.
        on_providers: called before the first rollout with all providers that data will be sent to, as is
            `on_sandboxes` with the sandboxes of the tools and `on_start` with the number of rollouts.
        on_trajectory: called with every finished rollout.

    Raises:
        ConfigError: `eval.coach` is false, so that there would be no verdicts.
        GuardStop: tools lost every trajectory.
    """
    if not composed.config.eval.coach:
        raise ConfigError("observe watches through the coach: set eval.coach=true")
    trajectories: list[Trajectory] = []

    def collect(trajectory: Trajectory) -> None:
        trajectories.append(trajectory)
        if on_trajectory is not None:
            on_trajectory(trajectory)

    result = await evaluate_standalone(
        composed,
        registry,
        purpose="observe",
        on_providers=on_providers,
        on_sandboxes=on_sandboxes,
        on_start=on_start,
        on_trajectory=collect,
    )
    return diagnose(trajectories, result.roles, result.evaluation, result.folder, examples=examples)


def observe_run(
    folder: Path,
    *,
    split: Split | None = None,
    iteration: int | None = None,
    examples: int = 3,
    newest: int | None = None,
) -> Diagnosis:
    """Diagnose rollouts that the run in `folder` has recorded, by their recorded verdicts and its recorded team.
    Nothing is rolled out or written, and no plugin is needed.

    Args:
        split: None: the training rollouts, or those of the evaluation if there are none.
        iteration: rollouts made after this many iterations; None: the last ones.
        newest: only this many training rollouts, those that were recorded last.

    Raises:
        RunError: the folder is not a run, or holds no such rollouts that ended.
    """
    with RunReader(folder) as reader:
        team, is_imported = reader.team, reader.settings.get("workflow.use") == IMPORT_RECIPE
        if split is None:
            split = "train" if reader.counts("train") else "eval"
        chosen = _choose_evaluation(reader, iteration) if split == "eval" else None
        rows = (
            _finished_rows(reader, folder, split, iteration if chosen is None else chosen.iteration)
            if newest is None
            else _newest_rows(reader, folder, newest)
        )
        if chosen is not None and chosen.part != "all":
            played = {one.id for one in reader.outcomes(chosen.iteration, chosen.part)}
            rows = [row for row in rows if row.id in played]
        stored = [reader.trajectory(row.id) for row in rows]
        labels = [label for row in rows for label in reader.labels(row.id)]
    trajectories = _with_counted_verdicts(stored)
    evaluation = build_evaluation(
        trajectories,
        metric=team.metric,
        figures=team.figures,
        iteration=rows[0].iteration,
        require_metric=False,
    )
    evaluation = replace(evaluation, part="all" if chosen is None else chosen.part)
    diagnosis = diagnose(trajectories, team.agents, evaluation, folder, split=split, examples=examples)
    return replace(_with_labels(diagnosis, trajectories, labels), imported=is_imported)


def _with_labels(diagnosis: Diagnosis, trajectories: Sequence[Trajectory], labels: Sequence[Label]) -> Diagnosis:
    """The diagnosis with what people say beside it."""
    guilty: dict[str, set[str]] = {}
    for label in labels:
        if label.agent is not None:
            guilty.setdefault(label.trajectory, set()).add(label.agent)
    blamed = {one.id: {verdict.blame for verdict in one.verdicts} for one in trajectories}
    agents = tuple(
        replace(
            one,
            labelled_guilty=sum(one.agent in names for names in guilty.values()),
            examples=tuple(replace(each, labels=_labels_of(each.step, labels)) for each in one.examples),
        )
        for one in diagnosis.agents
    )
    met = sum(bool(names & blamed[trajectory]) for trajectory, names in guilty.items())
    agreement = measure_agreement(
        [
            LabelledPlay(
                labels=[label for label in labels if label.trajectory == one.id],
                positions={step.id: place for place, step in enumerate(one.steps)},
                cluster=one.task.cluster or one.task.id,
            )
            for one in trajectories
            if one.id in guilty
        ]
    )
    return replace(diagnosis, agents=agents, labelled=len(guilty), labels_met=met, agreement=agreement)


def _labels_of(step: str, labels: Sequence[Label]) -> tuple[Label, ...]:
    """Labels of a step, and those that name the guilty agent of its trajectory."""
    own = [one for one in labels if one.step == step]
    guilt = [one for one in labels if one.kind == "guilt" and one.step != step]
    return (*own, *(one for one in guilt if step.rpartition("/")[0] == one.trajectory))


def _choose_evaluation(reader: RunReader, iteration: int | None) -> EvaluationRow | None:
    """The last evaluation, after `iteration` iterations if given, whose tasks did not choose the best checkpoint; one
    whose tasks did if there is no other."""
    made = [one for one in reader.evaluations if iteration in (None, one.iteration)]
    reported = [one for one in made if one.part != "selection"]
    return next(reversed(reported or made), None)


def _finished_rows(reader: RunReader, folder: Path, split: Split, iteration: int | None) -> list[TrajectoryRow]:
    """The ended rollouts of one split and iteration, in canonical order."""
    rows = [row for row in reader.trajectories.where(split=split, iteration=iteration) if row.status != "open"]
    if not rows:
        after = "" if iteration is None else f" after {iteration} iterations"
        raise RunError(f"{folder} holds no {split} rollouts{after} that ended")
    last = max(row.iteration for row in rows)
    return sorted((row for row in rows if row.iteration == last), key=lambda row: row.id)


def _newest_rows(reader: RunReader, folder: Path, limit: int) -> list[TrajectoryRow]:
    """The training rollouts that were recorded last and ended, in canonical order; the others are not read."""
    # The unary plus stops SQLite from using an index by which it would first sort all trajectories.
    query = "SELECT id FROM trajectories WHERE +split = 'train' AND finished ORDER BY number DESC LIMIT ?"
    rows = [reader.row(identity) for (identity,) in reader.query(query, limit)]
    if not rows:
        raise RunError(f"{folder} holds no train rollouts that ended")
    return sorted(rows, key=lambda row: row.id)


def _with_counted_verdicts(stored: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories with the verdicts that count over all of them."""
    counted = set(map(id, select_counted([verdict for one in stored for verdict in one.verdicts])))
    return [replace(one, verdicts=tuple(each for each in one.verdicts if id(each) in counted)) for one in stored]


def diagnose(
    trajectories: Sequence[Trajectory],
    roles: Mapping[str, Role],
    evaluation: Evaluation,
    folder: Path,
    *,
    split: Split = "eval",
    examples: int,
) -> Diagnosis:
    """Diagnose the agents of `trajectories` by their verdicts."""
    unsuccessful = [one for one in trajectories if _is_unsuccessful(one, evaluation.metric)]
    known = bool(unsuccessful) or any(evaluation.metric in one.outcome for one in trajectories)
    looked_at = unsuccessful if known else trajectories
    blaming = [[verdict for verdict in one.verdicts if verdict.blame not in (None, NOBODY)] for one in looked_at]
    blamed = [frozenset(str(verdict.blame) for verdict in verdicts) for verdicts in blaming]
    blame = Counter(name for names in blamed for name in names)
    return Diagnosis(
        folder=folder,
        split=split,
        evaluation=evaluation,
        rollouts=len(trajectories),
        unsuccessful=len(unsuccessful),
        looked_at=len(looked_at),
        has_outcome=known,
        cannot_tell=sum(not names for names in blamed),
        blamed_others={name: blame[name] for name in (USER, ENVIRONMENT, TASK) if blame[name]},
        categories=Counter(verdict.category for one in blaming for verdict in one if verdict.category is not None),
        suspects=tuple(_find_suspects(looked_at))[:examples],
        failures=Counter(f"{one.error.kind}: {one.error.message}" for one in trajectories if one.error is not None),
        agents=tuple(_diagnose_agent(agent, trajectories, blame[agent], examples) for agent in roles),
        handoffs=summarize_handoffs(trajectories, roles, evaluation.metric),
        coach=count_verdicts(trajectories),
        provable=any(_is_provable(one, evaluation.metric) for one in trajectories),
    )


def _find_suspects(trajectories: Sequence[Trajectory]) -> Iterator[Suspects]:
    """Where to look first, in each rollout of which a coach says so."""
    for trajectory in trajectories:
        if suspects := rank_suspects(trajectory)[:MAX_SUSPECTS]:
            yield Suspects(trajectory=trajectory.id, verdicts=tuple(suspects))


def _is_provable(trajectory: Trajectory, metric: str) -> bool:
    if trajectory.error is not None or metric not in trajectory.outcome or trajectory.outcome[metric] > SUCCESS:
        return False
    agents = {step.agent for step in trajectory.steps}
    return any(verdict.blame in agents and verdict.phase != "again" for verdict in trajectory.verdicts)


def _is_unsuccessful(trajectory: Trajectory, metric: str) -> bool:
    """Whether the rollout did not succeed; one without a known outcome does not count as a failure."""
    return trajectory.error is not None or (metric in trajectory.outcome and trajectory.outcome[metric] < 1.0)


def _diagnose_agent(agent: str, trajectories: Sequence[Trajectory], blamed: int, examples: int) -> AgentDiagnosis:
    steps = {
        step.id: (step, one.task.cluster or one.task.id)
        for one in trajectories
        for step in one.steps
        if step.agent == agent
    }
    scored = [
        verdict for one in trajectories for verdict in one.verdicts if verdict.step in steps and _is_scored(verdict)
    ]
    own = [step for step, _ in steps.values()]
    results = [result for step in own for result in step.results]
    return AgentDiagnosis(
        agent=agent,
        actions=len(own),
        scored=len(scored),
        score=_mean_score(scored, [steps[verdict.step][1] for verdict in scored]),
        low=sum(_points(verdict) < LOW_SCORE for verdict in scored),
        blamed=blamed,
        tool_calls=len(results),
        tool_failures=sum(result.status != "ok" for result in results),
        examples=_examples([one for one in scored if _points(one) < LOW_SCORE or one.blame == agent])[:examples],
    )


def _is_scored(verdict: Verdict) -> bool:
    return verdict.score is not None


def _points(verdict: Verdict) -> float:
    assert verdict.score is not None  # callers pass scored verdicts only
    return verdict.score


def _mean_score(verdicts: Sequence[Verdict], tasks: Sequence[str]) -> Interval | None:
    if not verdicts:
        return None
    return mean_interval(np.array([_points(verdict) for verdict in verdicts]), clusters=list(tasks))


def _examples(scored: Sequence[Verdict]) -> tuple[LowScoredAction, ...]:
    """The lowest action of every reasoning; the most frequent reasonings first, of equals the lower one."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in sorted(scored, key=lambda verdict: (_points(verdict), verdict.step)):
        groups.setdefault(verdict.reasoning, []).append(verdict)
    return tuple(
        LowScoredAction(
            step=group[0].step, score=_points(group[0]), blame=group[0].blame, reasoning=reasoning, count=len(group)
        )
        for reasoning, group in sorted(groups.items(), key=lambda item: -len(item[1]))
    )
