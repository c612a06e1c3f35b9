"""Says why nothing fits, what each remedy would take, and which machines would do."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mappa_core import ConfigError
from mappa_core.engine import Lora, Machine
from mappa_engine.cluster.placement.first_fit import Workload, first_placement
from mappa_engine.cluster.placement.format import sum_parts
from mappa_engine.cluster.placement.placement import Placement
from mappa_engine.cluster.placement.resources import Resources, usable_bytes
from mappa_engine.memory_estimate import format_bytes
from mappa_engine.options import AUTO, ClusterOptions

GB = 1_000_000_000
GPU_SIZES = (24, 32, 40, 48, 80, 96, 141, 180)
"""Memory of GPUs that are sold, in 10^9 bytes."""
GPU_COUNTS = (1, 2, 4, 8)
SMALLEST_WINDOW = 2048
"""The shortest window that is offered as a remedy, in tokens."""
_ADAPTER = Lora(rank=16, alpha=32.0)


def explain_refusal(nearest: Placement, work: Workload, options: ClusterOptions) -> str:
    """Explain why the nearest placement does not fit, what each remedy would need, and which machines would do."""
    lines = [*(_host_misfit(nearest) if nearest.crowded_hosts else _slot_misfit(nearest)), "What would help:"]
    for what, other in _try_remedies(work, options).items():
        fits = "which fits" if other.fits else "which is still too much"
        lines.append(f"  {what}: {format_bytes(other.peak(_fullest_slot(other))[0])}, {fits}")
    if machines := list(smallest_machines(work, options)):
        lines.append(f"  other machines: {', '.join(map(str, machines))}")
    lines.append("  also a smaller engine.options.packed_tokens or fewer policies with weights of their own")
    return "\n".join(lines)


def _fullest_slot(placement: Placement) -> int:
    return max(range(len(placement.slots)), key=placement.excess)


def _slot_misfit(nearest: Placement) -> Iterator[str]:
    number = _fullest_slot(nearest)
    needed, phase = nearest.peak(number)
    slot = nearest.slots[number]
    yield (
        f"the policies do not fit: {slot} has {format_bytes(slot.size or 0)}, of which "
        f"{format_bytes(slot.usable or 0)} can be used, and while {phase} it would hold {format_bytes(needed)}:"
    )
    for load in nearest.loads_on(number):
        yield f"  {load.actor}: {format_bytes(load.bytes_at(phase))} = {sum_parts(load.by_phase[phase], ' + ')}"


def _host_misfit(nearest: Placement) -> Iterator[str]:
    host = nearest.crowded_hosts[0]
    size, parts = nearest.memory[host], nearest.host_parts[host]
    yield (
        f"the policies do not fit: {host} itself has {format_bytes(size)} of memory, of which "
        f"{format_bytes(usable_bytes(size))} can be used, and it would hold {format_bytes(sum(parts.values()))} = "
        f"{sum_parts(parts, ' + ')}"
    )


def _try_remedies(work: Workload, options: ClusterOptions) -> Mapping[str, Placement]:
    """Return the nearest placement under each remedy, each alone, then under all together."""
    remedies = dict(_remedies(work, options))
    if len(remedies) > 1:
        together: dict[str, Any] = {}
        for changes in remedies.values():
            together |= changes
        remedies["all of these together"] = together
    found: dict[str, Placement] = {}
    for what, changes in remedies.items():
        with suppress(ConfigError):  # what does not go with the other options is no remedy alone
            found[what] = _placement_with(work, options, changes)
    return found


def _remedies(work: Workload, options: ClusterOptions) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield changes of options that take less memory, and of policies under the name `policies`."""
    full = any(policy.kind == "full" for policy in work.policies) and work.learning
    wanted: dict[str, Any] = {"zero": 3, "gradient_checkpointing": True} if full else {"gradient_checkpointing": True}
    wanted |= {"offload_optimizer": True} if full else {}
    wanted |= {"placement": "colocated"} if work.learning else {}
    wanted |= {"samplers": AUTO, "kv_cache_mb": AUTO}
    for name, value in wanted.items():
        if getattr(options, name) not in (value, AUTO):
            yield f"engine.options.{name}={str(value).lower()}", {name: value}
    if length := _shorter_window(work, options):
        yield f"engine.options.max_model_len={length}", {"max_model_len": length}
    if full:
        adapters = [
            replace(policy, kind="lora", lora=_ADAPTER) if policy.kind == "full" else policy for policy in work.policies
        ]
        yield "policies.default.kind=lora, which shares a model", {"policies": tuple(adapters)}


def _shorter_window(work: Workload, options: ClusterOptions) -> int | None:
    """Return the longest window of half the length, or a quarter, and so on, that fits; the shortest where none does;
    None where there is no shorter one."""
    longest = options.max_model_len or max(shape.window for shape in work.shapes.values())
    lengths = [1 << power for power in range(longest.bit_length(), 0, -1) if SMALLEST_WINDOW <= 1 << power < longest]
    fitting = (length for length in lengths if _placement_with(work, options, {"max_model_len": length}).fits)
    return next(fitting, lengths[-1] if lengths else None)


def _placement_with(work: Workload, options: ClusterOptions, changes: Mapping[str, Any]) -> Placement:
    changed = {name: value for name, value in changes.items() if name != "policies"}
    policies = changes.get("policies", work.policies)
    return first_placement(replace(work, policies=policies), replace(options, **changed))


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSize:
    """A machine with GPUs; `gigabytes` (10^9 bytes) is the memory of each."""

    gpus: int
    gigabytes: int

    def __str__(self) -> str:
        return f"{self.gpus} GPU{'' if self.gpus == 1 else 's'} of {self.gigabytes} GB"


def smallest_machines(work: Workload, options: ClusterOptions) -> Iterator[MachineSize]:
    """Yield, for one GPU and for several of one machine, the smallest that would do; none where none does."""
    smallest = len(GPU_SIZES)
    for count in GPU_COUNTS:
        sizes = GPU_SIZES[:smallest]  # more GPUs of the same size are no news
        place = bisect_left(sizes, True, key=partial(_fits, work, options, count))
        if place < len(sizes):
            smallest = place
            yield MachineSize(gpus=count, gigabytes=sizes[place])


def _fits(work: Workload, options: ClusterOptions, gpus: int, gigabytes: int) -> bool:
    machine = Machine(host="node1", cpus=1, gpus=gpus, gpu_bytes=gigabytes * GB)
    try:
        return first_placement(replace(work, resources=Resources(nodes=(machine,))), options).fits
    except ConfigError:  # too few GPUs for the ranks or the engines that were asked for
        return False
