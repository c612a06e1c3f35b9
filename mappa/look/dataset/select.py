"""Selects recorded actions by filters, each with the one verdict that counts for it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from mappa.rollout.tool_failures import is_tool_failure
from mappa.runs import RunReader
from mappa_core import Split, Step, Trajectory, Verdict
from mappa_core.credit.overflow import settle_overflow
from mappa_core.engine import Finish
from mappa_core.records import Phase

REGULAR_ENDS: frozenset[Finish] = frozenset({"stop", "tool"})
"""How an action ends that its agent ended itself: by its last word, or by calls of tools."""
LeftOutCounts = Counter[tuple[str, str]]
"""Number of actions that were left out, by agent and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Filters of actions; an empty tuple and None do not filter.

    `strata` are pairs of a stratifier (`task`, or one that the workflow offers) and its value, all of which must match.
    Scores are points, bounds included. `blame`: the verdict blames one of these. `min_outcome`: the
    rollout ended with at least this much of the workflow's metric, counted as the run counts it.
    `iterations` are the first and the last, both included, counted from 0.
    """

    split: Split = "train"
    phase: Phase = "live"
    agents: tuple[str, ...] = ()
    strata: tuple[tuple[str, str], ...] = ()
    min_score: float | None = None
    max_score: float | None = None
    blame: tuple[str, ...] = ()
    min_outcome: float | None = None
    iterations: tuple[int, int] | None = None

    def rejection_reason(self, step: Step, verdict: Verdict | None) -> str | None:
        """Why an action is left out; None if it passes the filters."""
        if verdict is None:
            return f"no verdict of phase {self.phase}"
        if verdict.score is None:
            return f"the verdict {verdict.status}"
        if step.completion.finish not in REGULAR_ENDS:
            return "cut off"
        if not step.messages:
            return "no prompt"
        if any(call.error is not None for call in step.reply.tool_calls):
            return "a call that cannot be read"
        if any(step.strata.get(name) != value for name, value in self.strata):
            return "another stratum"
        if self.min_score is not None and verdict.score < self.min_score:
            return f"score below {self.min_score:g}"
        if self.max_score is not None and verdict.score > self.max_score:
            return f"score above {self.max_score:g}"
        return "blames another" if self.blame and verdict.blame not in self.blame else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgedAction:
    """An action, its verdict, and the verdict's score (points)."""

    step: Step
    verdict: Verdict
    score: float


def select_actions(reader: RunReader, filters: Filters, left_out: LeftOutCounts) -> Iterator[list[JudgedAction]]:
    """Yield the actions that pass the filters, grouped by task and iteration, so that siblings stay together.

    One group is in memory at a time. If an action has several verdicts of the phase, the one added last counts, as in
    the reward; a text that outgrew the window has 0 points where the run's training counted it so. Actions of other
    agents and iterations are not counted in `left_out`.
    """
    first, last = filters.iterations or (0, None)
    rows = [one for one in reader.trajectories.where(split=filters.split) if one.iteration >= first]
    rows = sorted(rows, key=lambda one: (one.iteration, one.task, one.sample, one.id))
    for (iteration, _), group in groupby(rows, key=lambda one: (one.iteration, one.task)):
        if last is None or iteration <= last:
            yield [one for row in group for one in _select_from_trajectory(reader, row.id, filters, left_out)]


def _read_settled(reader: RunReader, identity: str, split: Split) -> Trajectory:
    """A rollout as the run counted it: a training settles those that outgrew the window, unless told otherwise."""
    trajectory = reader.trajectory(identity)
    is_settled = split == "train" and reader.counts_overflows
    return settle_overflow(trajectory, reader.team.metric) if is_settled else trajectory


def _outcome(reader: RunReader, trajectory: Trajectory, split: Split) -> float | None:
    """The workflow's metric of a settled rollout; None if it is unknown. Of rollouts without one an evaluation counts
    as 0 all that no tool lost."""
    outcome = trajectory.outcome.get(reader.team.metric)
    if outcome is None and trajectory.error is not None:
        return 0.0 if split == "eval" and not is_tool_failure(trajectory.error) else None
    return outcome if outcome is not None and math.isfinite(outcome) else None


def _select_from_trajectory(
    reader: RunReader, identity: str, filters: Filters, left_out: LeftOutCounts
) -> Iterator[JudgedAction]:
    trajectory = _read_settled(reader, identity, filters.split)
    verdicts = {one.step: one for one in trajectory.verdicts if one.phase == filters.phase}
    least, bad_outcome = filters.min_outcome, None
    if least is not None:
        outcome = _outcome(reader, trajectory, filters.split)
        if outcome is None:
            bad_outcome = "no outcome"
        elif outcome < least:
            bad_outcome = f"outcome below {least:g}"
    for step in trajectory.steps:
        if filters.agents and step.agent not in filters.agents:
            continue
        verdict = verdicts.get(step.id)
        why = filters.rejection_reason(step, verdict) or bad_outcome
        if why is not None:
            left_out[step.agent, why] += 1
        elif verdict is not None and verdict.score is not None:
            yield JudgedAction(step=step, verdict=verdict, score=verdict.score)
