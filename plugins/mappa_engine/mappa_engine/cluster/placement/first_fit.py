"""The first layout that fits into memory, with the options that are `auto` decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from mappa_core import ConfigError
from mappa_core.engine import PolicySpec, TrainSection
from mappa_engine.cluster.placement.checks import (
    check_deepspeed_options,
    check_windows,
    max_cache_mb,
    window_cache_mb,
)
from mappa_engine.cluster.placement.layouts import Layout, ServedModel, ordered_layouts, served_models
from mappa_engine.cluster.placement.memory import PHASES, MemoryInputs, compute_loads
from mappa_engine.cluster.placement.placement import Placement
from mappa_engine.cluster.placement.resources import Device, Resources
from mappa_engine.model_shape import ModelShape
from mappa_engine.options import AUTO, ClusterOptions, PlacedOptions

PACKED_TOKENS: Mapping[Device, int | None] = {"gpu": 4096, "cpu": None}
"""Tokens of one packed sequence; None: sequences are rows of their own. A CPU has no kernel for packed ones: to learn
from SmolLM2-135M's takes it a quarter longer in rows of 512, and many times as long in rows of 4,096."""
CPU_CACHE_MB = 512
"""Keys and values of an engine on CPUs, unless one request of full length takes more."""
COMFORTABLE_WINDOWS = 8
"""Requests of full length for which an engine should have room before learners compute anything twice to make it."""
_ECONOMIES = (
    (2, False, COMFORTABLE_WINDOWS),
    (2, True, COMFORTABLE_WINDOWS),
    (3, True, COMFORTABLE_WINDOWS),
    (3, True, 1),
)
"""ZeRO stage, gradient checkpointing, and requests of full length that an engine has room for, as they are tried: the
second costs about a third more time, the third messages between GPUs, and with the last agents wait for each other."""
_OWN_AUTO = ("dtype", "transport", "samplers")
"""Options that stay `auto`: what reads them decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is to be placed, and where. `shapes` are by model name; `train` is None without training."""

    policies: tuple[PolicySpec, ...]
    shapes: Mapping[str, ModelShape]
    resources: Resources
    train: TrainSection | None

    @property
    def learning(self) -> bool:
        """Whether any policy is trained."""
        return self.train is not None and any(policy.trained for policy in self.policies)

    @property
    def gpu(self) -> bool:
        """Whether learners and samplers compute on GPUs."""
        return self.resources.device == "gpu"

    @property
    def served(self) -> tuple[ServedModel, ...]:
        """Policies by the engines that they share."""
        return served_models(self.policies)

    def inputs(self, options: PlacedOptions) -> MemoryInputs:
        """Return what the memory is computed from."""
        return MemoryInputs(
            policies={policy.name: policy for policy in self.policies},
            shapes=self.shapes,
            options=options,
            device=self.resources.device,
            train=self.train,
        )


def first_placement(work: Workload, options: ClusterOptions) -> Placement:
    """Return the first placement that fits, or the one that comes nearest.

    Layouts are tried in order, each with the options that cost no time first. Raises ConfigError for invalid options,
    or too few slots.
    """
    placements: list[Placement] = []
    for layout in ordered_layouts(work.resources.slots, work.policies, options, learning=work.train is not None):
        for placed in _economies(work, options):
            placement = _place(layout, work, placed)
            if placement.fits:
                return _fill_cache(placement, layout, work, options)
            placements.append(placement)
    if not placements:
        raise ConfigError(_too_few_slots(work.resources, options))
    return min(placements, key=_excess)


def _economies(work: Workload, options: ClusterOptions) -> Iterator[PlacedOptions]:
    """Yield the options with all that is `auto` decided: first those that cost no time, then those that save memory."""
    # A CPU shares its memory with everything else, so nothing is held against it, and the first do.
    tried: list[PlacedOptions] = []
    for zero, again, windows in _ECONOMIES if work.gpu else _ECONOMIES[:1]:
        placed = _decide(work, options, zero=zero, again=again, windows=windows)
        if placed not in tried:
            tried.append(placed)
            yield placed


def _decide(work: Workload, options: ClusterOptions, *, zero: int, again: bool, windows: int) -> PlacedOptions:
    automatic = {
        "zero": zero if work.learning else 2,
        "gradient_checkpointing": again and work.learning,
        "packed_tokens": PACKED_TOKENS[work.resources.device],
    }
    given = {name: value for name, value in asdict(options).items() if value != AUTO or name in _OWN_AUTO}
    placed = PlacedOptions(**{**automatic, **given})
    inputs, served = work.inputs(placed), work.served
    if work.learning:
        check_deepspeed_options(placed, dtype=inputs.dtype, gpu=work.gpu)
    if options.kv_cache_mb == AUTO:
        window_mb = window_cache_mb(inputs, served)
        placed = replace(placed, kv_cache_mb=windows * window_mb if work.gpu else max(window_mb, CPU_CACHE_MB))
    check_windows(work.inputs(placed), served)
    return placed


def _place(layout: Layout, work: Workload, options: PlacedOptions) -> Placement:
    """Compute the memory of a layout. Slots in use are numbered from 0."""
    number = {slot: index for index, slot in enumerate(layout.slots)}
    groups = tuple(replace(group, slots=tuple(number[slot] for slot in group.slots)) for group in layout.groups)
    pools = tuple(
        replace(pool, engines=tuple(tuple(number[slot] for slot in engine) for engine in pool.engines))
        for pool in layout.pools
    )
    slots, inputs = work.resources.slots, work.inputs(options)
    return Placement(
        options=options,
        device=inputs.device,
        dtype=inputs.dtype,
        slots=tuple(slots[slot] for slot in layout.slots),
        groups=groups,
        pools=pools,
        loads=tuple(compute_loads(groups, pools, inputs)),
        memory=work.resources.memory,
        cores={node.host: node.cpus for node in work.resources.nodes},
    )


def _fill_cache(placement: Placement, layout: Layout, work: Workload, options: ClusterOptions) -> Placement:
    """Give engines what their GPUs have left for keys and values, as far as they can use it."""
    if options.kv_cache_mb != AUTO or not work.gpu:
        return placement
    left = []
    for number, slot in enumerate(placement.slots):
        loads = placement.loads_on(number)
        for phase in PHASES:
            caches = sum("kv cache" in load.by_phase[phase] for load in loads)
            if caches and slot.usable is not None:
                left.append((slot.usable - placement.bytes_at(number, phase)) // caches)
    held = placement.options.kv_cache_mb
    useful = max(held, max_cache_mb(work.inputs(placement.options), work.served))
    return _place(layout, work, replace(placement.options, kv_cache_mb=min(useful, held + (min(left) >> 20))))


def _excess(placement: Placement) -> int:
    """Return the bytes by which the fullest slot exceeds its memory, or a node its own."""
    hosts = (placement.host_bytes[host] - placement.memory[host] for host in placement.crowded_hosts)
    return max(*(placement.excess(number) for number in range(len(placement.slots))), *hosts, 0)


def _too_few_slots(resources: Resources, options: ClusterOptions) -> str:
    slots = resources.slots
    asked = ["placement", "tensor_parallel", *(["learner_ranks"] if options.learner_ranks is not None else [])]
    wanted = ", ".join(f"engine.options.{name}={getattr(options, name)}" for name in asked)
    instead = (
        ", or let them take turns by engine.options.placement=colocated" if options.placement == "separate" else ""
    )
    return (
        f"the {len(slots)} {slots[0].device.upper()}s that there are do not suffice for {wanted}, where an engine is "
        f"on one machine. Ask for less{instead}."
    )
