"""Ray actors of one run: start, call, monitor and end processes, every wait with a deadline."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import structlog

from mappa_core import ConfigError
from mappa_core.engine import EngineLost, Process
from mappa_engine.cluster.actors.actor import WATCH_GROUP, Actor, ActorCall, death_reason
from mappa_engine.cluster.actors.deadlines import wait_all
from mappa_engine.cluster.actors.ray_connection import RayConnection, connect
from mappa_engine.cluster.errors import ActorTimeout, NodeLost

log = structlog.get_logger()

HEARTBEAT_S = 5.0
"""Seconds between two heartbeat requests to an actor."""

_NODE = "node:"

KILL_TIMEOUT_S = 30.0
"""Seconds that a killed process may take to exit."""


@dataclass(frozen=True, slots=True)
class ReservedBundle:
    """Reserved resources on one machine: bundle `index` of the placement group `group`."""

    group: Any
    index: int
    resources: Mapping[str, float]

    @property
    def node(self) -> str | None:
        """Address of the node that it is bound to; None where Ray chose one."""
        return next(iter(_bound_nodes([self.resources])), None)


class _GpuLook:
    """Actor that says which GPU it was given."""

    def gpu_numbers(self) -> list[str]:
        """Return the numbers of the GPUs of this actor."""
        import ray

        return [str(number) for number in ray.get_gpu_ids()]


class RayActors:
    """The actors of one run, created by `await RayActors.open(…)`. It is not bound to an event loop."""

    def __init__(self, connection: RayConnection, *, max_silence_s: float) -> None:
        self._connection = connection
        self._max_silence_s = max_silence_s
        self._actors: list[Actor] = []
        self._groups: list[Any] = []
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch_heartbeats, name="ray actor watch", daemon=True)
        self._watcher.start()

    @classmethod
    async def open(
        cls,
        address: str | None = None,
        *,
        address_setting: str = "engine.options.address",
        cpus: float | None = None,
        gpus: float | None = None,
        store_mb: int | None = None,
        deadline_s: float = 120.0,
        max_silence_s: float = 60.0,
        logs: Path | None = None,
    ) -> RayActors:
        """Start Ray on this machine (`address` None), or connect to the one at `auto` or HOST:PORT. Error messages
        call the address `address_setting`.

        A Ray that is started here schedules `cpus` and `gpus` (None: those that it finds) and stores at most `store_mb`
        megabytes of objects (None: a share of the memory); the output of its actors is copied to the folder `logs` when
        it ends. An actor without a heartbeat for `max_silence_s` seconds counts as hung. Raises ConfigError where Ray
        cannot be reached, EngineLost where it does not start by the deadline.
        """
        connection = await connect(
            address,
            address_setting=address_setting,
            deadline_s=deadline_s,
            cpus=cpus,
            gpus=gpus,
            store_bytes=None if store_mb is None else store_mb << 20,
            logs=None if logs is None else str(logs),
        )
        return cls(connection, max_silence_s=max_silence_s)

    @property
    def members(self) -> tuple[Actor, ...]:
        """All actors that were started and not ended, including lost ones."""
        return tuple(self._actors)

    @property
    def local(self) -> bool:
        """Whether this run started Ray itself, so that all actors are on this machine."""
        return self._connection.head is not None

    @property
    def processes(self) -> tuple[Process, ...]:
        """The processes of all actors that were started and not ended."""
        return tuple(actor.process for actor in self._actors if actor.process is not None)

    def nodes(self) -> list[dict[str, Any]]:
        """The live machines, as Ray describes them (NodeManagerAddress, Resources, …)."""
        import ray

        return [node for node in ray.nodes() if node["Alive"]]

    def resources(self) -> dict[str, float]:
        """Total resources of all machines, in use or free: CPU, GPU, memory in bytes, and `node:ADDRESS` of each."""
        import ray

        return {name: float(value) for name, value in ray.cluster_resources().items()}

    def put(self, value: Any) -> Any:
        """Put `value` into Ray's object store; returns a reference, which calls resolve to the value."""
        import ray
        from ray.exceptions import RayError

        try:
            return ray.put(value)
        except RayError as error:
            raise EngineLost(f"Ray's object store took no value: {death_reason(error)}") from error

    async def reserve(
        self, bundles: Sequence[Mapping[str, float]], *, deadline_s: float, strategy: str = "PACK"
    ) -> tuple[ReservedBundle, ...]:
        """Reserve resources on the cluster's machines, all bundles or none.

        Each of `bundles` is resources (CPU, GPU) on a single machine. Raises ConfigError, with the requested and the
        available resources, where the cluster cannot provide them by the deadline; NodeLost where a bundle is bound to
        a node (`node:ADDRESS`) that goes meanwhile.
        """
        import ray
        from ray.util import placement_group, remove_placement_group

        wanted = [dict(bundle) for bundle in bundles]
        if self.local and (lacking := _shortage(wanted, self.resources())):
            raise ConfigError(f"placement does not fit: {lacking}. {_demand_and_supply(wanted, self.resources())}")
        group = placement_group(wanted, strategy=strategy)
        try:
            await self._wait_for_bundles(group, wanted, deadline_s)
        except NodeLost:
            remove_placement_group(group)
            raise
        except TimeoutError:
            free = ray.available_resources()
            remove_placement_group(group)
            raise ConfigError(
                f"the cluster did not give the resources of this run within {deadline_s:g} s. "
                f"{_demand_and_supply(wanted, free)}"
            ) from None
        self._groups.append(group)
        return tuple(ReservedBundle(group, index, bundle) for index, bundle in enumerate(wanted))

    async def _wait_for_bundles(self, group: Any, wanted: Sequence[Mapping[str, float]], deadline_s: float) -> None:
        """Wait until a placement group has its resources. Ray itself would wait for nodes that are gone."""
        ready, left_s = group.ready().future(), deadline_s
        while True:
            with suppress(TimeoutError):
                return await wait_all([ready], min(left_s, HEARTBEAT_S))
            left_s -= HEARTBEAT_S
            if gone := _bound_nodes(wanted) - self._addresses():
                raise NodeLost(f"the node {min(gone)} is gone: nothing can be placed there", actor=None)
            if left_s <= 0:
                raise TimeoutError

    def _addresses(self) -> set[str]:
        return {node["NodeManagerAddress"] for node in self.nodes()}

    async def free(self, slots: Sequence[ReservedBundle]) -> None:
        """Release reserved bundles; Ray ends the actors in them."""
        from ray.util import remove_placement_group

        for group in {id(slot.group): slot.group for slot in slots}.values():
            remove_placement_group(group)
            self._groups.remove(group)

    async def start(
        self,
        actor: type,
        *args: Any,
        name: str,
        role: str,
        deadline_s: float,
        slot: ReservedBundle | None = None,
        cpus: float = 0.0,
        gpus: float = 0.0,
        threads: int = 1,
        libraries: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> Actor:
        """Start a process and construct `actor(*args, **kwargs)` in it, in the thread that runs its methods.

        `name` identifies the actor in messages and logs; its `process` records `role` and the versions of `libraries`.
        `cpus` and `gpus` are taken from `slot`. `environment` extends the variables that every actor gets. `threads` is
        how many of its methods may run at once. Errors of its constructor are raised here.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from mappa_engine.cluster.actors.actor_host import ActorHost

        strategy = "DEFAULT"
        if slot is not None:
            strategy = PlacementGroupSchedulingStrategy(slot.group, placement_group_bundle_index=slot.index)
        host = ray.remote(concurrency_groups={WATCH_GROUP: 2})(ActorHost)
        handle = host.options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=threads,
            scheduling_strategy=strategy,
            runtime_env={"env_vars": {**self._connection.variables, **(environment or {})}},
        ).remote()
        started = Actor(name, handle, self._connection.logs, node=None if slot is None else slot.node)
        self._actors.append(started)
        try:
            until = time.monotonic() + deadline_s
            started.process = await self.wait_for(
                started.identify(role, libraries), deadline_s=deadline_s, what=f"start {name}"
            )
            building = started.build(actor, *args, **kwargs)
            await self.wait_for(building, deadline_s=until - time.monotonic(), what=f"start {name}")
        except BaseException:
            await self.end(started)
            raise
        log.info("an actor started", actor=name, role=role, pid=started.process.pid, host=started.process.host)
        return started

    async def gpu_numbers(self, slots: Sequence[ReservedBundle], *, share: float, deadline_s: float) -> tuple[str, ...]:
        """Return the numbers, on their machine, of the GPUs of bundles that have one each and `share` of it free."""
        numbers: list[str] = []
        for slot in slots:
            name = f"look-gpu-{slot.index}"
            look = await self.start(_GpuLook, name=name, role="look", deadline_s=deadline_s, slot=slot, gpus=share)
            numbers += await self.wait_for(look.call("gpu_numbers"), deadline_s=deadline_s, what="look at its GPU")
            await self.end(look)
        return tuple(numbers)

    @overload
    async def wait_for(self, calls: ActorCall, *, deadline_s: float, what: str) -> Any: ...
    @overload
    async def wait_for(self, calls: Sequence[ActorCall], *, deadline_s: float, what: str) -> list[Any]: ...
    async def wait_for(self, calls: ActorCall | Sequence[ActorCall], *, deadline_s: float, what: str) -> Any:
        """Wait for calls and return their results in order; the first failure ends the wait.

        Raises what an actor's own code raised, with its traceback as a note; ActorLost where an actor died;
        ActorTimeout where one hangs or did not answer within `deadline_s` seconds. Messages describe the wait by
        `what`. Calls go on when the wait ends early.
        """
        several = [calls] if isinstance(calls, ActorCall) else list(calls)
        try:
            await wait_all([call.future for call in several], deadline_s)
        except TimeoutError:
            # The answer may have come since, from another thread.
            late = next((call for call in several if not call.future.done()), None)
            if late is not None:
                message = f"{late.actor} did not {what} within {deadline_s:g} s"
                raise ActorTimeout(message, actor=late.actor.name) from None
        for call in several:
            if call.future.done():
                call.future.result()  # raises where the call failed; others may not be done
        values = [call.future.result() for call in several]
        return values[0] if isinstance(calls, ActorCall) else values

    async def end(self, actor: Actor) -> None:
        """Kill an actor's process and wait for its exit. Raises ActorTimeout where it cannot be killed."""
        actor.stopping = True
        await asyncio.to_thread(actor.kill)
        until = time.monotonic() + KILL_TIMEOUT_S
        while not actor.exited:
            if time.monotonic() > until:
                raise ActorTimeout(f"{actor} was killed, and is there {KILL_TIMEOUT_S:g} s later", actor=actor.name)
            await asyncio.sleep(0.02)
        if actor in self._actors:
            self._actors.remove(actor)

    async def close(self) -> None:
        """End all actors, release reserved resources, and end Ray if it was started here."""
        self._closing.set()
        await asyncio.to_thread(self._watcher.join)
        for actor in self._actors:
            actor.stopping = True
        try:
            # A Ray that was started here ends all actors with it, even where parts of it are broken.
            if not self.local:
                await asyncio.gather(*(self.end(actor) for actor in self.members))
                await self.free([ReservedBundle(group, 0, {}) for group in self._groups])
        finally:
            await self._connection.close()

    def _watch_heartbeats(self) -> None:
        while not self._closing.wait(HEARTBEAT_S):
            for actor in self.members:
                actor.check_heartbeat(math.ceil(self._max_silence_s / HEARTBEAT_S))
            bound = [actor for actor in self.members if actor.node is not None]
            there = self._addresses() if bound else set()
            for actor in bound:
                if actor.node not in there:
                    actor.lose_node()


def _bound_nodes(bundles: Iterable[Mapping[str, float]]) -> set[str]:
    """Addresses of the nodes that bundles are bound to."""
    names = (name for bundle in bundles for name in bundle)
    return {name.removeprefix(_NODE) for name in names if name.startswith(_NODE)}


def _shortage(wanted: Sequence[Mapping[str, float]], there: Mapping[str, float]) -> str:
    """Describe the resources that do not suffice for all bundles together; empty where all do."""
    sums: Counter[str] = Counter()
    for bundle in wanted:
        sums.update(bundle)
    available = Counter(there)
    return ", ".join(
        f"{sums[name]:g} {name} of {available[name]:g}" for name in sorted(sums) if sums[name] > available[name]
    )


def _demand_and_supply(wanted: Sequence[Mapping[str, float]], free: Mapping[str, float]) -> str:
    """Describe the requested bundles and the free resources, for an error message."""
    shares = Counter(" + ".join(f"{value:g} {name}" for name, value in sorted(bundle.items())) for bundle in wanted)
    asked = ", ".join(f"{count} x ({share})" for share, count in shares.items())
    there = Counter(free)
    given = ", ".join(f"{there[name]:g} {name}" for name in ("CPU", "GPU"))
    return f"Wanted, each on one machine: {asked}. Free: {given}."
