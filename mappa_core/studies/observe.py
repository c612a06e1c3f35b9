"""Watch a team without training it: who fails, how often, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mappa_core.config.compose import Composed
from mappa_core.errors import ConfigError
from mappa_core.evaluation.heldout import Evaluation
from mappa_core.evaluation.once import evaluate_once
from mappa_core.evaluation.statistics import mean_interval
from mappa_core.plugins import Registry
from mappa_core.protocols import Provider
from mappa_core.records import Sandbox, Trajectory, Verdict
from mappa_core.store.summary import Interval
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

    `score` is the mean of its scored actions (points, 0-10), with its interval by task; `low` of its `scored` actions
    have fewer than LOW points. It is to blame for `blamed` of the rollouts that did not succeed, as any verdict there
    says. `tool_failures` of its `tool_calls` calls failed; `breaches` counts files that it was to leave and did not,
    or that it was not given. `examples` are its lowest actions.
    """

    agent: str
    actions: int
    scored: int
    score: Interval | None
    low: int
    blamed: int
    tool_calls: int
    tool_failures: int
    missing_outputs: int
    missing_inputs: int
    examples: tuple[Example, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What watching showed. `unsuccessful` rollouts are those whose metric is below its full 1, or that ended early:
    `failures` counts why."""

    folder: Path
    evaluation: Evaluation
    rollouts: int
    unsuccessful: int
    blamed_nobody: int
    failures: Mapping[str, int]
    agents: tuple[AgentDiagnosis, ...]
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
    return diagnose(played, seen.agents, seen.evaluation, seen.folder, examples)


def diagnose(
    trajectories: Sequence[Trajectory], agents: Sequence[str], evaluation: Evaluation, folder: Path, examples: int
) -> Diagnosis:
    """Sum up `trajectories` that were coached."""
    unsuccessful = [one for one in trajectories if not _succeeded(one, evaluation.metric)]
    blamed = [frozenset(verdict.blame for verdict in one.verdicts if verdict.blame) for one in unsuccessful]
    blame = Counter(agent for names in blamed for agent in names)
    return Diagnosis(
        folder=folder,
        evaluation=evaluation,
        rollouts=len(trajectories),
        unsuccessful=len(unsuccessful),
        blamed_nobody=sum(not names & frozenset(agents) for names in blamed),
        failures=Counter(f"{one.error.kind}: {one.error.message}" for one in trajectories if one.error is not None),
        agents=tuple(_agent(agent, trajectories, blame[agent], examples) for agent in agents),
        coach=coach_figures(trajectories),
    )


def _succeeded(trajectory: Trajectory, metric: str) -> bool:
    return trajectory.error is None and trajectory.outcome[metric] >= 1.0


def _agent(agent: str, trajectories: Sequence[Trajectory], blamed: int, examples: int) -> AgentDiagnosis:
    steps = {step.id: (step, one.task.id) for one in trajectories for step in one.steps if step.agent == agent}
    scored = [verdict for one in trajectories for verdict in one.verdicts if verdict.step in steps and _has(verdict)]
    own = [step for step, _ in steps.values()]
    results = [result for step in own for result in step.results]
    breaches = Counter(breach.kind for step in own for breach in step.breaches)
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
        missing_outputs=breaches["missing_output"],
        missing_inputs=breaches["missing_input"],
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
