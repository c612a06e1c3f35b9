"""Plays faults through the workflow, the tool, the bench and the coach, and tells whom they were put down to: by the
coach's verdicts, and by the chain of broken contracts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from mappa.testing import play
from mappa_core import NOBODY, Bench, NoOptions, Task, Trajectory
from mappa_dsbench.coach.rule_coach import RuleCoach
from mappa_dsbench.options import TeamOptions
from mappa_dsbench.roles import ANALYST, MODELER, ROLES
from mappa_dsbench.workflow import DSBench
from mappa_sandbox.tool import PythonTool

from .faults import KINDS, Play, drawn

ENOUGH = 6.0
"""Points that an agent keeps whose predecessor is at fault."""
AT_ONCE = 2


class OneCoach(RuleCoach):
    """One coach for all plays, which share their archive: what it made for a task stays at hand."""

    def __init__(self) -> None:
        super().__init__(NoOptions())
        self._equipped = False

    def set_bench(self, bench: Bench) -> None:
        if not self._equipped:
            super().set_bench(bench)
        self._equipped = True


@dataclass(frozen=True)
class Judged:
    """A play and whom it was put down to: by the lowest score, by the first broken contract; and everyone's scores."""

    play: Play
    by_coach: str | None
    by_chain: str | None
    scores: dict[str, float]
    reasons: dict[str, str]

    @property
    def downstream(self) -> list[float]:
        """Scores of those who came after the guilty one."""
        if self.play.guilty is None:
            return list(self.scores.values())
        return [self.scores[agent] for agent in list(ROLES)[list(ROLES).index(self.play.guilty) + 1 :]]


def judged(one: Play, trajectory: Trajectory) -> Judged:
    assert trajectory.error is None, trajectory.error
    assert [verdict.status for verdict in trajectory.verdicts] == ["scored"] * len(ROLES), trajectory.verdicts
    by_step = {verdict.step: verdict for verdict in trajectory.verdicts}
    verdicts = {step.agent: by_step[step.id] for step in trajectory.steps}
    lowest = min(verdicts.values(), key=lambda verdict: verdict.score)
    broken = [step.agent for step in trajectory.steps if step.breaches or step.inspection.facts["faults"]]
    return Judged(
        play=one,
        by_coach=None if lowest.blame == NOBODY else lowest.blame,
        by_chain=broken[0] if broken else None,
        scores={agent: verdict.score for agent, verdict in verdicts.items()},
        reasons={agent: verdict.reasoning for agent, verdict in verdicts.items()},
    )


async def played(plays: Sequence[Play], tool: PythonTool, archive: Path) -> list[Judged]:
    """Every play, judged, in their order."""
    workflow, coach, slots = DSBench(TeamOptions(turns=1, prompts="tiny")), OneCoach(), asyncio.Semaphore(AT_ONCE)

    async def one(each: Play) -> Judged:
        async with slots:
            trajectory = await play(
                workflow,
                each.task,
                each.replies,
                tools={"python": tool},
                coach=coach,
                reference_for=(MODELER, ANALYST),
                archive=archive,
            )
        return judged(each, trajectory)

    try:
        return await asyncio.gather(*map(one, plays))
    finally:
        await coach.close()
        await workflow.close()


def variants(tasks: Sequence[Task], count: int, seed: int) -> list[Play]:
    """`count` plays of every kind of fault, and as many without one."""
    draw = Random(seed)
    return [drawn(kind, tasks, draw) for kind in (None, *KINDS) for _ in range(count)]


def right(one: Judged) -> bool:
    return one.by_coach == one.by_chain == one.play.guilty and min(one.downstream, default=ENOUGH) >= ENOUGH


def told(found: Sequence[Judged]) -> str:
    """The figures of each kind, and all that went wrong."""
    lines = [f"{'kind':<18} n  coach chain downstream >= {ENOUGH:g}, lowest"]
    for kind in dict.fromkeys(one.play.kind for one in found):
        of = [one for one in found if one.play.kind == kind]
        coach, chain = (sum(who == one.play.guilty for one, who in pairs) for pairs in named(of))
        kept = [score for one in of for score in one.downstream]
        enough = f"{sum(score >= ENOUGH for score in kept)}/{len(kept)}"
        lines.append(f"{kind:<18} {len(of):<2} {coach:>5} {chain:>5} {enough:>7} {min(kept, default=10.0):>5.1f}")
    for one in found:
        if not right(one):
            lines += ["", f"{one.play.kind} {one.play.task.id} {one.play.edit}", f"  {one.by_coach} {one.by_chain}"]
            lines += [f"  {agent} {score:.1f}: {one.reasons[agent]}" for agent, score in one.scores.items()]
    return "\n".join(lines)


def named(found: Sequence[Judged]) -> tuple[list[tuple[Judged, str | None]], list[tuple[Judged, str | None]]]:
    """Whom the coach names in each play, and whom the chain does."""
    return [(one, one.by_coach) for one in found], [(one, one.by_chain) for one in found]
