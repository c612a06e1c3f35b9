"""Wave scheduling: the order in which requests for actions reach the samplers."""

from __future__ import annotations

import asyncio
from typing import Any

from mappa_core.errors import WorkflowError
from mappa_core.protocols import Sampler
from mappa_core.records import Completion, Sampling


class WaveScheduler:
    """Admits requests as they come or, with `waves`, only when every running trajectory waits for an action.

    A wave holds the same requests in the same order however long tools and coaches take, so that a sampler that batches
    waiting requests gives bit-equal results in every run.
    """

    def __init__(self, *, waves: bool) -> None:
        self._waves = waves
        self._running: set[str] = set()
        self._busy: set[str] = set()  # running, and not waiting for an action
        self._waiting: dict[str, asyncio.Future[None]] = {}

    def add_trajectory(self, trajectory: str) -> None:
        """Register a running trajectory: waves wait for it."""
        self._running.add(trajectory)
        self._busy.add(trajectory)

    def remove_trajectory(self, trajectory: str) -> None:
        """Unregister a trajectory that requests no further action."""
        self._running.discard(trajectory)
        self._busy.discard(trajectory)
        self._admit_wave_if_complete()

    async def sample(self, trajectory: str, sampler: Sampler, prompt: Any, sampling: Sampling) -> Completion:
        """Sample one action as soon as it is admitted."""
        if self._waves:
            if trajectory in self._waiting:
                raise WorkflowError(
                    f"{trajectory}: two actions of one trajectory at once cannot be sampled in a fixed order: await "
                    "them one after the other, or set engine.options.deterministic=false"
                )
            admitted = self._waiting[trajectory] = asyncio.get_running_loop().create_future()
            self._busy.discard(trajectory)
            self._admit_wave_if_complete()
            await admitted
        return await sampler.sample(prompt, sampling)

    def _admit_wave_if_complete(self) -> None:
        if not self._waiting or self._busy:
            return
        # By id: the order in which they came depends on how long tools and coaches took.
        wave = [self._waiting[trajectory] for trajectory in sorted(self._waiting)]
        self._waiting.clear()
        # All are busy again from here on, although they continue a step of the loop later: otherwise the first one
        # that asks anew would be a wave of its own.
        self._busy.update(self._running)
        # Deferred: the request that completes the wave must be waiting too, or it would be sampled out of order.
        asyncio.get_running_loop().call_soon(_admit, wave)


def _admit(wave: list[asyncio.Future[None]]) -> None:
    for admitted in wave:
        if not admitted.done():  # Its trajectory may have been cancelled since.
            admitted.set_result(None)
