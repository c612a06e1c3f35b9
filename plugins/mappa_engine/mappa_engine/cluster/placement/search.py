"""Placement search: decides what is `auto`, and returns the first layout that fits into memory, or an error that shows
the arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product

from mappa_core import ConfigError
from mappa_core.engine import PolicySpec
from mappa_engine.cluster.placement.candidates import (
    CandidateLayout,
    PolicyUnit,
    candidate_layouts,
    learner_units,
    sampler_units,
)
from mappa_engine.cluster.placement.checks import (
    check_deepspeed_options,
    check_options,
    check_windows,
    max_cache_mb,
    window_cache_mb,
)
from mappa_engine.cluster.placement.memory import PHASES, MemoryInputs, compute_loads
from mappa_engine.cluster.placement.placement import Placement
from mappa_engine.cluster.placement.resources import Device, Resources
from mappa_engine.model_shape import ModelShape
from mappa_engine.options import AUTO, ClusterOptions, PlacedOptions

PACKED_TOKENS: Mapping[Device, int] = {"gpu": 4096, "cpu": 512}
"""Tokens of one packed sequence. A pass over a row of 4,096 takes a CPU two to three times as long as one over as many
tokens in rows of 512."""
CPU_CACHE_MB = 512
"""Keys and values of an engine on CPUs, unless one request of full length takes more."""
COMFORTABLE_WINDOWS = 8
"""Requests of full length for which an engine should have room before learners compute anything twice to make it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is to be placed, and where. `shapes` are by model name; `micro_tokens` is None without training."""

    policies: tuple[PolicySpec, ...]
    shapes: Mapping[str, ModelShape]
    resources: Resources
    micro_tokens: int | None

    @property
    def learners(self) -> tuple[PolicyUnit, ...]:
        """Policies that share learners; none without training."""
        return () if self.micro_tokens is None else learner_units(self.policies)

    @property
    def samplers(self) -> tuple[PolicyUnit, ...]:
        """Policies that share engines."""
        return sampler_units(self.policies)

    def inputs(self, options: PlacedOptions) -> MemoryInputs:
        """Return what the memory is computed from."""
        return MemoryInputs(
            policies={one.name: one for one in self.policies},
            shapes=self.shapes,
            options=options,
            device=self.resources.device,
            tokens=self.micro_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The placement that was found, or the one that came nearest."""

    placement: Placement
    rejected: tuple[Placement, ...] = ()
    """Of the same layout, with settings that cost less time: they do not fit."""
    denser: Placement | None = None
    """The nearest one with more engines on a GPU: it does not fit either."""


def search_placement(work: Workload, options: ClusterOptions) -> SearchResult:
    """Decide every `auto` and return the first placement that fits, or the nearest one.

    Engines of all policies on every GPU come before fewer, and room for some requests before learners that save
    memory at the price of time.

    Raises:
        ConfigError: for invalid options, or too few slots.
    """
    check_options(options)
    tried: list[Placement] = []
    for density, windows in product(_densities(work, options), _windows(work, options)):
        for layout in candidate_layouts(work.resources.slots, work.learners, work.samplers, options, density=density):
            rejected: list[Placement] = []
            for placed in _settings(work, options, windows):
                placement = _place(layout, work, placed)
                if placement.fits:
                    engines = layout.max_engines_per_slot
                    denser = [one for one in tried if one.max_engines_per_slot > engines]
                    return SearchResult(
                        placement=_fill_cache(placement, layout, work, options),
                        rejected=tuple(rejected),
                        denser=min(denser, key=_excess, default=None),
                    )
                rejected.append(placement)
            tried += rejected
    if not tried:
        raise ConfigError(_too_few_slots(work.resources, options))
    return SearchResult(placement=min(tried, key=_excess))


def _densities(work: Workload, options: ClusterOptions) -> Sequence[int]:
    """Numbers of engines per GPU to try, where they are not given: one of every policy first."""
    automatic = options.samplers == AUTO and work.resources.device == "gpu"
    return range(len(work.samplers), 0, -1) if automatic else (1,)


def _windows(work: Workload, options: ClusterOptions) -> Sequence[int]:
    automatic = options.kv_cache_mb == AUTO and work.resources.device == "gpu"
    return (COMFORTABLE_WINDOWS, 1) if automatic else (1,)


def _settings(work: Workload, options: ClusterOptions, windows: int) -> Iterator[PlacedOptions]:
    """Yield the options with everything decided but the layout; those that cost no time first."""
    saves = work.resources.device == "gpu" and bool(work.learners)
    zeros = ((2, 3) if saves else (2,)) if isinstance(options.zero, str) else (options.zero,)
    again = options.gradient_checkpointing
    checkpointing = ((False, True) if saves else (False,)) if isinstance(again, str) else (again,)
    given = {name: value for name, value in asdict(options).items() if value != AUTO or name in _OWN_AUTO}
    for zero, recompute in product(zeros, checkpointing):
        decided = {"zero": zero, "gradient_checkpointing": recompute}
        if options.packed_tokens == AUTO:
            decided["packed_tokens"] = PACKED_TOKENS[work.resources.device]
        placed = PlacedOptions(**{**given, **decided})
        inputs, pools = work.inputs(placed), work.samplers
        if work.learners:
            check_deepspeed_options(placed, dtype=inputs.dtype, gpu=inputs.device == "gpu")
        if options.kv_cache_mb == AUTO:
            least = windows * window_cache_mb(inputs, pools)
            placed = replace(placed, kv_cache_mb=least if inputs.device == "gpu" else max(least, CPU_CACHE_MB))
        check_windows(work.inputs(placed), pools)
        yield placed


_OWN_AUTO = ("dtype", "transport", "samplers")
"""Options that stay `auto`: what reads them decides."""


def _place(layout: CandidateLayout, work: Workload, options: PlacedOptions) -> Placement:
    used, slots, inputs = layout.with_compact_slots(), work.resources.slots, work.inputs(options)
    return Placement(
        options=options,
        device=inputs.device,
        dtype=inputs.dtype,
        slots=tuple(slots[number] for number in sorted(layout.slots)),
        groups=used.groups,
        pools=used.pools,
        loads=tuple(compute_loads(used.groups, used.pools, inputs)),
        memory=work.resources.memory,
    )


def _fill_cache(placement: Placement, layout: CandidateLayout, work: Workload, options: ClusterOptions) -> Placement:
    """Give engines what their GPUs have left for keys and values, as far as they can use it."""
    if options.kv_cache_mb != AUTO or placement.device == "cpu":
        return placement
    left = []
    for number, slot in enumerate(placement.slots):
        loads = placement.loads_on(number)
        for phase in PHASES:
            caches = sum("kv cache" in load.by_phase[phase] for load in loads)
            if caches and slot.usable is not None:
                left.append((slot.usable - placement.bytes_at(number, phase)) // caches)
    held = placement.options.kv_cache_mb
    useful = max(held, max_cache_mb(work.inputs(placement.options), work.samplers))
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
