"""The driver's handle of one engine: calls with deadlines, and its pending requests."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from mappa_core import InputError, MappaError
from mappa_core.engine import EngineError, EngineLost
from mappa_engine.arrays import Float32, Int32
from mappa_engine.cluster.actors.actor import Actor
from mappa_engine.cluster.actors.actor_environment import thread_variables
from mappa_engine.cluster.actors.ray_actors import RayActors, ReservedBundle
from mappa_engine.cluster.errors import ActorFailed, ActorTimeout
from mappa_engine.cluster.samplers.messages import (
    Generation,
    GenerationRequest,
    RequestResult,
    RequestWave,
    SamplerConfig,
)
from mappa_engine.cluster.samplers.server import THREADS, SamplerServer
from mappa_engine.cluster.sync.transfer_records import ReceivedWeights
from mappa_engine.float32 import FLOAT32_VARIABLES

POLL_S = 10.0
"""Seconds that a poll waits for results."""
HANG_S = 60.0
"""Seconds beyond `POLL_S` after which an engine counts as hung."""
ROLE = "sampler"
_LIBRARIES = ("vllm", "torch", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineResources:
    """Cluster resources of an engine."""

    slot: ReservedBundle | None = None
    cpus: float = 0.0
    gpus: float = 0.0
    other_slots: tuple[ReservedBundle, ...] = ()
    """Bundles of the further GPUs of an engine that has several."""
    memory_share: float = 1.0
    """See `SamplerConfig.memory_share`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Maximum seconds for starting an engine, for one of its calls, and for one action."""

    start_s: float
    sync_s: float
    call_s: float


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request and the future of its result. `wave` is the number of its wave at its engine."""

    request: GenerationRequest
    answer: asyncio.Future[Generation]
    wave: int = 0
    started_at: float = 0.0
    """Reading of the engine's `polled_s` since which its deadline counts."""

    @property
    def cost(self) -> int:
        """Maximum number of tokens to compute."""
        return len(self.request.prompt) + self.request.sampling.max_tokens


class RemoteEngine:
    """A sampler actor. After it was lost, calls raise EngineLost until `restart`. An actor whose code raises what is no
    error of Mappa is lost, too: nobody knows what vLLM left half done."""

    def __init__(
        self, name: str, ray_actors: RayActors, config: SamplerConfig, resources: EngineResources, deadlines: Deadlines
    ) -> None:
        self.name = name
        self.lost: EngineLost | None = None
        self.losses: list[str] = []
        """How each actor ended that was replaced."""
        self.stale = False
        """Whether it was restarted and has not received its weights since."""
        self.paused = False
        self.load = 0
        self.versions: dict[str, int] = {}
        self.polled_s = 0.0
        """Seconds in which the driver took results: a driver that stalls takes none, however many are there."""
        self._ray_actors = ray_actors
        self._config = config
        self._resources = resources
        self._deadlines = deadlines
        self._actor: Actor | None = None
        self._gpu_numbers: tuple[str, ...] = ()
        self._asleep = False
        self._pending: dict[str, PendingRequest] = {}
        self._waves = 0

    @property
    def actor(self) -> Actor:
        """The current actor."""
        if self._actor is None:
            raise EngineError(f"the engine {self.name} was not started")
        return self._actor

    async def start(self, *, paused: bool) -> None:
        """Start the actor and load the model in it."""
        resources = self._resources
        if resources.slot is not None and resources.other_slots and not self._gpu_numbers:
            self._gpu_numbers = await self._ray_actors.gpu_numbers(
                (resources.slot, *resources.other_slots), share=resources.gpus, deadline_s=self._deadlines.start_s
            )
        try:
            self._actor = await self._ray_actors.start(
                SamplerServer,
                replace(self._config, memory_share=resources.memory_share),
                paused=paused,
                gpu_numbers=self._gpu_numbers,
                name=self.name,
                role=ROLE,
                deadline_s=self._deadlines.start_s,
                slot=resources.slot,
                cpus=resources.cpus,
                gpus=resources.gpus,
                threads=THREADS,
                libraries=_LIBRARIES,
                environment={
                    **vllm_environment(self._config.device, self._config.dtype),
                    **thread_variables(self._config.threads),
                },
            )
        except MappaError:
            raise
        except Exception as error:
            raise ActorFailed.of(f"the actor {self.name}", error, name=self.name) from error
        self.paused, self.lost, self._asleep = paused, None, False

    async def restart(self) -> None:
        """Replace a lost actor by a new one. It is paused, with the weights of the model's folder, and gets the pending
        requests again."""
        reason = str(self.lost)
        await self.end()
        try:
            await self.start(paused=True)
        except InputError as error:
            # The same settings and model did open: what is missing now, memory for example, may be there again later.
            raise EngineLost(f"the engine {self.name} does not open again: {error}", actor=self.name) from error
        self.stale = True
        self.losses.append(reason)
        assert self.actor.process is not None  # it has started
        self.actor.process = replace(self.actor.process, lost=tuple(self.losses))
        # In their former waves, as the results of a wave may depend on which requests were in it.
        for _, wave in itertools.groupby(self._pending.values(), key=lambda pending: pending.wave):
            self._send(tuple(pending.request for pending in wave))

    async def end(self) -> None:
        """Kill the actor, if there is one."""
        if self._actor is not None:
            await self._ray_actors.end(self._actor)
            self._actor = None

    def submit(self, wave: Sequence[PendingRequest]) -> None:
        """Submit requests as one wave; their futures get the results."""
        self._waves += 1
        for pending in wave:
            pending.wave, pending.started_at = self._waves, self.polled_s
            self._pending[pending.request.id] = pending
            self.load += pending.cost
        if self.lost is None:
            self._send(tuple(pending.request for pending in wave))

    def abort(self, request: GenerationRequest) -> None:
        """Drop a request whose result is not needed any more."""
        pending = self._pending.pop(request.id, None)
        if pending is not None:
            self.load -= pending.cost
            if self.lost is None:
                self.actor.call("abort", request.id)

    async def poll(self) -> list[PendingRequest]:
        """Wait up to `POLL_S` for results, deliver them and return their requests. Raises EngineLost where the engine
        is lost, or an action exceeds its deadline."""
        begun, patience_s = time.monotonic(), POLL_S + HANG_S
        answers = await self._call("take_results", POLL_S, what="answer", deadline_s=patience_s)
        self.polled_s += min(time.monotonic() - begun, patience_s)
        settled = [pending for pending in map(self._resolve, answers) if pending is not None]
        self._check_deadlines()
        return settled

    def fail_pending(self, error: BaseException) -> None:
        """Fail all pending requests."""
        for pending in self._pending.values():
            if not pending.answer.done():
                pending.answer.set_exception(error)
        self._pending.clear()
        self.load = 0

    async def pause(self) -> None:
        """Stop decoding; requests are kept."""
        await self._call("pause", what="pause")
        self.paused = True

    async def resume(self) -> None:
        """Resume decoding."""
        await self._call("resume", what="go on")
        self.paused = False
        self._reset_deadlines()

    async def begin_load(self, policy: str, version: int, adapter: Mapping[str, Any] | None) -> None:
        """Start to load a version from buckets, and discard a load that broke off."""
        await self._call("begin_load", policy, version, adapter, what="expect new weights")

    async def load_bucket(self, bucket: Any) -> None:
        """Load the next bucket, given by reference. Returns as soon as there is room for another."""
        await self._call("load_bucket", bucket, what="take weights")

    async def finish_load(self) -> ReceivedWeights:
        """Complete the load, and return the record of what arrived."""
        received: ReceivedWeights = await self._call("finish_load", what="load weights")
        return received

    async def logprobs(self, policy: str, version: int, sequences: Sequence[Int32]) -> list[Float32]:
        """Compute with this version, for each sequence (T,), the log-probabilities (T - 1,) after its first token."""
        logprobs: list[Float32] = await self._call("logprobs", policy, version, sequences, what="answer a probe")
        return logprobs

    async def activate(self, policy: str, version: int) -> None:
        """Sample with this verified version from now on."""
        await self._call("activate", policy, version, what="go on with new weights")
        self.versions[policy] = version
        if policy not in self._config.adapter_policies:
            self.paused = False
            self._reset_deadlines()

    async def sleep(self) -> None:
        """Free the GPU's memory, after `pause`; does nothing on a CPU, or where it sleeps already."""
        if not self._asleep:
            await self._call("sleep", what="give its memory away")
            self._asleep = True

    async def wake(self, tag: str) -> None:
        """Allocate GPU memory again for `tag`, weights or kv_cache; does nothing on a CPU."""
        self._asleep = False
        await self._call("wake", tag, what="take its memory again")

    async def _call(self, method: str, *args: Any, what: str, deadline_s: float | None = None) -> Any:
        if self.lost is not None:
            raise type(self.lost)(str(self.lost), actor=self.name)
        actor = self.actor
        try:
            call = actor.call(method, *args)
            return await self._ray_actors.wait_for(call, deadline_s=deadline_s or self._deadlines.sync_s, what=what)
        except EngineLost as lost:
            self._lose(actor, lost)
            raise
        except MappaError:
            raise
        except Exception as error:
            failed = ActorFailed.of(actor, error, name=self.name)
            self._lose(actor, failed)
            raise failed from error

    def _lose(self, actor: Actor, lost: EngineLost) -> None:
        """Record that an actor is lost, unless another has replaced it."""
        if self._actor is actor:
            self.lost = lost

    def _send(self, wave: RequestWave) -> None:
        if wave:
            # The call fails only with its engine, which `poll` detects.
            with suppress(EngineLost):
                self.actor.call("submit", *wave)

    def _resolve(self, answer: RequestResult) -> PendingRequest | None:
        pending = self._pending.pop(answer.id, None)
        if pending is None:
            return None
        self.load -= pending.cost
        if not pending.answer.done():
            if answer.generation is None:
                pending.answer.set_exception(EngineError(f"{self.actor} refused a request: {answer.error}"))
            else:
                pending.answer.set_result(answer.generation)
        return pending

    def _check_deadlines(self) -> None:
        limit = self._deadlines.call_s
        oldest = next((pending.started_at for pending in self._pending.values()), math.inf)  # they are in order
        if not self.paused and self.polled_s - oldest > limit:
            message = f"{self.actor} did not finish an action within {limit:g} s (engine.options.call_s)"
            self.lost = ActorTimeout(message, actor=self.name)
            raise self.lost

    def _reset_deadlines(self) -> None:
        for pending in self._pending.values():
            pending.started_at = self.polled_s


HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Lets the kernel give huge pages to glibc's malloc. New weights are loaded into new memory, and page faults of 4 KB
take a third of that time. Learners reuse theirs, and gain nothing."""


def vllm_environment(device: str, dtype: str) -> dict[str, str]:
    """Environment variables for vLLM: its engine core runs in the actor's process, and so dies with it."""
    common = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    if device == "cuda":
        # FlashInfer's sampler exposes no log-probabilities after top-p and top-k, and compiles its kernels with nvcc.
        sampler = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
        return {**common, **sampler, **(FLOAT32_VARIABLES if dtype == "float32" else {})}
    # Compilation takes seconds and gains nothing; engines that bind threads to cores would all bind to the first ones.
    return {**common, "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", **HUGE_PAGES}
