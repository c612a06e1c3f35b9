"""Publishes new weights to samplers, which sample with them only after verification."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import structlog

from mappa_core.engine import EngineError, EngineLost, Experience, Receipt
from mappa_engine.arrays import Float32, Int32
from mappa_engine.cluster.actors.deadlines import run_by_deadline
from mappa_engine.cluster.errors import SyncError
from mappa_engine.cluster.sync import probe
from mappa_engine.cluster.sync.interfaces import EnginePool, SamplerEngine, WeightProvider
from mappa_engine.cluster.sync.transfer_records import SentWeights, check_received, check_sent

_log = structlog.get_logger()
_T = TypeVar("_T")
_U = TypeVar("_U")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WeightRoute:
    """Source, destination and checks of one policy's weights."""

    policy: str
    learners: WeightProvider
    samplers: EnginePool
    tensors: Collection[str]
    """Names of all tensors that must be sent: those of the model, or of the adapter."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Tied tensors: name of a sent tensor to the second name under which it is loaded."""
    adapter: Mapping[str, Any] | None = None
    """The adapter_config.json of LoRA weights; None for full weights."""
    transfer: Callable[[str, int], Awaitable[SentWeights]] | None = None
    """Sends a version of the policy from GPU to GPU, to all its engines at once (see `sync.gpu`); None: in buckets."""
    colocated: bool = False
    """Whether learners and samplers share GPUs in turns: engines sleep while learners compute."""
    probe_limit: float | None
    """Limit of the probe, in nats; None without a probe, where the sender cannot compute."""
    vocabulary: int
    window: int


@dataclass(frozen=True, slots=True)
class _Delivery:
    """A version of a route's policy, and the engines that get it."""

    route: WeightRoute
    engines: Sequence[SamplerEngine]
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """What was sent, and the learner's side of a probe; None without a probe."""

    sent: SentWeights
    expected: Sequence[Float32] | None


class Publisher:
    """Publishes the policies of one engine.

    A publish pauses the engines of a policy, sends the learner's weights to all of them at once, compares received with
    sent weights, tensor by tensor, and then the log-probabilities of some tokens. Only verified weights are used for
    sampling. A failure is retried once in full; a second one, or `deadline_s`, raises an error. Engines then stay
    paused, and learners may still be sending: neither can be used any more.

    Where learners and samplers share GPUs, these hold the weights of both and nothing else while weights are sent: all
    policies of a learner group are sent first, then the learners leave, and only then engines take memory for keys and
    values.
    """

    def __init__(self, routes: Sequence[WeightRoute], *, seed: int, deadline_s: float) -> None:
        self._routes = {route.policy: route for route in routes}
        self._deadline_s = deadline_s
        self._lock = asyncio.Lock()
        self._waiting_for: set[str] = set()
        self._restarting = 0
        """Groups of policies that wait for engines to be started again."""
        self._sequences: dict[str, tuple[Int32, ...]] = {
            route.policy: probe.sequences_from_seed(seed, vocabulary=route.vocabulary, window=route.window)
            for route in routes
        }

    def take_probes_from(self, experience: Experience) -> None:
        """Use tokens of this experience for the next probes of its policies."""
        for policy, route in self._routes.items():
            if sequences := probe.sequences_from_experience(experience, policy, window=route.window):
                self._sequences[policy] = sequences

    async def publish(self, versions: Mapping[str, int]) -> dict[str, Receipt]:
        """Publish the weights of the given policies under these version numbers.

        Raises EngineError (SyncError, EngineLost) where weights could not be sent and verified.
        """
        routes = [self._routes[policy] for policy in versions]
        return await self._publish_by_deadline(
            [_Delivery(route, route.samplers.engines, versions[route.policy]) for route in routes]
        )

    async def refresh(self, engine: str, versions: Mapping[str, int]) -> dict[str, Receipt]:
        """Publish to one restarted engine the weights of every policy of `versions` that it serves. On a GPU that
        learners share there is room for theirs only while all engines sleep, which forget their own: all get them."""
        served: list[_Delivery] = []
        for route in (self._routes[policy] for policy in versions):
            # Transfers between GPUs reach all engines or none.
            own = [sampler for sampler in route.samplers.engines if sampler.name == engine]
            served += [_Delivery(replace(route, transfer=None), own, versions[route.policy])] if own else []
        if any(delivery.route.colocated for delivery in served):
            shared = [self._routes[policy] for policy in versions if self._routes[policy].colocated]
            served = [_Delivery(route, route.samplers.engines, versions[route.policy]) for route in shared]
        return await self._publish_by_deadline(served)

    async def _publish_by_deadline(self, deliveries: Sequence[_Delivery]) -> dict[str, Receipt]:
        receipts: dict[str, Receipt] = {}

        async def one_group(deliveries: Sequence[_Delivery]) -> None:
            # Policies of one learner group go one after the other: all its ranks must send the same policy at a time.
            for delivery in deliveries:
                if not delivery.route.colocated:
                    receipts[delivery.route.policy] = await self._send_with_retry(delivery)
            if shared := [delivery for delivery in deliveries if delivery.route.colocated]:
                receipts.update(await self._take_turns_with_retry(shared))

        groups: dict[int, list[_Delivery]] = {}
        for delivery in deliveries:
            groups.setdefault(id(delivery.route.learners), []).append(delivery)

        async def all_groups() -> None:
            async with asyncio.TaskGroup() as tasks:
                for group in groups.values():
                    tasks.create_task(one_group(group))

        # A refresh of a restarted engine may come during a publish: two at once would load into one engine.
        async with self._lock:
            self._waiting_for.clear()
            try:
                # A start has a deadline of its own: to load a large model takes longer than to send its weights.
                await run_by_deadline(all_groups(), self._deadline_s, exempt=lambda: self._restarting > 0)
            except TimeoutError as late:
                raise SyncError(
                    f"new weights were not handed over within {self._deadline_s:g} s (engine.options.sync_s); "
                    f"still waited for: {'; '.join(sorted(self._waiting_for)) or 'nothing'}"
                ) from late
            except ExceptionGroup as several:
                # The first failure cancelled the other groups, so the others say nothing more.
                first = several.exceptions[0]
                raise first from first.__cause__
        return receipts

    async def _send_with_retry(self, delivery: _Delivery) -> Receipt:
        try:
            return await self._admit(delivery, await self._deliver(delivery))
        except EngineError as error:
            _log.warning(
                "weights are sent once more", policy=delivery.route.policy, version=delivery.version, reason=str(error)
            )
        # Transfers between GPUs reach all engines or none, so one that died is replaced before the second try.
        with self._waiting_for_restart(f"engines of policy {delivery.route.policy!r} to be started again"):
            await delivery.route.samplers.restart_lost()
        return await self._admit(delivery, await self._deliver(delivery))

    async def _take_turns_with_retry(self, deliveries: Sequence[_Delivery]) -> dict[str, Receipt]:
        try:
            return await self._take_turns(deliveries)
        except EngineError as error:
            policies = [delivery.route.policy for delivery in deliveries]
            _log.warning("weights are sent once more", policies=policies, reason=str(error))
        with self._waiting_for_restart("engines to be started again on their learners' GPUs"):
            await self._sleep_all(deliveries)
            await deliveries[0].route.learners.offload()
            for delivery in deliveries:
                await delivery.route.samplers.restart_lost()
        return await self._take_turns(deliveries)

    async def _take_turns(self, deliveries: Sequence[_Delivery]) -> dict[str, Receipt]:
        """Publish policies whose learners, of one group, and engines share GPUs."""
        learners = deliveries[0].route.learners
        await self._sleep_all(deliveries)
        await self._await("learners to leave but their weights on the GPUs", learners.offload(keep_weights=True))
        loaded = [await self._deliver(delivery) for delivery in deliveries]
        # Keys and values take what learners held, so these leave first.
        await self._await("learners to leave the GPUs", learners.offload())
        receipts = {}
        for delivery, own in zip(deliveries, loaded, strict=True):
            await self._call_each(delivery, "take memory for keys and values", lambda engine: engine.wake("kv_cache"))
            receipts[delivery.route.policy] = await self._admit(delivery, own)
        return receipts

    async def _sleep_all(self, deliveries: Sequence[_Delivery]) -> None:
        """Let all engines sleep; lost ones hold nothing."""
        engines = dict.fromkeys(engine for delivery in deliveries for engine in delivery.engines)
        await asyncio.gather(*(self._sleep(engine) for engine in engines))

    async def _sleep(self, engine: SamplerEngine) -> None:
        with self._waiting(f"engine {engine.name!r} to sleep"), suppress(EngineLost):
            await engine.pause()
            await engine.sleep()

    async def _deliver(self, delivery: _Delivery) -> _Loaded:
        """Send the weights to the engines, which load them, and compute the learner's side of a probe meanwhile."""
        route, policy = delivery.route, delivery.route.policy
        if route.transfer is None:
            sent = await self._send(delivery)
        else:
            await self._prepare_engines(delivery)
            sent = await self._await(
                f"learners of {policy!r} to send weights", route.transfer(policy, delivery.version)
            )
        # vLLM would serve a tensor that was not sent from older memory, without an error.
        check_sent(sent, route.tensors)
        expected, received = await _gather_both(
            self._expected(route), self._call_each(delivery, "load", lambda engine: engine.finish_load())
        )
        for engine, record in zip(delivery.engines, received, strict=True):
            check_received(sent, record, route.tied, engine=engine.name)
        return _Loaded(sent=sent, expected=expected)

    async def _admit(self, delivery: _Delivery, loaded: _Loaded) -> Receipt:
        """Verify what the engines loaded by a probe, and let them sample with it."""
        largest = await self._probe(delivery, loaded.expected)
        await self._call_each(
            delivery, "go on", lambda engine: engine.activate(delivery.route.policy, delivery.version)
        )
        return Receipt(version=delivery.version, checksum=loaded.sent.checksum, probe=largest)

    async def _expected(self, route: WeightRoute) -> Sequence[Float32] | None:
        """Compute the learner's side of a probe; None without a probe."""
        if route.probe_limit is None:
            return None
        sequences = self._sequences[route.policy]
        what = f"learners of {route.policy!r} to answer a probe"
        return await self._await(what, route.learners.logprobs(route.policy, sequences))

    async def _probe(self, delivery: _Delivery, expected: Sequence[Float32] | None) -> float | None:
        """Probe all engines; returns the maximum difference, None without a probe. Raises SyncError above the limit."""
        route, policy, version = delivery.route, delivery.route.policy, delivery.version
        if route.probe_limit is None or expected is None:
            return None
        sequences = self._sequences[policy]
        answers = await self._call_each(
            delivery, "answer a probe", lambda engine: engine.logprobs(policy, version, sequences)
        )
        probes = [probe.compare_logprobs(expected, answer) for answer in answers]
        for engine, found in zip(delivery.engines, probes, strict=True):
            probe.check_probe(found, route.probe_limit, policy=policy, version=version, engine=engine.name)
        return max(found.max_diff for found in probes)

    async def _prepare_engines(self, delivery: _Delivery) -> None:
        """Pause and wake the engines as needed, and start the load of this version."""
        route = delivery.route
        if route.adapter is None:
            await self._call_each(delivery, "pause", lambda engine: engine.pause())
        if route.colocated:
            await self._call_each(delivery, "take memory for weights", lambda engine: engine.wake("weights"))
        if route.transfer is None:
            await self._call_each(
                delivery, "begin", lambda engine: engine.begin_load(route.policy, delivery.version, route.adapter)
            )

    async def _send(self, delivery: _Delivery) -> SentWeights:
        """Send every tensor to every engine; the first bucket is filled while the engines prepare. The learners' stream
        is consumed to its end even when an engine fails: a rank that stops gathering would leave the others waiting."""
        policy, learners = delivery.route.policy, delivery.route.learners
        waits = f"learners of {policy!r} to send weights"
        failure: EngineError | None = None
        ready = asyncio.ensure_future(self._prepare_engines(delivery))
        try:
            buckets = aiter(learners.weights(policy, delivery.version))
            while (bucket := await self._await(waits, anext(buckets, None))) is not None:
                if failure is None:
                    try:
                        await ready
                        await self._call_each(delivery, "take weights", partial(_load_bucket, bucket))
                    except EngineError as error:
                        failure = error
        finally:
            ready.cancel()
        if failure is not None:
            raise failure
        return await self._await(f"learners of {policy!r} to say what they sent", learners.sent_record(policy))

    async def _call_each(
        self, delivery: _Delivery, what: str, call: Callable[[SamplerEngine], Awaitable[_T]]
    ) -> list[_T]:
        """Call all engines at once, wait for all, and raise the first failure as an EngineError."""
        policy = delivery.route.policy
        calls = [
            self._await(f"engine {engine.name!r} to {what} (policy {policy!r})", call(engine))
            for engine in delivery.engines
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for engine, result in zip(delivery.engines, results, strict=True):
            if isinstance(result, EngineError):
                raise result
            if isinstance(result, BaseException):
                raise SyncError(
                    f"policy {policy!r}, engine {engine.name!r}: it failed to {what}: {result!r}"
                ) from result
        return [result for result in results if not isinstance(result, BaseException)]

    async def _await(self, what: str, awaited: Awaitable[_T]) -> _T:
        with self._waiting(what):
            return await awaited

    @contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Record what is waited for, and keep the record where the wait is cancelled: the timeout error names it."""
        self._waiting_for.add(what)
        try:
            yield
        except Exception:  # not CancelledError, with which a deadline ends the wait
            self._waiting_for.discard(what)
            raise
        self._waiting_for.discard(what)

    @contextmanager
    def _waiting_for_restart(self, what: str) -> Iterator[None]:
        self._restarting += 1
        try:
            with self._waiting(what):
                yield
        finally:
            self._restarting -= 1


def _load_bucket(bucket: Any, engine: SamplerEngine) -> Awaitable[None]:
    return engine.load_bucket(bucket)


async def _gather_both(left: Awaitable[_T], right: Awaitable[_U]) -> tuple[_T, _U]:
    """Wait for both and return their results; raises a failure once both have ended."""
    await asyncio.gather(
        first := asyncio.ensure_future(left), second := asyncio.ensure_future(right), return_exceptions=True
    )
    return first.result(), second.result()
