"""Memory of every actor of a layout on its slots, in every phase of an iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mappa_core.engine import PolicySpec
from mappa_engine import memory_estimate
from mappa_engine.cluster.placement.candidates import GroupPlacement, PoolPlacement
from mappa_engine.cluster.placement.resources import Device
from mappa_engine.memory_estimate import MemoryParts
from mappa_engine.model_shape import ModelShape
from mappa_engine.options import PlacedOptions

Phase = Literal["learning", "syncing", "sampling"]
PHASES: tuple[Phase, ...] = ("learning", "syncing", "sampling")
ActorRole = Literal["learner", "sampler"]

CONTEXT_BYTES = 750_000_000
"""Memory of the CUDA context of a process; an estimate, not measured."""
WORKSPACE_BYTES = 3_000_000_000
"""Graphs and workspace of vLLM on a GPU; an estimate, not measured."""
DEEPSPEED_BUCKET = 50_000_000
"""Elements that DeepSpeed reduces or gathers at a time, in two buffers."""
MAX_LIVE_PARAMETERS = 1_000_000_000
"""Maximum number of parameters that DeepSpeed's stage 3 gathers at a time."""
SYNC_BUCKET_BYTES = 1 << 30
"""Minimum buffer for weights in transfer to a sampler; a larger tensor needs more."""
PROCESS_BYTES: Mapping[Device, int] = {"gpu": 2_000_000_000, "cpu": 800_000_000}
"""Host memory of a process and its libraries: with CUDA an estimate, without it measured by `make test-shapes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLoad:
    """Memory of one actor on one slot: bytes by part in each phase, and bytes of host memory."""

    slot: int
    actor: str
    role: ActorRole
    by_phase: Mapping[Phase, MemoryParts]
    host: Mapping[str, int] = field(default_factory=dict)
    """Host memory by purpose, beside what a CPU computes with: in bytes."""

    def bytes_at(self, phase: Phase) -> int:
        """Sum all parts in a phase."""
        return memory_estimate.total_bytes(self.by_phase[phase])

    @property
    def host_bytes(self) -> int:
        """Sum of the host memory."""
        return sum(self.host.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryInputs:
    """Inputs of the memory estimate. `tokens` are those of a forward and backward pass; None without training."""

    policies: Mapping[str, PolicySpec]
    shapes: Mapping[str, ModelShape]
    options: PlacedOptions
    device: Device
    tokens: int | None
    dtype: str = field(init=False)

    def __post_init__(self) -> None:
        chosen = self.options.dtype
        automatic = "bfloat16" if self.device == "gpu" else "float32"
        object.__setattr__(self, "dtype", automatic if chosen == "auto" else chosen)

    @property
    def colocated(self) -> bool:
        """Whether learners and samplers share GPUs in turns."""
        return self.device == "gpu" and self.options.placement == "colocated"

    def window(self, shape: ModelShape) -> int:
        """Return the context window of a sampler: maximum tokens of prompt plus action."""
        return self.options.max_model_len or shape.window

    def max_pass_tokens(self, shape: ModelShape) -> int:
        """Return the maximum tokens of a learner's pass: a sequence longer than the budget is a pass of its own."""
        assert self.tokens is not None
        return max(min(self.tokens, self.options.packed_tokens), self.window(shape))


def compute_loads(
    groups: Sequence[GroupPlacement], pools: Sequence[PoolPlacement], inputs: MemoryInputs
) -> Iterator[MemoryLoad]:
    """Yield the memory of every learner rank and of every tensor-parallel part of an engine."""
    for group in groups:
        load = _learner(group, inputs)
        yield from (replace(load, slot=slot) for slot in group.slots)
    for pool in pools:
        load = _sampler(pool, inputs)
        for number, engine in enumerate(pool.engines, start=1):
            name = load.actor if len(pool.engines) == 1 else f"{load.actor} {number}"
            yield from (replace(load, slot=slot, actor=name) for slot in engine)


def _learner(group: GroupPlacement, inputs: MemoryInputs) -> MemoryLoad:
    """Compute the memory of one rank. Its policies take turns, and the states of all stay in place."""
    options, ranks = inputs.options, len(group.slots)
    policies = [inputs.policies[name] for name in group.policies]
    shapes = [inputs.shapes[one.model] for one in policies]
    whole = [inputs.shapes[one.model] for one in policies if one.kind == "full"]
    bases = {one.model: inputs.shapes[one.model] for one in policies if one.kind == "lora"}
    sharded = memory_estimate.add_parts(
        *(memory_estimate.full_training_memory(shape, inputs.dtype, zero=options.zero, ranks=ranks) for shape in whole)
    )
    offloaded = sharded.pop("optimiser", 0) if options.offload_optimizer else 0
    adapters = memory_estimate.add_parts(
        {"weights": sum(memory_estimate.weight_bytes(shape, inputs.dtype) for shape in bases.values())},
        *(
            memory_estimate.adapter_memory(inputs.shapes[one.model].adapter(one.lora))
            for one in policies
            if one.lora is not None
        ),
    )
    states = memory_estimate.add_parts(sharded, adapters)
    references = sum({one.model: memory_estimate.weight_bytes(one, inputs.dtype) for one in whole}.values())
    work = _learner_peak(states, shapes, whole, references, inputs)
    wire, context = _transfer_buffers(whole, inputs), _cuda_context(inputs)
    # Adapters are sent from where they are; of full weights all but the weights themselves is on the host by then.
    sent = memory_estimate.add_parts(_only(sharded, "weights"), adapters, wire, context)
    # Beside learning, as torch keeps what activations took on a GPU; the host has it back.
    kept = inputs.device == "gpu"
    still: MemoryParts = {part: size for part, size in work.items() if kept or part != "activations"}
    transferring = memory_estimate.add_parts(still, wire)
    by_phase = _by_phase(inputs, learning=work, syncing=sent, sampling=context, always=work, transferring=transferring)
    host = {"optimiser": offloaded, "process": PROCESS_BYTES[inputs.device]}
    if inputs.device == "gpu":
        host["references"] = references
    if inputs.colocated:
        host["states while agents sample"] = sum(size for part, size in states.items() if part != "gradients")
    return MemoryLoad(slot=0, actor=group.name, role="learner", by_phase=by_phase, host=host)


def _only(parts: MemoryParts, name: memory_estimate.MemoryPart) -> MemoryParts:
    return {name: parts[name]} if name in parts else {}


def _learner_peak(
    states: MemoryParts,
    shapes: Sequence[ModelShape],
    whole: Sequence[ModelShape],
    references: int,
    inputs: MemoryInputs,
) -> MemoryParts:
    """Return the larger of two: the update of a policy, or its scoring against the reference, which is on a GPU only
    then."""
    again: memory_estimate.SavedActivations = "inputs" if inputs.options.gradient_checkpointing else "all"

    def passing(saved: memory_estimate.SavedActivations) -> MemoryParts:
        return {
            "activations": max(
                memory_estimate.activation_bytes(
                    shape, inputs.dtype, inputs.max_pass_tokens(shape), saved=saved, mask=True
                )
                for shape in shapes
            )
        }

    moving = memory_estimate.add_parts(
        states, passing(again), {"buffers": max([_buffers(shape, inputs) for shape in whole], default=0)}
    )
    if inputs.device == "cpu":
        return memory_estimate.add_parts(moving, {"reference": references})
    still: MemoryParts = {name: size for name, size in states.items() if name != "gradients"}
    comparing = memory_estimate.add_parts(still, passing("nothing"), {"reference": references})
    return memory_estimate.add_parts(max(moving, comparing, key=memory_estimate.total_bytes), _cuda_context(inputs))


def _sampler(pool: PoolPlacement, inputs: MemoryInputs) -> MemoryLoad:
    """Compute the memory of one tensor-parallel part of an engine."""
    shape, pieces = inputs.shapes[pool.model], inputs.options.tensor_parallel
    policies = [inputs.policies[name] for name in pool.policies]
    # Adapters of an old version stay until its last request is done.
    versions = 2 + inputs.options.max_staleness
    adapters = versions * sum(shape.adapter(one.lora) for one in policies if one.lora is not None)
    weights: MemoryParts = {
        "weights": memory_estimate.weight_bytes(shape, inputs.dtype, pieces=pieces)
        + memory_estimate.BYTES_PER_NUMBER[inputs.dtype] * adapters
    }
    work = memory_estimate.add_parts(weights, {"kv cache": inputs.options.kv_cache_mb << 20}, _cuda_context(inputs))
    packed = memory_estimate.BYTES_PER_NUMBER[inputs.dtype] * shape.vocabulary * shape.hidden
    # On CPUs embedding and head are kept once more each, packed for the kernels, even where they are one tensor.
    work["workspace"] = WORKSPACE_BYTES if inputs.device == "gpu" else 2 * packed
    full = [shape] if any(one.kind == "full" for one in policies) else []
    wire, context = _transfer_buffers(full, inputs), _cuda_context(inputs)
    if full and inputs.device == "cpu":  # a new tensor and what is packed of it, beside those that they replace
        wire = memory_estimate.add_parts(wire, wire)
    by_phase: Mapping[Phase, MemoryParts] = dict.fromkeys(PHASES, work)
    if full:  # others hold a base that never changes, and stay where they are while learners compute
        sent = memory_estimate.add_parts(weights, wire, context)
        transferring = memory_estimate.add_parts(work, wire)
        by_phase = _by_phase(
            inputs, learning=context, syncing=sent, sampling=work, always=work, transferring=transferring
        )
    host = {"process": PROCESS_BYTES[inputs.device]}
    return MemoryLoad(slot=0, actor=f"sampler {pool.name}", role="sampler", by_phase=by_phase, host=host)


def _by_phase(
    inputs: MemoryInputs,
    *,
    learning: MemoryParts,
    syncing: MemoryParts,
    sampling: MemoryParts,
    always: MemoryParts,
    transferring: MemoryParts,
) -> Mapping[Phase, MemoryParts]:
    """Return the first three where learners and samplers take turns; else `always`, and `transferring` in transfers."""
    if inputs.colocated:
        return {"learning": learning, "syncing": syncing, "sampling": sampling}
    return {"learning": always, "syncing": transferring, "sampling": always}


def _buffers(shape: ModelShape, inputs: MemoryInputs) -> int:
    """Return the size of DeepSpeed's reduce and gather buffers."""
    width, number = memory_estimate.BYTES_PER_NUMBER[inputs.dtype], shape.parameters
    gathered = min(number, MAX_LIVE_PARAMETERS) + min(number, DEEPSPEED_BUCKET) if inputs.options.zero == 3 else 0
    return width * (2 * min(number, DEEPSPEED_BUCKET) + gathered)


def _transfer_buffers(shapes: Sequence[ModelShape], inputs: MemoryInputs) -> MemoryParts:
    """Return the buffers of full weights in transfer between a learner and a sampler; adapters go as files."""
    if not shapes:
        return {}
    largest = max(memory_estimate.BYTES_PER_NUMBER[inputs.dtype] * shape.largest for shape in shapes)
    return {"buffers": max(SYNC_BUCKET_BYTES, largest) if inputs.device == "gpu" else largest}


def _cuda_context(inputs: MemoryInputs) -> MemoryParts:
    return {"context": CONTEXT_BYTES} if inputs.device == "gpu" else {}
