"""The engines of one model: requests are spread over them, and what a lost one owed is asked again."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Sequence

import numpy as np
import structlog

from mappa_core.engine.cluster.fleet.fleet import Fleet
from mappa_core.engine.cluster.samplers.remote import Deadlines, Owed, RemoteEngine, Seat
from mappa_core.engine.cluster.samplers.router import Router
from mappa_core.engine.cluster.samplers.values import Drawn, Request, Setup
from mappa_core.errors import EngineError, EngineLost
from mappa_core.records import Int32, Sampling

_log = structlog.get_logger()

ATTEMPTS = 3
"""Starts of an engine, one after the other without an answer in between, after which it is given up."""


class SamplerPool:
    """All engines of one base model or one fully trained policy. Used on one event loop.

    `refresh`, given by whoever knows the weights, brings the engine of a name what its policies have now; an engine
    that was started again stays paused until then. `full`: publishes bring whole models, and end that pause. With
    `setup.apart` the requests of one turn of the event loop are one wave: engines get their parts of it by the order of
    the requests alone, and a part that was lost is decoded again as a whole.
    """

    def __init__(
        self,
        fleet: Fleet,
        setup: Setup,
        seats: Sequence[Seat],
        *,
        name: str,
        full: bool,
        deadlines: Deadlines,
        refresh: Callable[[str], Awaitable[object]],
    ) -> None:
        self.engines = tuple(
            RemoteEngine(f"sampler-{name}-{place}", fleet, setup, seat, deadlines) for place, seat in enumerate(seats)
        )
        self._setup = setup
        self._full = full
        self._refresh = refresh
        self._router = Router(len(seats), prefixes=setup.prefix_caching and not setup.apart)
        self._places = {id(engine): place for place, engine in enumerate(self.engines)}
        self._numbers = itertools.count()
        self._wave: list[Owed] = []
        self._mending = asyncio.Lock()
        self._pumps: list[asyncio.Task[None]] = []
        self._fault: Exception | None = None

    @property
    def restarts(self) -> int:
        """How often an engine was started again."""
        return sum(engine.restarts for engine in self.engines)

    async def open(self) -> None:
        """Start all engines, with the weights of the model's folder."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for engine in self.engines:
                    tasks.create_task(engine.start(paused=False))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        self._pumps = [asyncio.create_task(self._pump(engine)) for engine in self.engines]

    async def close(self) -> None:
        """End all engines. Who still waits for an answer gets an error."""
        self._fault = self._fault or EngineError("the engine was closed")
        for pump in self._pumps:
            pump.cancel()
        for engine in self.engines:
            engine.abandon(self._fault)
            await engine.end()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def sample(self, policy: str, prompt: Int32, sampling: Sampling, stops: frozenset[int]) -> Drawn:
        """Sample one action. Raises EngineError where no engine can."""
        if self._fault is not None:
            raise self._fault
        loop = asyncio.get_running_loop()
        number = str(next(self._numbers))
        request = Request(id=number, policy=policy, prompt=prompt, sampling=sampling, stops=stops)
        owed = Owed(request, loop.create_future())
        if not self._wave:
            loop.call_soon(self._send)
        self._wave.append(owed)
        try:
            return await owed.answer
        except asyncio.CancelledError:
            self._forget(owed)
            raise

    async def mend(self) -> None:
        """Start every engine again that is lost. It stays paused, with the weights of the model's folder."""
        async with self._mending:
            for engine in self.engines:
                if engine.lost is not None:
                    _log.warning("a sampler is started again", engine=engine.name, reason=str(engine.lost))
                    self._router.forget(self._places[id(engine)])
                    await engine.restart()

    def _send(self) -> None:
        wave, self._wave = [one for one in self._wave if not one.answer.done()], []
        if self._fault is not None:
            for owed in wave:
                owed.answer.set_exception(self._fault)
            return
        parts: list[list[Owed]] = [[] for _ in self.engines]
        for number, owed in enumerate(wave):
            if self._setup.apart:
                place = number % len(parts)
            else:
                place = self._place(owed, [sum(one.cost for one in part) for part in parts])
            parts[place].append(owed)
        for engine, part in zip(self.engines, parts, strict=True):
            if part:
                engine.submit(part)

    def _place(self, owed: Owed, coming: Sequence[int]) -> int:
        request = owed.request
        away = [engine.lost is not None or engine.stale for engine in self.engines]
        loads = [
            math.inf if away[place] and not all(away) else engine.load + more
            for place, (engine, more) in enumerate(zip(self.engines, coming, strict=True))
        ]
        weights = self._weights(request.policy)
        place = self._router.choose(weights, request.prompt, loads)
        self._router.note(place, weights, request.prompt)
        return place

    def _weights(self, policy: str) -> str:
        known = [engine.versions[policy] for engine in self.engines if policy in engine.versions]
        return f"{policy}@{max(known)}" if known else policy

    def _forget(self, owed: Owed) -> None:
        if not self._setup.apart:  # the rest of its wave must not be decoded in other company
            for engine in self.engines:
                engine.forget(owed.request)

    async def _pump(self, engine: RemoteEngine) -> None:
        """Hand on what an engine answers, and start it again where it is lost, for as long as the pool is open."""
        fruitless = 0
        while self._fault is None:
            try:
                await self._recover(engine)
                for owed in await engine.poll():
                    fruitless = 0
                    self._note(engine, owed)
            except EngineLost as lost:
                fruitless += 1
                if fruitless > ATTEMPTS:
                    return self._give_up(lost)
            except Exception as error:  # noqa: BLE001 - whoever samples is told
                return self._give_up(error)

    async def _recover(self, engine: RemoteEngine) -> None:
        if engine.lost is not None:
            await self.mend()
        if engine.stale:
            await self._refresh(engine.name)
            if not self._full:
                await engine.resume()
            engine.stale = False

    def _note(self, engine: RemoteEngine, owed: Owed) -> None:
        if owed.answer.cancelled() or owed.answer.exception() is not None:
            return
        request, place = owed.request, self._places[id(engine)]
        tokens = np.concatenate([request.prompt, owed.answer.result().tokens])
        self._router.note(place, self._weights(request.policy), tokens)

    def _give_up(self, error: Exception) -> None:
        self._fault = error
        for engine in self.engines:
            engine.abandon(error)
