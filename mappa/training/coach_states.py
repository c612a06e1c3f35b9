"""States of coaches between iterations: what they learn from, and what a checkpoint restores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mappa.rollout.team import Team
from mappa_core.errors import PluginError
from mappa_core.protocols import Coach, DriftReport
from mappa_core.records import Trajectory, Verdict


def learn_from_verdicts(coaches: Sequence[Coach], team: Team, trajectories: Sequence[Trajectory]) -> DriftReport:
    """Let every coach learn from the trajectories of one iteration, each with its own verdicts alone."""
    reports = []
    for coach in coaches:
        own_trajectories = [_with_own_verdicts(coach, team, trajectory) for trajectory in trajectories]
        report = coach.learn(own_trajectories)
        if not isinstance(report, DriftReport | None):
            name, returned = type(coach).__name__, type(report).__name__
            raise PluginError(f"{name}.learn returned {returned}, not a DriftReport or None")
        reports.append(report)
    return DriftReport.merge(reports)


def _with_own_verdicts(coach: Coach, team: Team, trajectory: Trajectory) -> Trajectory:
    """The trajectory with the verdicts of `coach` alone."""
    agent_of = {step.id: step.agent for step in trajectory.steps}

    def is_own(verdict: Verdict) -> bool:
        # By identity and not by name: two coaches may have one offer, with other options.
        judge = team.hindsight if verdict.phase == "after" else team.coach_of.get(agent_of[verdict.step])
        return judge is not None and judge.coach is coach

    return replace(trajectory, verdicts=tuple(verdict for verdict in trajectory.verdicts if is_own(verdict)))


def load_coach_states(coaches: Sequence[Coach], stored: Mapping[str, Any]) -> None:
    """Restore the states of `coaches` from the manifest of a checkpoint."""
    for coach, state in zip(coaches, stored["coaches"], strict=True):
        coach.load_state_dict(state)
