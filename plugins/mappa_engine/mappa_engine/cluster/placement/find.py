"""Finds the placement of a run, or says why there is none and what would fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mappa_core import ConfigError
from mappa_core.engine import Lora, Machine, PolicySpec
from mappa_engine.cluster.placement.checks import check_options, check_transport, window_cache_mb
from mappa_engine.cluster.placement.explain import explain_decisions, explain_misfit
from mappa_engine.cluster.placement.placement import Placement
from mappa_engine.cluster.placement.resources import Resources
from mappa_engine.cluster.placement.search import Workload, search_placement
from mappa_engine.memory_estimate import format_bytes
from mappa_engine.model_shape import ModelShape
from mappa_engine.options import AUTO, ClusterOptions

GB = 1_000_000_000
GPU_SIZES = (24, 32, 40, 48, 80, 96, 141, 180)
"""Memory of GPUs that are sold, in 10^9 bytes."""
GPU_COUNTS = (1, 2, 4, 8)
SMALLEST_WINDOW = 2048
"""The shortest window that is offered as a remedy, in tokens."""
_ADAPTER = Lora(rank=16, alpha=32.0)


def find_placement(
    policies: Sequence[PolicySpec],
    shapes: Mapping[str, ModelShape],
    resources: Resources,
    options: ClusterOptions,
    *,
    micro_tokens: int | None,
) -> Placement:
    """Map policies to the slots of a cluster, and decide the options that are `auto`.

    Args:
        shapes: model shapes by model name, for every policy.
        micro_tokens: `train.micro_tokens`; None without training, and so without learners.

    Raises:
        ConfigError: for invalid options, too few slots, or too little memory, with the arithmetic, remedies, and the
            machines that would do.
    """
    check_options(options)
    check_transport(policies, options, gpu=resources.device == "gpu", learning=micro_tokens is not None)
    work = Workload(policies=tuple(policies), shapes=shapes, resources=resources, micro_tokens=micro_tokens)
    found = search_placement(work, options)
    placement = found.placement
    if not placement.fits:
        machines = [str(one) for one in smallest_machines(work, options)]
        raise ConfigError(explain_misfit(placement, _try_remedies(work, options), machines))
    inputs = work.inputs(placement.options)
    reasons = explain_decisions(
        placement,
        options,
        rejected=found.rejected,
        denser=found.denser,
        window=max(inputs.window(shape) for shape in shapes.values()),
        window_mb=window_cache_mb(inputs, work.samplers),
    )
    return replace(placement, reasons=reasons, notes=_notes(placement, len(resources.slots), options))


def smallest_machines(work: Workload, options: ClusterOptions) -> Iterator[MachineSize]:
    """Yield, for one GPU and for several of one machine, the smallest that would do; none where none does."""
    smallest = len(GPU_SIZES)
    for count in GPU_COUNTS:
        sizes = GPU_SIZES[:smallest]  # more GPUs of the same size are no news
        place = bisect_left(sizes, True, key=partial(_fits, work, options, count))
        if place < len(sizes):
            smallest = place
            yield MachineSize(gpus=count, gigabytes=sizes[place])


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSize:
    """A machine with GPUs; `gigabytes` (10^9 bytes) is the memory of each."""

    gpus: int
    gigabytes: int

    def __str__(self) -> str:
        return f"{self.gpus} GPU{'' if self.gpus == 1 else 's'} of {self.gigabytes} GB"


def _fits(work: Workload, options: ClusterOptions, gpus: int, gigabytes: int) -> bool:
    machine = Machine(host="node1", cpus=1, gpus=gpus, gpu_bytes=gigabytes * GB)
    try:
        found = search_placement(replace(work, resources=Resources(nodes=(machine,))), options)
    except ConfigError:  # too few GPUs for the ranks or the engines that were asked for
        return False
    return found.placement.fits


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
    full = any(one.kind == "full" for one in work.policies) and bool(work.learners)
    wanted: dict[str, Any] = {"zero": 3, "gradient_checkpointing": True} if full else {"gradient_checkpointing": True}
    wanted |= {"offload_optimizer": True} if full else {}
    wanted |= {"placement": "colocated"} if work.learners else {}
    wanted |= {"samplers": AUTO, "kv_cache_mb": AUTO}
    for name, value in wanted.items():
        if getattr(options, name) not in (value, AUTO):
            yield f"engine.options.{name}={str(value).lower()}", {name: value}
    if length := _shorter_window(work, options):
        yield f"engine.options.max_model_len={length}", {"max_model_len": length}
    if full:
        adapters = [replace(one, kind="lora", lora=_ADAPTER) if one.kind == "full" else one for one in work.policies]
        yield "policies.default.kind=lora, which shares a model", {"policies": tuple(adapters)}


def _shorter_window(work: Workload, options: ClusterOptions) -> int | None:
    """Return the longest window of half the length, or a quarter, and so on, that fits; the shortest where none does;
    None where there is no shorter one."""
    longest = options.max_model_len or max(shape.window for shape in work.shapes.values())
    lengths = [1 << power for power in range(longest.bit_length(), 0, -1) if SMALLEST_WINDOW <= 1 << power < longest]
    fitting = (one for one in lengths if _placement_with(work, options, {"max_model_len": one}).fits)
    return next(fitting, lengths[-1] if lengths else None)


def _placement_with(work: Workload, options: ClusterOptions, changes: Mapping[str, Any]) -> Placement:
    changed = {name: value for name, value in changes.items() if name != "policies"}
    policies = changes.get("policies", work.policies)
    return search_placement(replace(work, policies=policies), replace(options, **changed)).placement


def _notes(placement: Placement, count: int, options: ClusterOptions) -> tuple[str, ...]:
    """Describe idle GPUs among `count`, and CPUs that share too small a memory; idle CPUs are not worth a note."""
    if placement.device == "cpu":
        return tuple(
            f"{host} has {format_bytes(placement.memory[host])} of memory, and up to {format_bytes(taken)} are taken; "
            "a shorter engine.options.max_model_len or a smaller train.micro_tokens takes less"
            for host, taken in placement.host_bytes.items()
            if host in placement.memory and taken > placement.memory[host]
        )
    notes = []
    if idle := count - len(placement.slots):
        notes.append(f"{idle} of {count} GPUs do nothing: engine.options.learner_ranks or samplers can use them")
    sampling = {slot for pool in placement.pools for engine in pool.engines for slot in engine}
    if options.placement == "colocated" and (quiet := len(placement.slots) - len(sampling)):
        notes.append(f"{quiet} of {count} GPUs learn and do not sample: more engine.options.samplers would use them")
    return tuple(notes)
