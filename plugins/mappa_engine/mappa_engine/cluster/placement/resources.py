"""Resources of a cluster: nodes, and their device slots for actors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mappa_core import ConfigError
from mappa_core.engine import Machine

Device = Literal["gpu", "cpu"]
KEPT_FREE = 0.08
"""Share of a GPU, and of a node's memory, that is left free: activations and what CUDA takes are estimates."""


def usable_bytes(size: int) -> int:
    """Return how much of a memory of `size` bytes is planned for."""
    return int(size * (1.0 - KEPT_FREE))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSlot:
    """A GPU, or in a cluster without GPUs a CPU, and its number on its node. `size` is the memory of a GPU in bytes;
    None for a CPU, which shares its node's memory."""

    host: str
    device: Device
    number: int
    size: int | None = None

    @property
    def usable(self) -> int | None:
        """Bytes of its memory that are planned for; None for a CPU."""
        return None if self.size is None else usable_bytes(self.size)

    def __str__(self) -> str:
        return f"{self.host} {self.device}{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The nodes of a cluster."""

    nodes: tuple[Machine, ...]

    @property
    def device(self) -> Device:
        """Device type of learners and samplers: GPUs if the cluster has any."""
        return "gpu" if any(node.gpus for node in self.nodes) else "cpu"

    @property
    def memory(self) -> Mapping[str, int]:
        """Memory of each node by host, in bytes; without those whose memory is not known."""
        return {node.host: node.memory_bytes for node in self.nodes if node.memory_bytes}

    @property
    def slots(self) -> tuple[DeviceSlot, ...]:
        """All GPUs, or in a cluster without GPUs all CPUs, in the order of the nodes.

        Raises:
            ConfigError: there are none, two nodes have one name, or a GPU has no memory.
        """
        hosts = [node.host for node in self.nodes]
        if len(set(hosts)) < len(hosts):
            raise ConfigError(
                f"two nodes of the cluster have one name: {', '.join(hosts)}. Give each an address of its own."
            )
        slots = [slot for node in self.nodes for slot in _slots_of(node, self.device)]
        if not slots:
            raise ConfigError(
                "the cluster has neither GPUs nor CPUs: start Ray with --num-cpus or --num-gpus, or plan with --gpus"
            )
        if self.device == "gpu" and any(not slot.size for slot in slots):
            raise ConfigError("the memory of the cluster's GPUs is not known: give it to a plan by --gpu-memory, in GB")
        return tuple(slots)


def _slots_of(node: Machine, device: Device) -> Sequence[DeviceSlot]:
    if device == "gpu":
        return [
            DeviceSlot(host=node.host, device=device, number=number, size=node.gpu_bytes) for number in range(node.gpus)
        ]
    return [DeviceSlot(host=node.host, device=device, number=number) for number in range(node.cpus)]
