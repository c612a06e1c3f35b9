"""What a cluster has: nodes, and the slots on them that actors are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mappa_core.errors import ConfigError

Device = Literal["gpu", "cpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine. `gpu_bytes` is the memory of each of its GPUs."""

    host: str
    cpus: int
    gpus: int = 0
    gpu_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A GPU, or where there is none a CPU, and its number on its node. `size` is the memory of a GPU in bytes, None of
    a CPU, whose memory is its node's."""

    host: str
    device: Device
    number: int
    size: int | None = None

    def __str__(self) -> str:
        return f"{self.host} {self.device}{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The nodes of a cluster."""

    nodes: tuple[Node, ...]

    @property
    def device(self) -> Device:
        """What learners and samplers compute on: GPUs wherever there is one."""
        return "gpu" if any(node.gpus for node in self.nodes) else "cpu"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All GPUs, or where there is none all CPUs, in the order of the nodes.

        Raises:
            ConfigError: there are none, two nodes have one name, or a GPU has no memory.
        """
        hosts = [node.host for node in self.nodes]
        if len(set(hosts)) < len(hosts):
            raise ConfigError(f"two nodes of the cluster have one name: {', '.join(hosts)}")
        slots = [slot for node in self.nodes for slot in _slots_of(node, self.device)]
        if not slots:
            raise ConfigError("the cluster has neither GPUs nor CPUs")
        if self.device == "gpu" and any(not slot.size for slot in slots):
            raise ConfigError("the memory of the cluster's GPUs is not known")
        return tuple(slots)


def _slots_of(node: Node, device: Device) -> Sequence[Slot]:
    if device == "gpu":
        return [Slot(host=node.host, device=device, number=one, size=node.gpu_bytes) for one in range(node.gpus)]
    return [Slot(host=node.host, device=device, number=one) for one in range(node.cpus)]
