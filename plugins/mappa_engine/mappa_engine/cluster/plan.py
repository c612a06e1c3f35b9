"""The plan of the engine `cluster`: who runs where, what that takes of each machine, and what this one lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mappa_core import ConfigError
from mappa_core.engine import EnginePlan, Machine, PolicySpec, TrainSection
from mappa_engine.cluster.experimental import experimental_warning
from mappa_engine.cluster.placement import ModelShape, Placement, Resources, find_placement
from mappa_engine.cluster.placement.first_fit import Workload
from mappa_engine.cluster.placement.format import placement_plan
from mappa_engine.cluster.placement.memory import SYNC_BUCKET_BYTES
from mappa_engine.cluster.placement.refusal import smallest_machines
from mappa_engine.cluster.requirements import INSTALL_COMMAND, library_problems
from mappa_engine.memory_estimate import BYTES_PER_NUMBER, checkpoint_bytes, format_bytes
from mappa_engine.node import SHARED_MEMORY_BYTES, Node, this_node
from mappa_engine.options import ClusterOptions


def plan_cluster(
    policies: Sequence[PolicySpec],
    shapes: Mapping[str, ModelShape],
    options: ClusterOptions,
    machines: Sequence[Machine],
    *,
    train: TrainSection | None,
) -> EnginePlan:
    """Plan on `machines`; without any on this one, whose lacks are then told, too.

    Raises:
        ConfigError: for invalid options, or what does not fit `machines`.
    """
    if machines:
        resources = Resources(nodes=tuple(machines))
        return _with_needs(find_placement(policies, shapes, resources, options, train=train), policies, shapes)
    node = this_node()
    problems = tuple(node_problems(node, options))
    resources = Resources(nodes=(node.machine,))
    try:
        placement = find_placement(policies, shapes, resources, options, train=train)
    except ConfigError as error:
        raise ConfigError("\n".join((str(error), *problems))) from error
    plan = _with_needs(placement, policies, shapes)
    work = Workload(policies=tuple(policies), shapes=shapes, resources=resources, train=train)
    elsewhere = () if node.gpus else (f"no GPU is seen here; {_fitting(work, options)}",)
    short = tuple(_short_memory(placement, node))
    return replace(
        plan,
        notes=(*plan.notes, *elsewhere, *short),
        details={**plan.details, "problems": problems},
    )


def node_problems(node: Node, options: ClusterOptions) -> Iterator[str]:
    """Describe what keeps the engine from starting on this machine: libraries, driver, compiler, dtype."""
    if missing := library_problems():
        reasons = "; ".join(f"{library}: {reason}" for library, reason in missing.items())
        yield f"engine: libraries are missing ({reasons}): {INSTALL_COMMAND}"
    if not node.gpus:
        return
    found = [node.driver_problem, node.compiler_problem, node.dtype_problem if options.dtype != "float32" else None]
    yield from (f"engine: {problem}" for problem in found if problem is not None)


def shared_memory_bytes(placement: Placement, host: str) -> Mapping[str, int]:
    """Return what a node needs in /dev/shm, by purpose."""
    slots = [number for number, slot in enumerate(placement.slots) if slot.host == host]
    ranks = sum(len(set(group.slots) & set(slots)) for group in placement.groups)
    needs = {"NCCL": SHARED_MEMORY_BYTES} if placement.device == "gpu" and ranks > 1 else {}
    through_store = placement.device == "cpu" or placement.options.transport == "store"
    return {**needs, **({"weights in transfer": 2 * SYNC_BUCKET_BYTES} if through_store and ranks else {})}


def _with_needs(placement: Placement, policies: Sequence[PolicySpec], shapes: Mapping[str, ModelShape]) -> EnginePlan:
    """Add shared memory, the size of a checkpoint, and what of it nobody has run."""
    plan = placement_plan(placement)
    trained = [policy for policy in policies if policy.trained] if placement.groups else []
    sizes = {
        dtype: sum(checkpoint_bytes(spec, shapes[spec.model], dtype, computed=placement.dtype) for spec in trained)
        for dtype in BYTES_PER_NUMBER
    }
    shared = [
        f"/dev/shm of {host}: {format_bytes(sum(parts.values()))} = "
        + " + ".join(f"{what} {format_bytes(size)}" for what, size in parts.items())
        for host in placement.host_bytes
        if (parts := shared_memory_bytes(placement, host))
    ]
    warning = experimental_warning(placement)
    return replace(
        plan,
        lines=(*plan.lines, *shared),
        notes=(*plan.notes, *([warning] if warning else [])),
        details={**plan.details, "checkpoint_bytes": sizes},
    )


def _fitting(work: Workload, options: ClusterOptions) -> str:
    machines = ", ".join(map(str, smallest_machines(work, options)))
    return f"it fits {machines}" if machines else "it fits no node of up to 8 GPUs of 180 GB"


def _short_memory(placement: Placement, node: Node) -> Iterator[str]:
    needed = sum(shared_memory_bytes(placement, node.machine.host).values())
    if placement.device == "gpu" and node.shared_memory < needed:
        yield (
            f"/dev/shm has {format_bytes(node.shared_memory)}, and {format_bytes(needed)} are needed: in a container "
            "start it with --shm-size=8g"
        )
