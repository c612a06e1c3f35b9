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
        value = self.value(figures)
        if value is None:
            return "-"
        if self.spec.endswith("%"):
            # Not Python's own `%`, which sets no space before the sign.
            precision = self.spec.removesuffix("%")
            return f"{100 * value:{precision}f} %"
        return format(value, self.spec)


AGENT_COLUMNS = tuple(
    AgentColumn(
        name=figure.name,
        title=figure.metadata["title"],
        spec=figure.metadata["spec"],
        value=attrgetter(figure.name),
    )
    for figure in fields(AgentSummary)
)
"""Columns of every table of agents, in order."""


def summarize_agents(agents: Sequence[str], trajectories: Sequence[Trajectory]) -> Mapping[str, AgentSummary]:
    """Measure every agent over its steps and live verdicts in `trajectories`."""
    actions_of = {agent: AgentActions() for agent in agents}
    for trajectory in trajectories:
        agent_of = {step.id: step.agent for step in trajectory.steps}
        for agent in set(agent_of.values()):
            actions_of[agent].rollouts += 1
        for step in trajectory.steps:
            actions_of[step.agent].steps.append(step)
        for verdict in trajectory.verdicts:
            if verdict.phase == "live" and verdict.score is not None:
                actions_of[agent_of[verdict.step]].points.append(verdict.score)
    return {agent: _summarize(actions) for agent, actions in actions_of.items()}


def _summarize(actions: AgentActions) -> AgentSummary:
    return AgentSummary(**{figure.name: figure.metadata["measure"](actions) for figure in fields(AgentSummary)})
