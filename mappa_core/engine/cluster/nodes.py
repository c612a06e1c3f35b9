"""What a cluster has, asked of its nodes."""

from __future__ import annotations

from typing import Any

from mappa_core.engine.cluster.fleet import Fleet
from mappa_core.engine.cluster.placement import Node, Resources

_PIN = 0.001


class Look:
    """An actor that looks at the GPUs of its node."""

    def gpu_bytes(self) -> int:
        """Memory of the smallest GPU here."""
        import torch

        return min(torch.cuda.get_device_properties(one).total_memory for one in range(torch.cuda.device_count()))


async def resources(fleet: Fleet, *, deadline_s: float) -> Resources:
    """The nodes that are alive, by address, with the memory of their GPUs (untried: there was none)."""
    return Resources(nodes=tuple([await _node(fleet, one, deadline_s) for one in fleet.nodes()]))


async def _node(fleet: Fleet, node: dict[str, Any], deadline_s: float) -> Node:
    host, has = node["NodeManagerAddress"], node["Resources"]
    cpus, gpus = (int(has[kind]) if kind in has else 0 for kind in ("CPU", "GPU"))
    if not gpus:
        return Node(host=host, cpus=cpus)
    slots = await fleet.reserve([{f"node:{host}": _PIN, "GPU": 1.0}], deadline_s=deadline_s)
    name = f"look-{host}"
    look = await fleet.start(Look, name=name, role="look", deadline_s=deadline_s, slot=slots[0], gpus=1.0)
    size = await fleet.ask(look.call("gpu_bytes"), deadline_s=deadline_s, what="look at the GPUs")
    await fleet.end(look)
    await fleet.free(slots)
    return Node(host=host, cpus=cpus, gpus=gpus, gpu_bytes=size)
