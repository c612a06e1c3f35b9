"""Hands new weights to samplers, and lets nobody sample by them before they are verified."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import structlog

from mappa_core.engine.cluster.sync import probe
from mappa_core.engine.cluster.sync.receipt import Sent, check, check_sent
from mappa_core.engine.cluster.sync.sides import Learners, SamplerEngine, Samplers
from mappa_core.errors import EngineError, SyncError
from mappa_core.experience import Experience, Receipt
from mappa_core.records import Float32, Int32

_log = structlog.get_logger()
_T = TypeVar("_T")
_U = TypeVar("_U")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Route:
    """The way of one policy's weights."""

    policy: str
    learners: Learners
    samplers: Samplers
    tensors: Collection[str]
    """Names of all that must be sent: the model's index, or the adapter's tensors."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Names that an engine loads from the tensor of another, by that other's name."""
    adapter: Mapping[str, Any] | None = None
    """The adapter_config.json of LoRA weights; None where they are full."""
    transfer: Callable[[str, int], Awaitable[Sent]] | None = None
    """Sends a version of the policy from GPU to GPU, to all its engines at once (see `sync.gpu`); None: weights go in
    buckets."""
    shared: bool = False
    """Whether learners and samplers take turns on the same GPUs: engines then sleep until they are published to."""
    limit: probe.Limit | None
    """None: whoever sends computes nothing, and there is no probe."""
    vocabulary: int
    window: int


class Publisher:
    """Publishes the policies of one engine.

    A publish pauses the engines of a policy, sends the learner's weights to all of them at once, compares what arrived
    with what was sent, tensor by tensor, and then the log-probabilities of some tokens. Only what passes is sampled by.
    What fails is sent once more in full; after that, or after `deadline_s`, it is an error. Engines then stay paused,
    and learners may be in the midst of sending: neither is of use any more.
    """

    def __init__(self, routes: Sequence[Route], *, seed: int, deadline_s: float) -> None:
        self._routes = {route.policy: route for route in routes}
        self._deadline_s = deadline_s
        self._lock = asyncio.Lock()
        self._waits: set[str] = set()
        self._sequences: dict[str, tuple[Int32, ...]] = {
            route.policy: probe.from_seed(seed, vocabulary=route.vocabulary, window=route.window) for route in routes
        }

    def remember(self, experience: Experience) -> None:
        """Take the tokens of coming probes from this experience, for the policies that are in it."""
        for policy in self._routes:
            if sequences := probe.from_experience(experience, policy):
                self._sequences[policy] = sequences

    async def publish(self, versions: Mapping[str, int]) -> dict[str, Receipt]:
        """Hand over the weights of the named policies, which the learners hold under these version numbers.

        Raises EngineError (SyncError, EngineLost) where weights could not be handed over and verified.
        """
        routes = [self._routes[policy] for policy in versions]
        return await self._in_time([(route, route.samplers.engines) for route in routes], versions)

    async def refresh(self, engine: str, versions: Mapping[str, int]) -> dict[str, Receipt]:
        """Hand the weights to one engine that was started again, of every policy of `versions` that it serves."""
        served = []
        for route in (self._routes[policy] for policy in versions):
            # Transfers between GPUs reach all engines or none.
            own = [one for one in route.samplers.engines if one.name == engine]
            served += [(replace(route, transfer=None), own)] if own else []
        return await self._in_time(served, versions)

    async def _in_time(
        self, ways: Sequence[tuple[Route, Sequence[SamplerEngine]]], versions: Mapping[str, int]
    ) -> dict[str, Receipt]:
        receipts: dict[str, Receipt] = {}

        async def one_group(ways: Sequence[tuple[Route, Sequence[SamplerEngine]]]) -> None:
            # Learners of one group take turns: their ranks must all send the same policy at a time.
            for route, engines in ways:
                receipts[route.policy] = await self._deliver(route, versions[route.policy], engines)

        groups: dict[int, list[tuple[Route, Sequence[SamplerEngine]]]] = {}
        for way in ways:
            groups.setdefault(id(way[0].learners), []).append(way)
        async with self._lock:
            self._waits.clear()
            try:
                async with asyncio.timeout(self._deadline_s), asyncio.TaskGroup() as tasks:
                    for group in groups.values():
                        tasks.create_task(one_group(group))
            except TimeoutError as late:
                raise SyncError(
                    f"new weights were not handed over within {self._deadline_s:g} s (engine.options.sync_s); "
                    f"still waited for: {'; '.join(sorted(self._waits)) or 'nothing'}"
                ) from late
            except ExceptionGroup as several:
                first = several.exceptions[0]
                raise first from first.__cause__
        return receipts

    async def _deliver(self, route: Route, version: int, engines: Sequence[SamplerEngine]) -> Receipt:
        try:
            return await self._attempt(route, version, engines)
        except EngineError as error:
            _log.warning("weights are sent once more", policy=route.policy, version=version, reason=str(error))
        with self._waiting(f"engines of policy {route.policy!r} to be started again"):
            await route.samplers.mend()
        return await self._attempt(route, version, engines)

    async def _attempt(self, route: Route, version: int, engines: Sequence[SamplerEngine]) -> Receipt:
        policy, learners = route.policy, route.learners
        if route.transfer is None:
            sent = await self._send(route, version, engines)
        else:
            await self._make_ready(route, version, engines)
            sent = await self._await(f"learners of {policy!r} to send weights", route.transfer(policy, version))
        check_sent(sent, route.tensors)
        # The learner computes its side of the probe while engines load.
        expected, received = await _both(
            self._expected(route), self._each(route, engines, "load", lambda one: one.finish())
        )
        for engine, one in zip(engines, received, strict=True):
            check(sent, one, route.tied, engine=engine.name)
        if route.shared:
            await self._await(f"learners of {policy!r} to leave the GPUs", learners.offload())
            await self._each(route, engines, "take memory for keys and values", lambda one: one.wake("kv_cache"))
        largest = await self._probe(route, version, engines, expected)
        await self._each(route, engines, "go on", lambda one: one.admit(policy, version))
        return Receipt(version=version, checksum=sent.checksum, probe=largest)

    async def _expected(self, route: Route) -> Sequence[Float32] | None:
        """The learner's side of a probe, None where there is none."""
        if route.limit is None:
            return None
        sequences = self._sequences[route.policy]
        what = f"learners of {route.policy!r} to answer a probe"
        return await self._await(what, route.learners.logprobs(route.policy, sequences))

    async def _probe(
        self, route: Route, version: int, engines: Sequence[SamplerEngine], expected: Sequence[Float32] | None
    ) -> float | None:
        """The largest difference of all engines, None without a probe. Raises SyncError beyond the limit."""
        if route.limit is None or expected is None:
            return None
        policy, sequences = route.policy, self._sequences[route.policy]
        found = await self._each(route, engines, "answer a probe", lambda one: one.logprobs(policy, version, sequences))
        probes = [probe.compare(expected, one) for one in found]
        for engine, one in zip(engines, probes, strict=True):
            probe.check_probe(one, route.limit, policy=policy, version=version, engine=engine.name)
        return max(one.largest for one in probes)

    async def _make_ready(self, route: Route, version: int, engines: Sequence[SamplerEngine]) -> None:
        """Have the engines stop, and expect this version."""
        if route.adapter is None:
            await self._each(route, engines, "pause", lambda one: one.pause())
        if route.shared:
            await self._each(route, engines, "take memory for weights", lambda one: one.wake("weights"))
        if route.transfer is None:
            await self._each(route, engines, "begin", lambda one: one.begin(route.policy, version, route.adapter))

    async def _send(self, route: Route, version: int, engines: Sequence[SamplerEngine]) -> Sent:
        """Every tensor to every engine; the first are filled in while the engines make ready. Learners are heard to
        the end even when an engine fails: a rank that stops gathering would leave the others waiting."""
        policy, learners = route.policy, route.learners
        waits = f"learners of {policy!r} to send weights"
        failure: EngineError | None = None
        ready = asyncio.ensure_future(self._make_ready(route, version, engines))
        try:
            buckets = aiter(learners.weights(policy, version))
            while (bucket := await self._await(waits, anext(buckets, None))) is not None:
                if failure is None:
                    try:
                        await ready
                        await self._each(route, engines, "take weights", partial(_take, bucket))
                    except EngineError as error:
                        failure = error
        finally:
            ready.cancel()
        if failure is not None:
            raise failure
        return await self._await(f"learners of {policy!r} to say what they sent", learners.sent(policy))

    async def _each(
        self,
        route: Route,
        engines: Sequence[SamplerEngine],
        what: str,
        call: Callable[[SamplerEngine], Awaitable[_T]],
    ) -> list[_T]:
        """Call all engines at once, wait for all, and raise what the first one raised as an EngineError."""
        calls = [self._await(f"engine {one.name!r} to {what} (policy {route.policy!r})", call(one)) for one in engines]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for engine, result in zip(engines, results, strict=True):
            if isinstance(result, EngineError):
                raise result
            if isinstance(result, BaseException):
                raise SyncError(
                    f"policy {route.policy!r}, engine {engine.name!r}: it failed to {what}: {result!r}"
                ) from result
        return [result for result in results if not isinstance(result, BaseException)]

    async def _await(self, what: str, awaited: Awaitable[_T]) -> _T:
        with self._waiting(what):
            return await awaited

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Note what is waited for, and let the note stand where the wait is cut short: the error names it."""
        self._waits.add(what)
        try:
            yield
        except Exception:
            self._waits.discard(what)
            raise
        self._waits.discard(what)


def _take(bucket: Any, engine: SamplerEngine) -> Awaitable[None]:
    return engine.take(bucket)


async def _both(one: Awaitable[_T], other: Awaitable[_U]) -> tuple[_T, _U]:
    """Two results; where one fails, its error once both have ended."""
    await asyncio.gather(
        first := asyncio.ensure_future(one), second := asyncio.ensure_future(other), return_exceptions=True
    )
    return first.result(), second.result()
