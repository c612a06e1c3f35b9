"""Watch a team without training it: who fails, how often, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mappa_core.config.compose import Composed, restore
from mappa_core.errors import ConfigError, RunError
from mappa_core.evaluation.heldout import Evaluation, graded
from mappa_core.evaluation.labelled import rows_of
from mappa_core.evaluation.once import evaluate_once
from mappa_core.evaluation.statistics import mean_interval
from mappa_core.plugins import Registry
from mappa_core.protocols import Provider, Split, Workflow
from mappa_core.records import Role, Sandbox, Trajectory, Verdict
from mappa_core.store.folder import CONFIG
from mappa_core.store.reader import Reader, TrajectoryRow
from mappa_core.store.summary import Interval
from mappa_core.studies.handoffs import Handoff, handoffs
from mappa_core.training.report import CoachFigures, coach_figures

LOW = 4.0
"""Points below which an action counts as a failure of its agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One action that the coach scored low, with what it said. `step` begins with the trajectory's id."""

    step: str
    score: float
    blame: str | None
    reasoning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDiagnosis:
    """One agent over all rollouts.

    `score` is the mean of its scored actions (points, 0-10), with its interval by task, or by cluster of tasks; `low`
    of its `scored` actions have fewer than LOW points. It is to blame for `blamed` of the rollouts that did not
    succeed, as any verdict there says. `tool_failures` of its `tool_calls` calls failed. `examples` are its lowest
    actions.
    """

    agent: str
    actions: int
    scored: int
    score: Interval | None
    low: int
    blamed: int
    tool_calls: int
    tool_failures: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What watching showed. `unsuccessful` rollouts are those whose metric is below its full 1, or that ended early:
    `failures` counts why. `handoffs` are the files of the team's contract."""

    folder: Path
    split: Split
    evaluation: Evaluation
    rollouts: int
    unsuccessful: int
    blamed_nobody: int
    failures: Mapping[str, int]
    agents: tuple[AgentDiagnosis, ...]
    handoffs: tuple[Handoff, ...]
    coach: CoachFigures


async def observe(
    composed: Composed,
    registry: Registry,
    *,
    examples: int = 3,
    asking: Callable[[Sequence[Provider]], None] | None = None,
    sandboxed: Callable[[Mapping[str, Sandbox]], None] | None = None,
    starting: Callable[[int], None] | None = None,
    finished: Callable[[Trajectory], None] | None = None,
) -> Diagnosis:
    """Play the tasks of `eval.split` with the coach on, into a run folder of its own, and sum up what it said.

    Args:
        examples: how many of each agent's lowest actions to show.
        asking: called with everyone to whom data will be sent, `sandboxed` with where the tools run programs, and
            `starting` with the number of rollouts, all before the first; `finished` with every finished one.

    Raises:
        ConfigError: `eval.coach` is false, so that there would be nothing to say.
        GuardStop: tools lost every trajectory.
    """
    if not composed.config.eval.coach:
        raise ConfigError("observe watches through the coach: set eval.coach=true")
    played: list[Trajectory] = []

    def note(trajectory: Trajectory) -> None:
        played.append(trajectory)
        if finished is not None:
            finished(trajectory)

    seen = await evaluate_once(
        composed,
        registry,
        purpose="observe",
        asking=asking,
        sandboxed=sandboxed,
        starting=starting,
        finished=note,
    )
    return diagnose(played, seen.roles, seen.evaluation, seen.folder, examples=examples)


async def observe_run(
    registry: Registry,
    folder: Path,
    *,
    split: Split | None = None,
    iteration: int | None = None,
    examples: int = 3,
) -> Diagnosis:
    """Sum up rollouts that the run in `folder` has recorded, with the verdicts that it was given; nothing is played,
    and nothing written.

    Args:
        split: None: those it was trained on, or where there are none those of its evaluation.
        iteration: those made after so many iterations; None: the last ones.

    Raises:
        RunError: the folder is no run, or holds no such rollouts that ended.
        PluginError, ConfigError: its workflow is not installed.
    """
    config = restore(registry, folder / CONFIG).config
    workflow: Workflow = registry.build("workflows", config.workflow.use, config.workflow.options)
    try:
        with Reader(folder) as reader:
            if split is None:
                split = "train" if reader.counts("train") else "eval"
            rows = _ended(reader, folder, split, iteration)
            stored = [reader.trajectory(row.id) for row in rows]
    finally:
        await workflow.close()
    played = _judged(stored)
    evaluation = graded(
        played, metric=workflow.metric, figures=workflow.figures, iteration=rows[0].iteration, measured=False
    )
    return diagnose(played, workflow.agents, evaluation, folder, split=split, examples=examples)


def _ended(reader: Reader, folder: Path, split: Split, iteration: int | None) -> list[TrajectoryRow]:
    """The rollouts of one split and iteration that have ended, in canonical order."""
    rows = [row for row in rows_of(reader, split, iteration) if row.status != "open"]
    if not rows:
        after = "" if iteration is None else f" after {iteration} iterations"
        raise RunError(f"{folder} holds no {split} rollouts{after} that ended")
    last = max(row.iteration for row in rows)
    return sorted((row for row in rows if row.iteration == last), key=lambda row: row.id)


def _judged(stored: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories with the verdicts of the run's own coach; where it had none, with the last ones that `mappa
    recoach` added."""
    own = {id(one): tuple(verdict for verdict in one.verdicts if verdict.phase != "again") for one in stored}
    if not any(own.values()):
        own = {id(one): tuple({verdict.step: verdict for verdict in one.verdicts}.values()) for one in stored}
    return [replace(one, verdicts=own[id(one)]) for one in stored]


def diagnose(
    trajectories: Sequence[Trajectory],
    roles: Mapping[str, Role],
    evaluation: Evaluation,
    folder: Path,
    *,
    split: Split = "eval",
    examples: int,
) -> Diagnosis:
    """Sum up `trajectories` with their verdicts."""
    unsuccessful = [one for one in trajectories if _fell_short(one, evaluation.metric)]
    blamed = [frozenset(verdict.blame for verdict in one.verdicts if verdict.blame) for one in unsuccessful]
    blame = Counter(agent for names in blamed for agent in names)
    return Diagnosis(
        folder=folder,
        split=split,
        evaluation=evaluation,
        rollouts=len(trajectories),
        unsuccessful=len(unsuccessful),
        blamed_nobody=sum(not names & frozenset(roles) for names in blamed),
        failures=Counter(f"{one.error.kind}: {one.error.message}" for one in trajectories if one.error is not None),
        agents=tuple(_agent(agent, trajectories, blame[agent], examples) for agent in roles),
        handoffs=handoffs(trajectories, roles, evaluation.metric),
        coach=coach_figures(trajectories),
    )


def _fell_short(trajectory: Trajectory, metric: str) -> bool:
    """Whether it did not succeed; one whose outcome nobody knows did not fail."""
    return trajectory.error is not None or (metric in trajectory.outcome and trajectory.outcome[metric] < 1.0)


def _agent(agent: str, trajectories: Sequence[Trajectory], blamed: int, examples: int) -> AgentDiagnosis:
    steps = {
        step.id: (step, one.task.cluster or one.task.id)
        for one in trajectories
        for step in one.steps
        if step.agent == agent
    }
    scored = [verdict for one in trajectories for verdict in one.verdicts if verdict.step in steps and _has(verdict)]
    own = [step for step, _ in steps.values()]
    results = [result for step in own for result in step.results]
    lowest = sorted(scored, key=lambda verdict: (verdict.score, verdict.step))[:examples]
    return AgentDiagnosis(
        agent=agent,
        actions=len(own),
        scored=len(scored),
        score=_score(scored, [steps[verdict.step][1] for verdict in scored]),
        low=sum(_points(verdict) < LOW for verdict in scored),
        blamed=blamed,
        tool_calls=len(results),
        tool_failures=sum(result.status != "ok" for result in results),
        examples=tuple(_example(verdict) for verdict in lowest if _points(verdict) < LOW),
    )


def _has(verdict: Verdict) -> bool:
    return verdict.score is not None


def _points(verdict: Verdict) -> float:
    assert verdict.score is not None  # only scored verdicts are asked
    return verdict.score


def _score(verdicts: Sequence[Verdict], tasks: Sequence[str]) -> Interval | None:
    if not verdicts:
        return None
    return mean_interval(np.array([_points(verdict) for verdict in verdicts]), clusters=list(tasks))


def _example(verdict: Verdict) -> Example:
    return Example(step=verdict.step, score=_points(verdict), blame=verdict.blame, reasoning=verdict.reasoning)
