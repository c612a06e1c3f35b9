"""Ray, as the engine sees it: processes that are started, asked, watched and ended, each wait with a deadline."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import structlog

from mappa_core.engine.cluster.fleet.actor import WATCH, Actor, Call, reason
from mappa_core.engine.cluster.fleet.cluster import Cluster, connect
from mappa_core.engine.cluster.fleet.waiting import settled
from mappa_core.errors import ActorLate, ConfigError, EngineLost
from mappa_core.records import Process

log = structlog.get_logger()

BEAT_S = 5.0
"""Seconds between two signs of life that are asked of an actor."""

END_S = 30.0
"""Seconds that a process may take to end after it was killed."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A reserved share of one machine: bundle `index` of the placement group `group`."""

    group: Any
    index: int
    resources: Mapping[str, float]


class Fleet:
    """The actors of one run. Made by `await Fleet.open(…)`; nothing in it belongs to one event loop."""

    def __init__(self, cluster: Cluster, *, silent_s: float) -> None:
        self._cluster = cluster
        self._silent_s = silent_s
        self._actors: list[Actor] = []
        self._groups: list[Any] = []
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._keep_watch, name="fleet watch", daemon=True)
        self._watch.start()

    @classmethod
    async def open(
        cls,
        address: str | None = None,
        *,
        asked: str = "engine.options.address",
        cpus: float | None = None,
        gpus: float | None = None,
        store_mb: int | None = None,
        deadline_s: float = 120.0,
        silent_s: float = 60.0,
        logs: Path | None = None,
    ) -> Fleet:
        """Start Ray on this machine (`address` None), or connect to the one at `auto` or HOST:PORT, which the
        setting `asked` names.

        A Ray that is started here hands out `cpus` and `gpus` (None: those that it finds) and keeps at most `store_mb`
        megabytes of objects (None: a share of the memory); what its actors wrote is copied to the folder `logs` when it
        ends. An actor that gives no sign of life for `silent_s` seconds counts as hung. Raises ConfigError where Ray
        cannot be reached, EngineLost where it does not start by the deadline.
        """
        cluster = await connect(
            address,
            asked=asked,
            deadline_s=deadline_s,
            cpus=cpus,
            gpus=gpus,
            store_bytes=None if store_mb is None else store_mb << 20,
            logs=None if logs is None else str(logs),
        )
        return cls(cluster, silent_s=silent_s)

    @property
    def actors(self) -> tuple[Actor, ...]:
        """All that were started and not ended, lost ones too."""
        return tuple(self._actors)

    @property
    def local(self) -> bool:
        """Whether this run started Ray itself, and so has all its actors on this machine."""
        return self._cluster.head is not None

    @property
    def processes(self) -> tuple[Process, ...]:
        """Those of all actors that were started and not ended."""
        return tuple(actor.process for actor in self._actors if actor.process is not None)

    def nodes(self) -> list[dict[str, Any]]:
        """The machines that are alive, as Ray describes them (NodeManagerAddress, Resources, …)."""
        import ray

        return [node for node in ray.nodes() if node["Alive"]]

    def resources(self) -> dict[str, float]:
        """What all machines have together, taken or not: CPU, GPU, memory in bytes, and `node:ADDRESS` of each."""
        import ray

        return {name: float(value) for name, value in ray.cluster_resources().items()}

    def put(self, value: Any) -> Any:
        """A reference to `value` in the object store; actors that get it as an argument get the value."""
        import ray
        from ray.exceptions import RayError

        try:
            return ray.put(value)
        except RayError as error:
            raise EngineLost(f"Ray's object store took no value: {reason(error)}") from error

    async def reserve(
        self, bundles: Sequence[Mapping[str, float]], *, deadline_s: float, strategy: str = "PACK"
    ) -> tuple[Slot, ...]:
        """Set shares of the cluster's machines apart, all of them or none.

        `bundles` are resources (CPU, GPU) that must be on one machine each. Raises ConfigError, with what is wanted and
        what is there, where the cluster cannot give it by the deadline.
        """
        import ray
        from ray.util import placement_group, remove_placement_group

        wanted = [dict(bundle) for bundle in bundles]
        if self.local and (lacking := _lacking(wanted, self.resources())):
            raise ConfigError(f"placement does not fit: {lacking}. {_account(wanted, self.resources())}")
        group = placement_group(wanted, strategy=strategy)
        try:
            await settled([group.ready().future()], deadline_s)
        except TimeoutError:
            free = ray.available_resources()
            remove_placement_group(group)
            raise ConfigError(
                f"the cluster did not give the resources of this run within {deadline_s:g} s. {_account(wanted, free)}"
            ) from None
        self._groups.append(group)
        return tuple(Slot(group, index, bundle) for index, bundle in enumerate(wanted))

    async def free(self, slots: Sequence[Slot]) -> None:
        """Give reserved shares back; actors in them are ended by Ray."""
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
        slot: Slot | None = None,
        cpus: float = 0.0,
        gpus: float = 0.0,
        threads: int = 1,
        libraries: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> Actor:
        """Start a process and make `actor(*args, **kwargs)` in it, in the thread that its methods are called in.

        `name` is the actor's in messages and logs; `role` and the releases of `libraries` are told by its `process`.
        `cpus` and `gpus` are taken from `slot`. `environment` is added to what every actor gets. With several
        `threads`, as many of its methods run at once. What its constructor raises is raised here.
        """
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        from mappa_core.engine.cluster.fleet.host import Host

        strategy = "DEFAULT"
        if slot is not None:
            strategy = PlacementGroupSchedulingStrategy(slot.group, placement_group_bundle_index=slot.index)
        host = ray.remote(concurrency_groups={WATCH: 2})(Host)
        handle = host.options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_restarts=0,
            max_task_retries=0,
            max_concurrency=threads,
            scheduling_strategy=strategy,
            runtime_env={"env_vars": {**self._cluster.variables, **(environment or {})}},
        ).remote()
        one = Actor(name, handle, self._cluster.logs)
        self._actors.append(one)
        try:
            until = time.monotonic() + deadline_s
            one.process = await self.ask(one.introduce(role, libraries), deadline_s=deadline_s, what=f"start {name}")
            building = one.build(actor, *args, **kwargs)
            await self.ask(building, deadline_s=until - time.monotonic(), what=f"start {name}")
        except BaseException:
            await self.end(one)
            raise
        log.info("an actor started", actor=name, role=role, pid=one.process.pid, host=one.process.host)
        return one

    @overload
    async def ask(self, calls: Call, *, deadline_s: float, what: str) -> Any: ...
    @overload
    async def ask(self, calls: Sequence[Call], *, deadline_s: float, what: str) -> list[Any]: ...
    async def ask(self, calls: Call | Sequence[Call], *, deadline_s: float, what: str) -> Any:
        """What calls give, in order; the first that fails ends the wait.

        Raises what an actor's program raised, with a note of where; ActorLost where an actor died; ActorLate where one
        hangs, or did not answer within `deadline_s` seconds. `what` says in messages what was waited for. Calls that
        were not waited for go on.
        """
        several = [calls] if isinstance(calls, Call) else list(calls)
        try:
            await settled([call.future for call in several], deadline_s)
        except TimeoutError:
            late = next(call for call in several if not call.future.done())
            message = f"{late.actor} did not {what} within {deadline_s:g} s"
            raise ActorLate(message, actor=late.actor.name) from None
        for call in several:
            if call.future.done():
                call.future.result()  # raises where the call failed; others may not be done
        values = [call.future.result() for call in several]
        return values[0] if isinstance(calls, Call) else values

    async def end(self, actor: Actor) -> None:
        """Kill an actor's process and wait until it is gone. Raises ActorLate where it cannot be killed."""
        actor.ended = True
        await asyncio.to_thread(actor.kill)
        until = time.monotonic() + END_S
        while not actor.gone:
            if time.monotonic() > until:
                raise ActorLate(f"{actor} was killed, and is there {END_S:g} s later", actor=actor.name)
            await asyncio.sleep(0.02)
        if actor in self._actors:
            self._actors.remove(actor)

    async def close(self) -> None:
        """End all actors, give reserved resources back, and end Ray where it was started here."""
        self._closing.set()
        await asyncio.to_thread(self._watch.join)
        for actor in self._actors:
            actor.ended = True
        try:
            # A Ray of our own takes everything with it, even where some of it is broken.
            if not self.local:
                await asyncio.gather(*(self.end(actor) for actor in self.actors))
                await self.free([Slot(group, 0, {}) for group in self._groups])
        finally:
            await self._cluster.close()

    def _keep_watch(self) -> None:
        while not self._closing.wait(BEAT_S):
            for actor in self.actors:
                actor.check(math.ceil(self._silent_s / BEAT_S))


def _lacking(wanted: Sequence[Mapping[str, float]], there: Mapping[str, float]) -> str:
    """Which resources are too few for all bundles together, in words; empty where none is."""
    sums: Counter[str] = Counter()
    for bundle in wanted:
        sums.update(bundle)
    found = Counter(there)
    return ", ".join(f"{sums[name]:g} {name} of {found[name]:g}" for name in sorted(sums) if sums[name] > found[name])


def _account(wanted: Sequence[Mapping[str, float]], free: Mapping[str, float]) -> str:
    """What is wanted and what is there, for a message."""
    shares = Counter(" + ".join(f"{value:g} {name}" for name, value in sorted(bundle.items())) for bundle in wanted)
    asked = ", ".join(f"{count} x ({share})" for share, count in shares.items())
    there = Counter(free)
    given = ", ".join(f"{there[name]:g} {name}" for name in ("CPU", "GPU"))
    return f"Wanted, each on one machine: {asked}. Free: {given}."
