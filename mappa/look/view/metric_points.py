"""Points of a run's figures over its iterations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from mappa.look.view.chart import Point
from mappa.store.iteration_report import IterationReport

Iterations = Sequence[IterationReport]
"""The reports of a run's iterations, in order."""


def last_iteration(iterations: Iterations) -> int:
    """The last iteration, at least 1: the end of an axis."""
    return max([report.iteration for report in iterations] + [1])


def collect_names(iterations: Iterations, names: Callable[[IterationReport], Iterable[str]]) -> list[str]:
    """All names that any of the reports has, sorted."""
    return sorted({name for report in iterations for name in names(report)})


def metric_points(iterations: Iterations, value: Callable[[IterationReport], float | None]) -> list[Point]:
    """The points of one figure, at the iterations where it is known."""
    values = ((report.iteration, value(report)) for report in iterations)
    return [(iteration, known) for iteration, known in values if known is not None]


def points_by_name(
    iterations: Iterations, names: Iterable[str], value: Callable[[IterationReport, str], float | None]
) -> dict[str, list[Point]]:
    """The points of a figure for each of the names of agents, strata or policies."""

    def points(name: str) -> list[Point]:
        return metric_points(iterations, lambda report: value(report, name))

    return {name: points(name) for name in names}


def agent_figure(report: IterationReport, agent: str, figure: str) -> float | None:
    """A figure of an agent, a field of AgentSummary; None if it is unknown."""
    value: float | None = getattr(report.agents.get(agent), figure, None)
    return value


def measured_agents(iterations: Iterations, figure: str) -> list[str]:
    """The agents of whom a figure is known, sorted."""
    return collect_names(
        iterations, lambda report: (agent for agent in report.agents if agent_figure(report, agent, figure) is not None)
    )
