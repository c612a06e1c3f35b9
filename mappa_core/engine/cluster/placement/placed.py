"""Who runs where, and what it takes: the value that a map of a cluster comes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mappa_core.engine.cluster.placement.layout import LearnerGroup, SamplerPool
from mappa_core.engine.cluster.placement.loads import MOMENTS, Load, Moment
from mappa_core.engine.cluster.placement.resources import Device, Slot

_PIN = 0.001
"""As much of a node's own resource as says which node is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Who runs where. Groups and pools name their slots by number in `slots`, which are those in use; `loads` is what
    each actor takes of each.

    `notes` say what is left idle, and what would use it.
    """

    device: Device
    dtype: str
    slots: tuple[Slot, ...]
    groups: tuple[LearnerGroup, ...]
    pools: tuple[SamplerPool, ...]
    loads: tuple[Load, ...]
    notes: tuple[str, ...] = ()

    def on(self, slot: int) -> tuple[Load, ...]:
        """What runs on a slot."""
        return tuple(load for load in self.loads if load.slot == slot)

    def bytes_at(self, slot: int, moment: Moment) -> int:
        """What a slot holds at a moment."""
        return sum(load.bytes_at(moment) for load in self.on(slot))

    @property
    def fits(self) -> bool:
        """Whether no GPU is overdrawn. The memory of CPUs is the machine's, and not looked at."""
        return all(slot.size is None or self.peak(number)[0] <= slot.size for number, slot in enumerate(self.slots))

    def peak(self, slot: int) -> tuple[int, Moment]:
        """The most that a slot holds, and when."""
        return max((self.bytes_at(slot, moment), moment) for moment in MOMENTS)

    @property
    def bundles(self) -> tuple[Mapping[str, float], ...]:
        """What to reserve for each slot, in Ray's words; with several nodes each slot is held to its own."""
        several = len({slot.host for slot in self.slots}) > 1
        own: dict[str, float] = {"CPU": 1.0} if self.device == "cpu" else {"GPU": 1.0, "CPU": 1.0}
        return tuple({**own, f"node:{slot.host}": _PIN} if several else own for slot in self.slots)

    @property
    def host_bytes(self) -> Mapping[str, int]:
        """Memory of each node itself: of what waits there for a GPU, or of all that runs on its CPUs."""
        sums = {slot.host: 0 for slot in self.slots}
        for number, slot in enumerate(self.slots):
            sums[slot.host] += sum(load.host_bytes for load in self.on(number))
            if self.device == "cpu":
                sums[slot.host] += self.peak(number)[0]
        return sums
