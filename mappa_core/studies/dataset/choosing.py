"""Which recorded actions are wanted, each with the one verdict that speaks for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from mappa_core.evaluation.labelled import rows_of
from mappa_core.protocols import Split
from mappa_core.records import Phase, Step, Verdict
from mappa_core.store.reader import Reader

LeftOut = Counter[tuple[str, str]]
"""How many actions of an agent were left out, by agent and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What is asked for; an empty tuple and None ask for nothing in particular.

    `strata` are pairs of a stratifier (`task`, or one that the workflow offers) and its value, all of which must hold.
    Scores are points, bounds included. `blame`: one of those whom the verdict blames. Iterations are counted from 0,
    first and last included.
    """

    split: Split = "train"
    phase: Phase = "live"
    agents: tuple[str, ...] = ()
    strata: tuple[tuple[str, str], ...] = ()
    min_score: float | None = None
    max_score: float | None = None
    blame: tuple[str, ...] = ()
    iterations: tuple[int, int] | None = None

    def refused(self, step: Step, verdict: Verdict | None) -> str | None:
        """Why an action is left out; None where it is wanted."""
        if verdict is None:
            return f"no verdict of phase {self.phase}"
        if verdict.score is None:
            return f"the verdict {verdict.status}"
        if step.completion.finish != "stop":
            return "cut off"
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
class Judged:
    """An action, its verdict, and the score that this gives (points)."""

    step: Step
    verdict: Verdict
    score: float


def judged(reader: Reader, filters: Filters, left_out: LeftOut) -> Iterator[list[Judged]]:
    """The wanted actions, those of one task in one iteration together: siblings are never apart.

    One group is in memory at a time. Of several verdicts of the phase on one action the one added last counts, as in
    the reward. Actions of agents and iterations that are not asked for are no part of the data and so not left out.
    """
    first, last = filters.iterations or (0, None)
    rows = [one for one in rows_of(reader, filters.split) if one.iteration >= first]
    rows = sorted(rows, key=lambda one: (one.iteration, one.task, one.sample, one.id))
    for (iteration, _), group in groupby(rows, key=lambda one: (one.iteration, one.task)):
        if last is None or iteration <= last:
            yield [one for row in group for one in _judged(reader, row.id, filters, left_out)]


def _judged(reader: Reader, identity: str, filters: Filters, left_out: LeftOut) -> Iterator[Judged]:
    trajectory = reader.trajectory(identity)
    verdicts = {one.step: one for one in trajectory.verdicts if one.phase == filters.phase}
    for step in trajectory.steps:
        if filters.agents and step.agent not in filters.agents:
            continue
        verdict = verdicts.get(step.id)
        why = filters.refused(step, verdict)
        if why is not None:
            left_out[step.agent, why] += 1
        elif verdict is not None and verdict.score is not None:
            yield Judged(step=step, verdict=verdict, score=verdict.score)
