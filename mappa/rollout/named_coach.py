"""The one place that judges: a coach with its name, and what becomes of its verdicts and its errors."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from mappa_core.calls.spend_ledger import Ledger, no_cap
from mappa_core.calls.work_deadline import work_deadline
from mappa_core.codec import check_record
from mappa_core.errors import MappaError, Terminated
from mappa_core.protocols import Coach
from mappa_core.records import Scene, Verdict
from mappa_core.redaction import describe_error


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NamedCoach:
    """A coach and its name in the recipe."""

    name: str
    coach: Coach

    @asynccontextmanager
    async def _under_cap(self, ledger: Ledger) -> AsyncIterator[Callable[[Sequence[Verdict]], None]]:
        """Hold the coach to the cap of `ledger`, and yield what counts the cost of its verdicts. Raises CallError if
        the cap is reached."""
        providers = self.coach.providers
        if providers and all(provider.reserves for provider in providers):
            with ledger.enforce_cap():
                yield lambda verdicts: None
            return
        # Only its verdicts say what its calls cost. Those that reserve by themselves are among them, so that they
        # would be counted twice, and wait for money that is held for them.
        reservation = await ledger.reserve(self.name)
        try:
            with no_cap():
                # What was replayed was paid for when it was recorded.
                yield lambda verdicts: reservation.settle(
                    *(verdict.usage for verdict in verdicts if verdict.usage is not None and not verdict.replayed)
                )
        finally:
            reservation.release()

    async def judge(
        self,
        scenes: Sequence[Scene],
        *,
        review: bool,
        ledger: Ledger,
        timeout_s: float,
        show: Callable[[Scene], Awaitable[Scene]] | None = None,
    ) -> list[Verdict]:
        """Judge scenes of one trajectory, in one request (`review`) or one by one. Any exception of the coach, what is
        no verdict, a reached spending cap and a timeout become `failed` verdicts, which carry no gradient and count
        against `coach.max_missing`. `show` adds to a scene what its coach may see, within the timeout, which does not
        run while a call waits for its turn."""
        started = time.perf_counter()
        given: Sequence[Verdict] | None
        # In this function, which a message about the coach's code leaves out: it begins with the coach's own lines.
        try:
            async with self._under_cap(ledger) as settle:
                async with work_deadline(timeout_s):
                    shown = scenes if show is None else [await show(scene) for scene in scenes]
                    if review:
                        given = await self.coach.review(shown)
                    else:
                        given = [await self.coach.score(scene) for scene in shown]
                verdicts = [check_record(Verdict, verdict, "the coach") for verdict in given or ()]
                settle(verdicts)
            if len(verdicts) != len(scenes):
                raise TypeError(f"the coach gave {len(verdicts)} verdicts on {len(scenes)} actions")
        except TimeoutError:
            verdicts = [Verdict.failed(f"no verdict within {timeout_s:g} s")] * len(scenes)
        except Terminated:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the boundary of coaches
            verdicts = [Verdict.failed(describe_error(error, MappaError, OSError))] * len(scenes)
        # Of the request, also where it judged several actions.
        seconds = time.perf_counter() - started
        return [
            replace(verdict, step=scene.step.id, coach=self.name, seconds=seconds)
            for verdict, scene in zip(verdicts, scenes, strict=True)
        ]
