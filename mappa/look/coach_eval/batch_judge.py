"""Concurrent judging of recorded actions by one coach."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mappa.rollout.named_coach import NamedCoach
from mappa_core import MappaError, Scene, Verdict
from mappa_core.calls.spend_ledger import Ledger

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JudgingLimits:
    """Limits of judging: concurrent verdicts (or reviews of a trajectory), the timeout of each in seconds, and the
    spend cap."""

    concurrency: int
    timeout_s: float
    ledger: Ledger = field(default_factory=lambda: Ledger(None))


async def judge_actions(
    judge: NamedCoach,
    trajectories: Sequence[Sequence[Scene]],
    limits: JudgingLimits,
    *,
    review: bool,
    finalize: Callable[[Verdict], Verdict],
) -> list[list[Verdict]]:
    """Judge every action of `trajectories`; return the verdicts in their order.

    Args:
        review: judge the actions of a trajectory together.
        finalize: called with each verdict as it arrives; returns the verdict to use in its place.

    Any error of a coach is a `failed` verdict.

    Raises:
        MappaError: raised by `finalize`; it cancels the remaining calls.
    """
    # Calls that wait for a batch are nobody's load, and a batch should hold all of them.
    semaphore = asyncio.Semaphore(sum(map(len, trajectories)) if _is_batched(judge) else limits.concurrency)
    verdicts_by_place: dict[tuple[int, int], Verdict] = {}

    async def judge_together(trajectory: int, places: Sequence[int]) -> None:
        shown = [trajectories[trajectory][place] for place in places]
        async with semaphore:
            verdicts = await judge.judge(shown, review=review, ledger=limits.ledger, timeout_s=limits.timeout_s)
        for place, verdict in zip(places, verdicts, strict=True):
            verdicts_by_place[trajectory, place] = finalize(verdict)

    try:
        async with asyncio.TaskGroup() as tasks:
            for number, trajectory in enumerate(trajectories):
                places = range(len(trajectory))
                for together in [places] if review and trajectory else [[place] for place in places]:
                    tasks.create_task(judge_together(number, together))
    except* MappaError as errors:
        raise errors.exceptions[0] from None
    return [[verdicts_by_place[number, place] for place in range(len(one))] for number, one in enumerate(trajectories)]


async def judge_in_turn(judges: Iterable[NamedCoach], passes: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await `passes` of `judges`, one after another; all at once where one of these is asked in batches, as otherwise
    each pass would wait for a batch of its own."""
    if any(map(_is_batched, judges)):
        return await asyncio.gather(*passes)
    return [await one for one in passes]


def _is_batched(judge: NamedCoach) -> bool:
    return any(provider.batched for provider in judge.coach.providers)
