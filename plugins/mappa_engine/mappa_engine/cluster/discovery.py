"""Discovers the CPUs and GPUs of a cluster's nodes."""

from __future__ import annotations

from typing import Any

from mappa_core.engine import Machine
from mappa_engine.cluster.actors import RayActors
from mappa_engine.cluster.placement import Resources

_PIN = 0.001


class GpuProbe:
    """Actor that reads the GPU memory of its node."""

    def gpu_bytes(self) -> int:
        """Return the memory of the smallest GPU of this node."""
        import torch

        return min(torch.cuda.get_device_properties(gpu).total_memory for gpu in range(torch.cuda.device_count()))


async def discover_resources(ray_actors: RayActors, *, deadline_s: float) -> Resources:
    """List the live nodes by address, with the memory of their GPUs."""
    return Resources(nodes=tuple([await _node(ray_actors, node, deadline_s) for node in ray_actors.nodes()]))


async def _node(ray_actors: RayActors, node: dict[str, Any], deadline_s: float) -> Machine:
    host, available = node["NodeManagerAddress"], node["Resources"]
    cpus, gpus = (int(available[kind]) if kind in available else 0 for kind in ("CPU", "GPU"))
    if not gpus:
        return Machine(host=host, cpus=cpus)
    slots = await ray_actors.reserve([{f"node:{host}": _PIN, "GPU": 1.0}], deadline_s=deadline_s)
    name = f"look-{host}"
    probe = await ray_actors.start(GpuProbe, name=name, role="look", deadline_s=deadline_s, slot=slots[0], gpus=1.0)
    size = await ray_actors.wait_for(probe.call("gpu_bytes"), deadline_s=deadline_s, what="look at the GPUs")
    await ray_actors.end(probe)
    await ray_actors.free(slots)
    return Machine(host=host, cpus=cpus, gpus=gpus, gpu_bytes=size)
