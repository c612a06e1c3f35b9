"""Ask one coach about many recorded actions at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from mappa_core.calls.spend import Ledger
from mappa_core.errors import MappaError
from mappa_core.records import Scene, Verdict
from mappa_core.rollout.judging import asked, verdicts_on
from mappa_core.rollout.team import Judge


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asking:
    """How to ask: verdicts (or reviews of a trajectory) asked for at once, seconds that one may take, and what they may
    cost."""

    concurrency: int
    timeout_s: float
    ledger: Ledger = field(default_factory=lambda: Ledger(None))


async def ask(
    judge: Judge,
    trajectories: Sequence[Sequence[Scene]],
    asking: Asking,
    *,
    review: bool,
    keep: Callable[[Verdict], Verdict],
) -> list[list[Verdict]]:
    """A verdict on every action of `trajectories`, in their order.

    Args:
        review: ask about the actions of a trajectory together, apart from those where the truth is shown.
        keep: is given each verdict as it comes and returns the one to hand back.

    Whatever goes wrong with a coach is a `failed` verdict.

    Raises:
        MappaError: what `keep` raises of that kind; nobody is asked any more.
    """
    gate = asyncio.Semaphore(asking.concurrency)
    found: dict[tuple[int, int], Verdict] = {}

    async def judged(trajectory: int, places: Sequence[int]) -> None:
        shown = [trajectories[trajectory][place] for place in places]
        async with gate:
            verdicts, seconds = await asked(
                lambda: verdicts_on(shown, judge.coach, review=review), len(shown), asking.ledger, asking.timeout_s
            )
        for place, scene, verdict in zip(places, shown, verdicts, strict=True):
            found[trajectory, place] = keep(replace(verdict, step=scene.step.id, coach=judge.name, seconds=seconds))

    try:
        async with asyncio.TaskGroup() as tasks:
            for number, trajectory in enumerate(trajectories):
                for places in _together(trajectory) if review else [[place] for place in range(len(trajectory))]:
                    tasks.create_task(judged(number, places))
    except* MappaError as errors:
        raise errors.exceptions[0] from None
    return [[found[number, place] for place in range(len(one))] for number, one in enumerate(trajectories)]


def _together(trajectory: Sequence[Scene]) -> list[list[int]]:
    """Actions whose coach may see the truth apart from those where it may not: one call shows one evidence."""
    groups: dict[bool, list[int]] = {}
    for place, scene in enumerate(trajectory):
        groups.setdefault(scene.task.reference is None, []).append(place)
    return list(groups.values())
