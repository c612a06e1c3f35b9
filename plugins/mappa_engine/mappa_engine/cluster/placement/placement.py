"""A placement: which learners and samplers run on which devices, and their memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from mappa_engine.cluster.placement.layouts import GroupPlacement, PoolPlacement
from mappa_engine.cluster.placement.memory import DRIVER_BYTES, PHASES, ActorRole, MemoryLoad, Phase
from mappa_engine.cluster.placement.resources import Device, DeviceSlot, usable_bytes
from mappa_engine.options import PlacedOptions

_PIN = 0.001
"""Fraction of Ray's `node:ADDRESS` resource that pins a bundle to the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Learner groups and sampler pools on devices. They name their slots by index in `slots`, which are those in use;
    `loads` is the memory of each actor on each slot.

    `options` are the decided ones, and `reasons` say why. `notes` describe idle devices, and which options would use
    them, and a node that has less memory than its CPUs would take.
    """

    options: PlacedOptions
    device: Device
    dtype: str
    slots: tuple[DeviceSlot, ...]
    groups: tuple[GroupPlacement, ...]
    pools: tuple[PoolPlacement, ...]
    loads: tuple[MemoryLoad, ...]
    memory: Mapping[str, int] = field(default_factory=dict)
    """Memory of the nodes by host, in bytes, as far as it is known."""
    cores: Mapping[str, int] = field(default_factory=dict)
    """Cores of the nodes by host."""
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def loads_on(self, slot: int) -> tuple[MemoryLoad, ...]:
        """Return the loads on a slot."""
        return tuple(load for load in self.loads if load.slot == slot)

    def bytes_at(self, slot: int, phase: Phase) -> int:
        """Sum the memory on a slot in a phase."""
        return sum(load.bytes_at(phase) for load in self.loads_on(slot))

    @property
    def fits(self) -> bool:
        """Whether everything fits into the GPUs and their nodes' memory, with some left free. What CPUs compute with is
        not checked: it shares the memory of everything else on the machine."""
        return not any(self.excess(number) > 0 for number in range(len(self.slots))) and not self.crowded_hosts

    def excess(self, slot: int) -> int:
        """Return the bytes by which the peak on a slot exceeds what is planned for; below zero: the bytes left."""
        usable = self.slots[slot].usable
        return -1 if usable is None else self.peak(slot)[0] - usable

    @property
    def crowded_hosts(self) -> tuple[str, ...]:
        """GPU nodes whose own memory is too small."""
        if self.device == "cpu":
            return ()
        known = ((host, taken) for host, taken in self.host_bytes.items() if host in self.memory)
        return tuple(host for host, taken in known if taken > usable_bytes(self.memory[host]))

    @property
    def max_engines_per_slot(self) -> int:
        """Maximum number of engines on one slot."""
        return max(Counter(slot for pool in self.pools for engine in pool.engines for slot in engine).values())

    def peak(self, slot: int) -> tuple[int, Phase]:
        """Return the peak memory on a slot, and its phase."""
        return max((self.bytes_at(slot, phase), phase) for phase in PHASES)

    def cores_for(self, role: ActorRole, slots: Collection[int]) -> int:
        """Return how many cores each actor of `role` on these slots has, at least 1: those that compute at the same
        time share their node's, and learners wait for samplers unless some staleness is allowed."""
        together = [load for load in self.loads if load.role == role or self.options.max_staleness > 0]
        actors = Counter(self.slots[load.slot].host for load in together)
        return max(1, min(self.cores[host] // actors[host] for host in {self.slots[slot].host for slot in slots}))

    @property
    def bundles(self) -> tuple[Mapping[str, float], ...]:
        """Ray resources to reserve for each slot; with several nodes each is pinned to its node."""
        several = len({slot.host for slot in self.slots}) > 1
        own: dict[str, float] = {"CPU": 1.0} if self.device == "cpu" else {"GPU": 1.0, "CPU": 1.0}
        return tuple({**own, f"node:{slot.host}": _PIN} if several else own for slot in self.slots)

    @property
    def host_bytes(self) -> Mapping[str, int]:
        """Host memory by node: what GPUs leave to it, or everything that runs on its CPUs."""
        return {host: sum(parts.values()) for host, parts in self.host_parts.items()}

    @property
    def host_parts(self) -> Mapping[str, Mapping[str, int]]:
        """The same by node and purpose; on a single node with what the run itself takes beside CPUs that compute."""
        sums: dict[str, Counter[str]] = {slot.host: Counter() for slot in self.slots}
        for number, slot in enumerate(self.slots):
            parts = sums[slot.host]
            on_cpu = {"learners and samplers": self.peak(number)[0]} if self.device == "cpu" else {}
            for purposes in (on_cpu, *(load.host for load in self.loads_on(number))):
                for purpose, size in purposes.items():
                    parts[purpose] += size
        if self.device == "cpu" and len(sums) == 1:
            sums[self.slots[0].host]["process"] += DRIVER_BYTES
        return sums
