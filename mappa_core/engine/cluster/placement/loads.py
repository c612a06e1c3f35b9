"""What every actor of a layout takes of its slots, at every moment of an iteration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mappa_core.engine import footprint
from mappa_core.engine.cluster.placement.layout import LearnerGroup, SamplerPool
from mappa_core.engine.cluster.placement.resources import Device
from mappa_core.engine.footprint import Parts
from mappa_core.engine.options import ClusterOptions
from mappa_core.engine.shapes import ModelShape
from mappa_core.protocols import PolicySpec

Moment = Literal["learning", "syncing", "sampling"]
MOMENTS: tuple[Moment, ...] = ("learning", "syncing", "sampling")
Role = Literal["learner", "sampler"]

CONTEXT_BYTES = 750_000_000
"""What CUDA takes for a process; nobody has measured it here."""
WORKSPACE_BYTES = 3_000_000_000
"""Graphs and workspace of vLLM on a GPU; likewise."""
BUCKET = 50_000_000
"""Numbers that DeepSpeed reduces or gathers at a time, in two buffers."""
LIVE = 1_000_000_000
"""Numbers of a model that DeepSpeed's stage 3 gathers at a time at most."""
SYNC_BUCKET_BYTES = 1 << 30
"""Weights on their way to a sampler, at least; a larger tensor needs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one actor takes of one slot: bytes by part at each moment, and bytes of its node's own memory."""

    slot: int
    actor: str
    role: Role
    at: Mapping[Moment, Parts]
    host_bytes: int = 0
    """Of states that wait in the memory of the host."""

    def bytes_at(self, moment: Moment) -> int:
        """All parts at a moment."""
        return footprint.total(self.at[moment])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What loads are computed from. `tokens` are those of a forward and backward pass; None: nothing is trained."""

    policies: Mapping[str, PolicySpec]
    shapes: Mapping[str, ModelShape]
    options: ClusterOptions
    device: Device
    tokens: int | None
    dtype: str = field(init=False)

    def __post_init__(self) -> None:
        chosen = self.options.dtype
        automatic = "bfloat16" if self.device == "gpu" else "float32"
        object.__setattr__(self, "dtype", automatic if chosen == "auto" else chosen)

    @property
    def turns(self) -> bool:
        """Whether learners and samplers leave the GPU to each other."""
        return self.device == "gpu" and self.options.placement == "colocated"

    def window(self, shape: ModelShape) -> int:
        """The longest prompt and action of a sampler."""
        return self.options.window or shape.window

    def longest(self, shape: ModelShape) -> int:
        """Tokens of the longest pass of a learner: a sequence that is longer than its budget is a pass by itself."""
        assert self.tokens is not None
        return max(min(self.tokens, self.options.packed_tokens), self.window(shape))


def loads_of(groups: Sequence[LearnerGroup], pools: Sequence[SamplerPool], sizes: Sizes) -> Iterator[Load]:
    """The load of every rank and of every piece of an engine."""
    for group in groups:
        load = _learner(group, sizes)
        yield from (replace(load, slot=slot) for slot in group.slots)
    for pool in pools:
        load = _sampler(pool, sizes)
        for number, engine in enumerate(pool.engines, start=1):
            name = load.actor if len(pool.engines) == 1 else f"{load.actor} {number}"
            yield from (replace(load, slot=slot, actor=name) for slot in engine)


def _learner(group: LearnerGroup, sizes: Sizes) -> Load:
    """One rank. Its policies take turns, and the states of all stay where they are meanwhile."""
    options, ranks = sizes.options, len(group.slots)
    policies = [sizes.policies[name] for name in group.policies]
    shapes = [sizes.shapes[one.model] for one in policies]
    whole = [sizes.shapes[one.model] for one in policies if one.kind == "full"]
    bases = {one.model: sizes.shapes[one.model] for one in policies if one.kind == "lora"}
    states = footprint.added(
        *(footprint.full(shape, sizes.dtype, zero=options.zero, ranks=ranks) for shape in whole),
        *(footprint.adapter(sizes.shapes[one.model].adapter(one.lora)) for one in policies if one.lora is not None),
        {"weights": sum(footprint.weights(shape, sizes.dtype) for shape in bases.values())},
    )
    host = states.pop("optimiser") if options.offload_optimizer else 0
    references = {shape.model: footprint.weights(shape, sizes.dtype) for shape in whole}
    work = _learning(states, shapes, whole, sum(references.values()), sizes)
    wire, context = _wire(shapes, sizes), _context(sizes)
    if sizes.device == "gpu":
        host += sum(references.values())
    if sizes.turns:
        host += footprint.total(states) - states["gradients"]
    sent = footprint.added({"weights": states["weights"]}, wire, context)
    at = _moments(sizes, learning=work, syncing=sent, sampling=context, always=work, wire=wire)
    return Load(slot=0, actor=group.name, role="learner", at=at, host_bytes=host)


def _learning(
    states: Parts, shapes: Sequence[ModelShape], whole: Sequence[ModelShape], references: int, sizes: Sizes
) -> Parts:
    """The fuller of two: while a policy moves, or while it is compared with its reference, which comes to a GPU for
    that alone."""
    again: footprint.Kept = "inputs" if sizes.options.gradient_checkpointing else "all"

    def passing(kept: footprint.Kept) -> Parts:
        return {
            "activations": max(
                footprint.activations(shape, sizes.dtype, sizes.longest(shape), kept=kept, mask=True)
                for shape in shapes
            )
        }

    moving = footprint.added(
        states, passing(again), {"buffers": max([_buffers(shape, sizes) for shape in whole], default=0)}
    )
    if sizes.device == "cpu":
        return footprint.added(moving, {"reference": references})
    still: Parts = {name: size for name, size in states.items() if name != "gradients"}
    comparing = footprint.added(still, passing("nothing"), {"reference": references})
    return footprint.added(max(moving, comparing, key=footprint.total), _context(sizes))


def _sampler(pool: SamplerPool, sizes: Sizes) -> Load:
    """One piece of an engine."""
    shape, pieces = sizes.shapes[pool.model], sizes.options.tensor_parallel
    adapters = [one.lora for name in pool.policies if (one := sizes.policies[name]).lora is not None]
    # The adapters of a version that is not in use any more stay until its last request is done.
    numbers = sum(shape.adapter(one) for one in adapters if one is not None) * (2 + sizes.options.max_staleness)
    weights: Parts = {
        "weights": footprint.weights(shape, sizes.dtype, pieces=pieces) + footprint.WIDTH[sizes.dtype] * numbers
    }
    work = footprint.added(weights, {"kv cache": sizes.options.kv_cache_mb << 20}, _context(sizes))
    if sizes.device == "gpu":
        work["workspace"] = WORKSPACE_BYTES
    sent = footprint.added(weights, _wire([shape], sizes), _context(sizes))
    at = _moments(sizes, learning=_context(sizes), syncing=sent, sampling=work, always=work, wire=_wire([shape], sizes))
    # A base that never changes waits in the memory of the host; weights that are sent anew anyway are let go.
    waiting = weights["weights"] if sizes.turns and adapters else 0
    return Load(slot=0, actor=f"sampler {pool.name}", role="sampler", at=at, host_bytes=waiting)


def _moments(
    sizes: Sizes, *, learning: Parts, syncing: Parts, sampling: Parts, always: Parts, wire: Parts
) -> Mapping[Moment, Parts]:
    if sizes.turns:
        return {"learning": learning, "syncing": syncing, "sampling": sampling}
    return {"learning": always, "syncing": footprint.added(always, wire), "sampling": always}


def _buffers(shape: ModelShape, sizes: Sizes) -> int:
    """What DeepSpeed reduces and gathers in."""
    width, number = footprint.WIDTH[sizes.dtype], shape.parameters
    gathered = min(number, LIVE) + min(number, BUCKET) if sizes.options.zero == 3 else 0
    return width * (2 * min(number, BUCKET) + gathered)


def _wire(shapes: Iterable[ModelShape], sizes: Sizes) -> Parts:
    """Weights on their way between a learner and a sampler."""
    largest = max(footprint.WIDTH[sizes.dtype] * shape.largest for shape in shapes)
    return {"buffers": max(SYNC_BUCKET_BYTES, largest) if sizes.device == "gpu" else largest}


def _context(sizes: Sizes) -> Parts:
    return {"context": CONTEXT_BYTES} if sizes.device == "gpu" else {}
