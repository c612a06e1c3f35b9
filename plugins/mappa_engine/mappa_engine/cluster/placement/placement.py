"""A placement: which learners and samplers run on which devices, and their memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mappa_engine.cluster.placement.candidates import GroupPlacement, PoolPlacement
from mappa_engine.cluster.placement.memory import PHASES, MemoryLoad, Phase
from mappa_engine.cluster.placement.resources import Device, DeviceSlot

_PIN = 0.001
"""Fraction of Ray's `node:ADDRESS` resource that pins a bundle to the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Learner groups and sampler pools on devices. They name their slots by index in `slots`, which are those in use;
    `loads` is the memory of each actor on each slot.

    `notes` describe idle devices, and which options would use them.
    """

    device: Device
    dtype: str
    slots: tuple[DeviceSlot, ...]
    groups: tuple[GroupPlacement, ...]
    pools: tuple[PoolPlacement, ...]
    loads: tuple[MemoryLoad, ...]
    notes: tuple[str, ...] = ()

    def loads_on(self, slot: int) -> tuple[MemoryLoad, ...]:
        """Return the loads on a slot."""
        return tuple(load for load in self.loads if load.slot == slot)

    def bytes_at(self, slot: int, phase: Phase) -> int:
        """Sum the memory on a slot in a phase."""
        return sum(load.bytes_at(phase) for load in self.loads_on(slot))

    @property
    def fits(self) -> bool:
        """Whether everything fits into GPU memory. The memory of CPUs is the machine's, and not checked."""
        return all(slot.size is None or self.peak(number)[0] <= slot.size for number, slot in enumerate(self.slots))

    def peak(self, slot: int) -> tuple[int, Phase]:
        """Return the peak memory on a slot, and its phase."""
        return max((self.bytes_at(slot, phase), phase) for phase in PHASES)

    @property
    def bundles(self) -> tuple[Mapping[str, float], ...]:
        """Ray resources to reserve for each slot; with several nodes each is pinned to its node."""
        several = len({slot.host for slot in self.slots}) > 1
        own: dict[str, float] = {"CPU": 1.0} if self.device == "cpu" else {"GPU": 1.0, "CPU": 1.0}
        return tuple({**own, f"node:{slot.host}": _PIN} if several else own for slot in self.slots)

    @property
    def host_bytes(self) -> Mapping[str, int]:
        """Host memory by node: states offloaded from GPUs, or everything that runs on its CPUs."""
        sums = {slot.host: 0 for slot in self.slots}
        for number, slot in enumerate(self.slots):
            sums[slot.host] += sum(load.host_bytes for load in self.loads_on(number))
            if self.device == "cpu":
                sums[slot.host] += self.peak(number)[0]
        return sums
