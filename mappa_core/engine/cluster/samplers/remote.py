"""One engine, as the driver sees it: calls with deadlines, and what it still owes."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from mappa_core.engine.cluster.fleet.actor import Actor
from mappa_core.engine.cluster.fleet.fleet import Fleet, Slot
from mappa_core.engine.cluster.samplers.server import THREADS, SamplerServer
from mappa_core.engine.cluster.samplers.values import Answer, Drawn, Request, Setup, Wave
from mappa_core.engine.cluster.sync.receipt import Received
from mappa_core.errors import ActorLate, EngineError, EngineLost
from mappa_core.records import Float32, Int32

POLL_S = 10.0
"""Seconds that an engine without an answer keeps the driver waiting."""
SILENT_S = 60.0
"""Seconds beyond these after which it counts as hung."""
ROLE = "sampler"
_LIBRARIES = ("vllm", "torch", "ray")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What an engine takes of the cluster."""

    slot: Slot | None = None
    cpus: float = 0.0
    gpus: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Seconds that starting an engine, one of its calls, and an action may take."""

    start_s: float
    sync_s: float
    call_s: float


@dataclass(slots=True, eq=False)
class Owed:
    """A request and who waits for it. `wave` is the number of its wave at the engine that has it."""

    request: Request
    answer: asyncio.Future[Drawn]
    wave: int = 0
    since: float = field(default_factory=time.monotonic)

    @property
    def cost(self) -> int:
        """Tokens that it may take to compute."""
        return len(self.request.prompt) + self.request.sampling.max_tokens


class RemoteEngine:
    """An actor that samples. Where it is lost, calls raise EngineLost until `restart`."""

    def __init__(self, name: str, fleet: Fleet, setup: Setup, seat: Seat, deadlines: Deadlines) -> None:
        self.name = name
        self.restarts = 0
        self.lost: EngineLost | None = None
        self.stale = False
        """Whether it was started again and has not been brought its weights since."""
        self.paused = False
        self.load = 0
        self.versions: dict[str, int] = {}
        self._fleet = fleet
        self._setup = setup
        self._seat = seat
        self._deadlines = deadlines
        self._actor: Actor | None = None
        self._owed: dict[str, Owed] = {}
        self._waves = 0

    @property
    def actor(self) -> Actor:
        """The process as it is now."""
        if self._actor is None:
            raise EngineError(f"the engine {self.name} was not started")
        return self._actor

    async def start(self, *, paused: bool) -> None:
        """Start the process and open the model in it."""
        self._actor = await self._fleet.start(
            SamplerServer,
            self._setup,
            paused=paused,
            name=self.name,
            role=ROLE,
            deadline_s=self._deadlines.start_s,
            slot=self._seat.slot,
            cpus=self._seat.cpus,
            gpus=self._seat.gpus,
            threads=THREADS,
            libraries=_LIBRARIES,
            environment=environment(self._setup.device),
        )
        self.paused, self.lost = paused, None

    async def restart(self) -> None:
        """Start a process anew in the place of a lost one. It is paused, with the weights of the model's folder, and
        has been asked again what the lost one owed."""
        await self.end()
        await self.start(paused=True)
        self.stale = True
        self.restarts += 1
        for _, wave in itertools.groupby(self._owed.values(), key=lambda one: one.wave):
            self._send(tuple(one.request for one in wave))

    async def end(self) -> None:
        """Kill the process."""
        if self._actor is not None:
            await self._fleet.end(self._actor)
            self._actor = None

    def submit(self, owed: Sequence[Owed]) -> None:
        """Have requests sampled together; their futures get the answers."""
        self._waves += 1
        for one in owed:
            one.wave = self._waves
            self._owed[one.request.id] = one
            self.load += one.cost
        if self.lost is None:
            self._send(tuple(one.request for one in owed))

    def forget(self, request: Request) -> None:
        """Nobody waits for this request any more."""
        one = self._owed.pop(request.id, None)
        if one is not None:
            self.load -= one.cost
            if self.lost is None:
                self.actor.call("forget", request.id)

    async def poll(self) -> list[Owed]:
        """Wait a while for answers and hand them on; what was answered. Raises EngineLost where the engine is lost, or
        an action takes longer than it may."""
        answers = await self._ask("finished", POLL_S, what="answer", deadline_s=POLL_S + SILENT_S)
        settled = [one for one in map(self._settle, answers) if one is not None]
        self._check_clocks()
        return settled

    def abandon(self, error: BaseException) -> None:
        """Tell everyone who waits that there will be no answer."""
        for one in self._owed.values():
            if not one.answer.done():
                one.answer.set_exception(error)
        self._owed.clear()
        self.load = 0

    async def pause(self) -> None:
        """Stop decoding; requests stay."""
        await self._ask("pause", what="pause")
        self.paused = True

    async def resume(self) -> None:
        """Go on decoding."""
        await self._ask("resume", what="go on")
        self.paused = False
        self._restart_clocks()

    async def begin(self, policy: str, version: int, adapter: Mapping[str, Any] | None) -> None:
        """Expect the buckets of this version, and forget those of a load that broke."""
        await self._ask("begin", policy, version, adapter, what="expect new weights")

    async def take(self, bucket: Any) -> None:
        """The next bucket, by reference. Returns as soon as there is room for another."""
        await self._ask("take", bucket, what="take weights")

    async def finish(self) -> Received:
        """Nothing more comes: load it, and say what arrived."""
        received: Received = await self._ask("finish", what="load weights")
        return received

    async def logprobs(self, policy: str, version: int, sequences: Sequence[Int32]) -> list[Float32]:
        """By the weights of this version: of each sequence (T,) the log-probability of every token after the first."""
        found: list[Float32] = await self._ask("logprobs", policy, version, sequences, what="answer a probe")
        return found

    async def admit(self, policy: str, version: int) -> None:
        """This version is verified: sample by it from now on."""
        await self._ask("admit", policy, version, what="go on with new weights")
        self.versions[policy] = version
        if policy not in self._setup.policies:
            self.paused = False
            self._restart_clocks()

    async def sleep(self) -> None:
        """Give the GPU's memory away, after `pause`; nothing on a CPU."""
        await self._ask("sleep", what="give its memory away")

    async def wake(self, tag: str) -> None:
        """Take the GPU's memory again for `tag`, weights or kv_cache; nothing on a CPU."""
        await self._ask("wake", tag, what="take its memory again")

    async def _ask(self, method: str, *args: Any, what: str, deadline_s: float | None = None) -> Any:
        if self.lost is not None:
            raise type(self.lost)(str(self.lost), actor=self.name)
        actor = self.actor
        try:
            call = actor.call(method, *args)
            return await self._fleet.ask(call, deadline_s=deadline_s or self._deadlines.sync_s, what=what)
        except EngineLost as lost:
            if self._actor is actor:
                self.lost = lost
            raise

    def _send(self, wave: Wave) -> None:
        if wave:
            # What becomes of the call is what becomes of the engine, and `poll` sees that.
            with suppress(EngineLost):
                self.actor.call("submit", *wave)

    def _settle(self, answer: Answer) -> Owed | None:
        one = self._owed.pop(answer.id, None)
        if one is None:
            return None
        self.load -= one.cost
        if not one.answer.done():
            if answer.drawn is None:
                one.answer.set_exception(EngineError(f"{self.actor} refused a request: {answer.refused}"))
            else:
                one.answer.set_result(answer.drawn)
        return one

    def _check_clocks(self) -> None:
        limit = self._deadlines.call_s
        oldest = min((one.since for one in self._owed.values()), default=math.inf)
        if not self.paused and time.monotonic() - oldest > limit:
            message = f"{self.actor} did not finish an action within {limit:g} s (engine.options.call_s)"
            self.lost = ActorLate(message, actor=self.name)
            raise self.lost

    def _restart_clocks(self) -> None:
        for one in self._owed.values():
            one.since = time.monotonic()


def environment(device: str) -> dict[str, str]:
    """What vLLM must find in its environment: the engine in this very process, so that it dies with it."""
    common = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
    if device == "cuda":
        return common
    # What would be compiled takes seconds and gains nothing; threads bound to cores would all meet on the first.
    return {**common, "OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
