"""Pool of the engines of one model: balances requests over them, and resubmits those of a lost engine."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

import numpy as np
import structlog

from mappa_core.engine import EngineError, EngineLost, Sampling
from mappa_engine.arrays import Float64, Int32
from mappa_engine.cluster.actors.ray_actors import RayActors
from mappa_engine.cluster.errors import NodeLost
from mappa_engine.cluster.samplers.messages import Generation, GenerationRequest, SamplerConfig
from mappa_engine.cluster.samplers.remote_engine import Deadlines, EngineResources, PendingRequest, RemoteEngine
from mappa_engine.cluster.samplers.router import Router

_log = structlog.get_logger()

MAX_ATTEMPTS = 3
"""Consecutive starts of an engine without any result after which the pool gives up."""


class SamplerPool:
    """All engines of one base model or one fully trained policy. Used on one event loop.

    `refresh` loads the current weights into the engine of the given name; a restarted engine stays paused until then.
    Inside `room` there is memory for an engine that starts again.
    With `full`, publishes bring whole models and end that pause. With `config.isolate_waves` the requests of one turn
    of the event loop are one wave: its split over engines depends on the order of the requests alone, and the part of
    a lost engine is decoded again as a whole.
    """

    def __init__(
        self,
        ray_actors: RayActors,
        config: SamplerConfig,
        resources: Sequence[EngineResources],
        *,
        name: str,
        full: bool,
        deadlines: Deadlines,
        refresh: Callable[[str], Awaitable[object]],
        room: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        self.engines = tuple(
            RemoteEngine(f"sampler-{name}-{index}", ray_actors, config, engine_resources, deadlines)
            for index, engine_resources in enumerate(resources)
        )
        self._config = config
        self._full = full
        self._refresh = refresh
        self._room = room
        self._router = Router(len(resources), prefixes=config.prefix_caching and not config.isolate_waves)
        self._indices = {id(engine): index for index, engine in enumerate(self.engines)}
        self._engine_of: dict[str, RemoteEngine] = {}
        """Engines by the ids of the requests that they owe."""
        self._numbers = itertools.count()
        self._wave: list[PendingRequest] = []
        self._restart_lock = asyncio.Lock()
        self._pollers: list[asyncio.Task[None]] = []
        self._failure: Exception | None = None

    @property
    def restarts(self) -> int:
        """Number of engine restarts."""
        return sum(len(engine.losses) for engine in self.engines)

    async def open(self) -> None:
        """Start all engines, with the weights of the model's folder."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for engine in self.engines:
                    tasks.create_task(engine.start(paused=False))
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        self._pollers = [asyncio.create_task(self._poll_engine(engine)) for engine in self.engines]

    async def close(self) -> None:
        """End all engines. Pending requests get an error."""
        self._failure = self._failure or EngineError("the engine was closed")
        for poller in self._pollers:
            poller.cancel()
        for engine in self.engines:
            engine.fail_pending(self._failure)
            await engine.end()
        await asyncio.gather(*self._pollers, return_exceptions=True)

    async def sample(self, policy: str, prompt: Int32, sampling: Sampling, stops: frozenset[int]) -> Generation:
        """Sample one action. Raises EngineError where no engine can."""
        if self._failure is not None:
            raise self._failure
        loop = asyncio.get_running_loop()
        number = str(next(self._numbers))
        request = GenerationRequest(id=number, policy=policy, prompt=prompt, sampling=sampling, stops=stops)
        pending = PendingRequest(request, loop.create_future())
        if not self._wave:
            loop.call_soon(self._send)
        self._wave.append(pending)
        try:
            return await pending.answer
        except asyncio.CancelledError:
            self._abort(pending)
            raise

    async def restart_lost(self) -> None:
        """Restart every lost engine. It stays paused, with the weights of the model's folder."""
        async with self._restart_lock:
            for engine in self.engines:
                if engine.lost is not None:
                    _log.warning("a sampler is started again", engine=engine.name, reason=str(engine.lost))
                    self._router.clear(self._indices[id(engine)])
                    await engine.restart()

    def _send(self) -> None:
        wave, self._wave = [pending for pending in self._wave if not pending.answer.done()], []
        if self._failure is not None:
            for pending in wave:
                pending.answer.set_exception(self._failure)
            return
        parts: dict[int, list[PendingRequest]] = defaultdict(list)
        loads = self._loads()
        keys = {policy: self._weights_key(policy) for policy in {pending.request.policy for pending in wave}}
        for number, pending in enumerate(wave):
            request, index = pending.request, number % len(self.engines)
            if not self._config.isolate_waves:
                index = self._router.choose(keys[request.policy], request.prompt, loads)
                self._router.record_prefix(index, keys[request.policy], request.prompt)
            parts[index].append(pending)
            loads[index] += pending.cost
            self._engine_of[request.id] = self.engines[index]
        for index in sorted(parts):
            self.engines[index].submit(parts[index])

    def _loads(self) -> Float64:
        """Tokens that each engine has yet to compute, (engines,); infinite where it is away and others are not."""
        loads = np.array([engine.load for engine in self.engines], dtype=np.float64)
        away = np.array([engine.lost is not None or engine.stale for engine in self.engines])
        return loads if away.all() else np.where(away, np.inf, loads)

    def _weights_key(self, policy: str) -> str:
        known = [engine.versions[policy] for engine in self.engines if policy in engine.versions]
        return f"{policy}@{max(known)}" if known else policy

    def _abort(self, pending: PendingRequest) -> None:
        if self._config.isolate_waves:
            return  # the composition of its wave must not change
        if (engine := self._engine_of.pop(pending.request.id, None)) is not None:
            engine.abort(pending.request)

    async def _poll_engine(self, engine: RemoteEngine) -> None:
        """Deliver an engine's results, and restart it where it is lost, as long as the pool is open."""
        failed_attempts = 0
        while self._failure is None:
            try:
                await self._recover(engine)
                settled = await engine.poll()
                keys = {policy: self._weights_key(policy) for policy in {pending.request.policy for pending in settled}}
                for pending in settled:
                    failed_attempts = 0
                    self._record_result(engine, pending, keys[pending.request.policy])
            except NodeLost as lost:  # its place is bound to the node: only a new engine can be elsewhere
                return self._fail_pool(lost)
            except EngineLost as lost:
                failed_attempts += 1
                if failed_attempts > MAX_ATTEMPTS:
                    return self._fail_pool(lost)
            except Exception as error:  # noqa: BLE001 - raised to all callers of `sample`
                return self._fail_pool(error)

    async def _recover(self, engine: RemoteEngine) -> None:
        if engine.lost is not None:
            async with self._room():
                await self.restart_lost()
        if engine.stale:
            await self._refresh(engine.name)
            if not self._full:
                await engine.resume()
            engine.stale = False

    def _record_result(self, engine: RemoteEngine, pending: PendingRequest, weights: str) -> None:
        self._engine_of.pop(pending.request.id, None)
        if pending.answer.cancelled() or pending.answer.exception() is not None:
            return
        request, index = pending.request, self._indices[id(engine)]
        tokens = np.concatenate([request.prompt, pending.answer.result().tokens])
        self._router.record_prefix(index, weights, tokens)

    def _fail_pool(self, error: Exception) -> None:
        self._failure = error
        for engine in self.engines:
            engine.fail_pending(error)
