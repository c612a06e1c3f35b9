"""Figures of an agent in an iteration. One line of `AgentSummary` says how a figure is measured, titled and formatted;
summary.json, metric names, and the tables of the command line, the report and the viewer follow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

import numpy as np

from mappa_core.records import Step, Trajectory


@dataclass(slots=True, kw_only=True, eq=False)
class AgentActions:
    """Actions of an agent in an iteration, the points of its live verdicts, and the rollouts in which it acted."""

    steps: list[Step] = field(default_factory=list)
    points: list[float] = field(default_factory=list)
    rollouts: int = 0

    def score(self) -> float | None:
        return _mean(self.points)

    def tool_success(self) -> float | None:
        return _mean([result.status == "ok" for step in self.steps for result in step.results])

    def turns(self) -> float | None:
        return len(self.steps) / self.rollouts if self.rollouts else None

    def length(self) -> float | None:
        return _mean([len(step.completion.tokens) for step in self.steps if step.completion.tokens is not None])


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _column(title: str, spec: str, measure: Callable[[AgentActions], float | None]) -> Any:
    return field(default=None, metadata={"title": title, "spec": spec, "measure": measure})


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSummary:
    """One agent in one iteration, None if there is nothing to average: mean score of its scored actions (points, 0-10),
    share of its tool calls that succeeded, actions per trajectory in which it acted, sampled tokens per action."""

    score: float | None = _column("score", ".2f", AgentActions.score)
    tool_success: float | None = _column("tool success", ".1%", AgentActions.tool_success)
    turns: float | None = _column("turns", ".2f", AgentActions.turns)
    length: float | None = _column("tokens/action", ".1f", AgentActions.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentColumn:
    """A column of a table of agents; `spec` is a format specification, of which `%` shows a share in per cent."""

    name: str
    title: str
    spec: str
    value: Callable[[AgentSummary], float | None]

    def cell(self, figures: AgentSummary) -> str:
        """The value as text, `-` if it is unknown."""
        if (value := self.value(figures)) is None:
            return "-"
        return f"{100 * value:{self.spec[:-1]}f} %" if self.spec.endswith("%") else format(value, self.spec)


AGENT_COLUMNS = tuple(
    AgentColumn(name=one.name, title=one.metadata["title"], spec=one.metadata["spec"], value=attrgetter(one.name))
    for one in fields(AgentSummary)
)
"""Columns of every table of agents, in order."""


def summarize_agents(agents: Sequence[str], trajectories: Sequence[Trajectory]) -> Mapping[str, AgentSummary]:
    """Measure every agent over its steps and live verdicts in `trajectories`."""
    acted = {agent: AgentActions() for agent in agents}
    for trajectory in trajectories:
        agent_of = {step.id: step.agent for step in trajectory.steps}
        for agent in set(agent_of.values()):
            acted[agent].rollouts += 1
        for step in trajectory.steps:
            acted[step.agent].steps.append(step)
        for verdict in trajectory.verdicts:
            if verdict.phase == "live" and verdict.score is not None:
                acted[agent_of[verdict.step]].points.append(verdict.score)
    return {
        agent: AgentSummary(**{one.name: one.metadata["measure"](actions) for one in fields(AgentSummary)})
        for agent, actions in acted.items()
    }
