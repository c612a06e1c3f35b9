"""Memory of the engine `local`, computed from the shapes of its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mappa_core import ConfigError
from mappa_core.engine import EnginePlan, PolicySpec, TrainSection
from mappa_engine import memory_estimate
from mappa_engine.memory_estimate import MemoryPart, MemoryParts, SavedActivations, format_bytes
from mappa_engine.model_shape import ModelShape
from mappa_engine.node import Node
from mappa_engine.options import LocalOptions

_SAMPLING_BYTES = 4 + 4 + 8 + 8
"""Bytes per logit while a token is sampled: it and its log-probability, its probability and their sums in float64."""
PROCESS_BYTES = 500_000_000
"""Memory of this process and its libraries; measured on a CPU: 0.39 GB before a model is loaded, and 0.08 GB for its
tokenizer and the check of the model."""
CONTEXT_BYTES = 750_000_000
"""The same on a GPU: what CUDA takes there, an estimate (docs/engines.md)."""
CPU_ALLOCATOR_SHARE = 0.8
"""What the C library keeps of activations that were freed, and does not use again, as a share of them. Measured with a
model of 135 M parameters: the first pass of an update took what its tensors take, the second 0.8 times as much more."""
GPU_ALLOCATOR_SHARE = 0.3
"""The same of torch on a GPU (docs/engines.md)."""


def estimate_local_memory(
    policies: Sequence[PolicySpec],
    shapes: Mapping[str, ModelShape],
    options: LocalOptions,
    *,
    train: TrainSection | None,
    rows: int,
    gpu: bool,
) -> dict[str, MemoryParts]:
    """Estimate the memory by policy and part; parts that all policies share are under the empty name.

    There is one module per `full` policy, one per model, which serves as the reference, the base of adapters and the
    frozen policies, and one per `full` policy whose reference is another (`PolicySpec.reference`). KV cache,
    activations and the workspace of sampling are upper bounds: what they come to where sequences are as long, and
    micro-batches as full, as the options allow. `train` is None without training; `rows` are decoded at a time. `gpu`:
    everything is in a GPU's memory.
    """

    def window(shape: ModelShape) -> int:
        return min(shape.window, options.max_model_len or shape.window)

    dtype = options.loaded_dtype
    width, learning = memory_estimate.BYTES_PER_NUMBER[dtype], train is not None
    found: dict[str, MemoryParts] = {}
    for policy in policies:
        shape = shapes[policy.model]
        parts: MemoryParts = {}
        if learning and policy.lora is not None:
            parts = memory_estimate.adapter_memory(
                shape.adapter(policy.lora), own_reference=policy.reference is not None
            )
        elif learning and policy.trained:
            # In bfloat16 the gradients exist twice for a moment, as in DeepSpeed's ZeRO stage 1.
            parts = memory_estimate.full_training_memory(
                shape, dtype, zero=0 if width == memory_estimate.FLOAT32_BYTES else 1
            )
        elif policy.kind == "full":
            parts = {"weights": memory_estimate.weight_bytes(shape, dtype)}
        cached = memory_estimate.kv_cache_bytes(shape, dtype, min(options.max_batch, rows) * window(shape))
        found[policy.name] = memory_estimate.add_parts(parts, {"kv cache": min(cached, options.kv_cache_mb << 20)})
    shared: MemoryParts = {
        "context": CONTEXT_BYTES if gpu else PROCESS_BYTES,
        "reference": memory_estimate.reference_bytes(
            (policy for policy in policies if learning or policy.kind != "full"), shapes, dtype
        ),
    }
    if train is not None:
        saved: SavedActivations = "inputs" if options.gradient_checkpointing else "all"
        copies = memory_estimate.trained_logit_copies(train)
        shared["activations"] = max(
            (
                memory_estimate.activation_bytes(shapes[policy.model], dtype, tokens, saved=saved, lora=policy.lora)
                + memory_estimate.logit_bytes(shapes[policy.model], tokens, copies)
                for policy in policies
                if policy.trained
                for tokens in [max(train.micro_tokens, window(shapes[policy.model]))]
            ),
            default=0,
        )
        shared["allocator"] = int((GPU_ALLOCATOR_SHARE if gpu else CPU_ALLOCATOR_SHARE) * shared["activations"])
    shared["workspace"] = max(_sampling_bytes(shape, dtype, options, rows) for shape in shapes.values())
    return {**found, "": {name: size for name, size in shared.items() if size}}


def _sampling_bytes(shape: ModelShape, dtype: str, options: LocalOptions, rows: int) -> int:
    """Compute the size of what a sampler holds for a moment: a prefill's activations, keys and values, or the logits of
    all rows, their log-probabilities, probabilities and sums."""
    prefill = memory_estimate.activation_bytes(shape, dtype, options.prefill_tokens, saved="nothing")
    prefill += memory_estimate.kv_cache_bytes(shape, dtype, options.prefill_tokens)
    return max(prefill, min(options.max_batch, rows) * shape.vocabulary * _SAMPLING_BYTES)


def expected_local_memory(
    memory: Mapping[str, MemoryParts],
    policies: Sequence[PolicySpec],
    shapes: Mapping[str, ModelShape],
    options: LocalOptions,
    *,
    train: TrainSection | None,
    rows: int,
    gpu: bool,
) -> int | None:
    """Compute the peak that is expected where actions are as long as `PolicySpec.actions`; None where these are not
    known. `memory` is what `estimate_local_memory` returned. Learning and sampling take turns."""
    playing = [policy for policy in policies if policy.actions]
    if not playing:
        return None
    if train is not None:
        rows = min(rows, train.prompts * train.samples)
    sampling = sum(_expected_sampling(policy, shapes[policy.model], options, rows) for policy in playing)
    learning = [
        _expected_activations(policy, shapes[policy.model], options, train)
        for policy in playing
        if train is not None and policy.trained
    ]
    kept = GPU_ALLOCATOR_SHARE if gpu else CPU_ALLOCATOR_SHARE
    comes_and_goes = max(sampling, int((1 + kept) * max(learning, default=0)))
    held = sum(_sum_parts(parts, HELD) for parts in memory.values())
    return held + comes_and_goes


def _expected_activations(policy: PolicySpec, shape: ModelShape, options: LocalOptions, train: TrainSection) -> int:
    """Compute the size of the activations of the fullest micro-batch: a rectangle as wide as its longest row, of as
    many rows as the step has and the budget holds."""
    longest = min(max(map(sum, policy.actions)), shape.window)
    actions = len(policy.actions) * train.prompts * train.samples
    steps = -(-actions // (train.minibatch_rows or actions))
    rows = max(1, min(-(-actions // steps), train.micro_tokens // longest))
    saved: SavedActivations = "inputs" if options.gradient_checkpointing else "all"
    sampled = rows * max(action for _, action in policy.actions)
    return memory_estimate.activation_bytes(
        shape, options.loaded_dtype, rows * longest, saved=saved, lora=policy.lora
    ) + memory_estimate.logit_bytes(shape, sampled, memory_estimate.trained_logit_copies(train))


def _expected_sampling(policy: PolicySpec, shape: ModelShape, options: LocalOptions, rows: int) -> int:
    """Compute the size of keys and values of all rows that are decoded together, and of the logits of one step."""
    decoded = min(rows, options.max_batch)
    longest = min(max(map(sum, policy.actions)), shape.window)
    cached = memory_estimate.kv_cache_bytes(shape, options.loaded_dtype, decoded * longest)
    return min(cached, options.kv_cache_mb << 20) + decoded * shape.vocabulary * _SAMPLING_BYTES


HELD: tuple[MemoryPart, ...] = ("weights", "gradients", "optimiser", "reference", "context")
"""Parts that are there however long sequences are."""
_TO_TAKE_LESS = (
    "set train.micro_tokens to less, engine.options.gradient_checkpointing=true, or policies.default.kind=lora"
)
_BOUNDED_BY = "train.micro_tokens, engine.options.max_model_len, kv_cache_mb, max_batch and gradient_checkpointing"


def memory_plan(
    memory: Mapping[str, MemoryParts], options: LocalOptions, node: Node, *, expected: int | None = None
) -> EnginePlan:
    """Build the plan: a table with a column per policy and for shared memory, and a row per part; first what is held in
    any case, then what comes on top at most; below it what is `expected`, and whether that fits this machine (`node`).

    A problem where the machine has less than what is expected, or held in any case; a note where the upper bound is
    more than it has.
    """
    names = list(dict.fromkeys(part for parts in memory.values() for part in parts))
    held = [_sum_parts(parts, HELD) for parts in memory.values()]
    most = [sum(parts.values()) for parts in memory.values()]

    def rows(parts: Sequence[MemoryPart]) -> list[tuple[str, ...]]:
        return [(name, *(format_bytes(own[name]) if name in own else "" for own in memory.values())) for name in parts]

    table = (
        ("memory", *(who or "shared" for who in memory)),
        *rows([name for name in names if name in HELD]),
        ("held", *map(format_bytes, held)),
        *rows([name for name in names if name not in HELD]),
        ("at most", *map(format_bytes, most)),
    )
    size, where = memory_of(options, node)
    least = sum(held) if expected is None else expected
    problems, notes = [], []
    if sum(held) > size:
        problems.append(_cannot_hold(where, size, sum(held)))
    elif least > size:
        problems.append(
            f"engine: {where} has {format_bytes(size)} of memory, and about {format_bytes(least)} are expected, "
            f"{format_bytes(sum(held))} of them for the policies: {_TO_TAKE_LESS}"
        )
    elif sum(most) > size:
        notes.append(
            f"{where} has {format_bytes(size)} of memory, and sequences as long, and micro-batches as full, as the "
            f"options allow would take {format_bytes(sum(most))}: {_BOUNDED_BY} bound it"
        )
    fits = "does not fit" if least > size else "fits"
    parts = [f"{format_bytes(sum(held))} are held", f"at most {format_bytes(sum(most))} taken"]
    if expected is not None:
        parts.insert(1, f"about {format_bytes(expected)} expected at the peak")
    line = f"in all {', '.join(parts[:-1])}, and {parts[-1]}"
    return EnginePlan(
        tables=(table,),
        lines=(line, f"it {fits} {where}, which has {format_bytes(size)}"),
        notes=tuple(notes),
        details={"local": dict(memory), "expected": expected, "problems": tuple(problems)},
    )


def check_memory(
    memory: Mapping[str, MemoryParts],
    options: LocalOptions,
    node: Node,
    *,
    expected: int | None,
    free: int | None,
    swap: int,
) -> str | None:
    """Check a start against the memory of this machine; return a warning where the peak that is expected, or else what
    is held in any case, is more than is `free` now (None: not known).

    What is expected is an estimate, and others may let go of memory: only what cannot work is refused. Raises
    ConfigError if the policies hold more than there is, with the `swap` space.
    """
    size, where = memory_of(options, node)
    held = sum(_sum_parts(parts, HELD) for parts in memory.values())
    on_gpu = options.device != "cpu" and bool(node.gpus)
    if held > size + (0 if on_gpu else swap):
        raise ConfigError(_cannot_hold(where, size, held))
    needed = held if expected is None else expected
    if on_gpu or free is None or needed <= free:
        return None
    return (
        f"about {format_bytes(needed)} of memory are expected at the peak, {format_bytes(held)} of them for the "
        f"policies, and {format_bytes(free)} of {format_bytes(size)} are free now. Beyond that the system may end the "
        f"run: {_TO_TAKE_LESS}. `mappa plan` lists the parts"
    )


def _cannot_hold(where: str, size: int, held: int) -> str:
    return (
        f"engine: {where} has {format_bytes(size)} of memory, and the policies hold {format_bytes(held)} before "
        "anything is computed: use fewer or smaller ones, or policies.default.kind=lora, which share a model"
    )


def _sum_parts(parts: MemoryParts, names: Sequence[MemoryPart]) -> int:
    return sum(parts[name] for name in names if name in parts)


def memory_of(options: LocalOptions, node: Node) -> tuple[int, str]:
    """Return the memory that everything is in, and what it is called."""
    if options.device != "cpu" and node.gpus:
        return node.gpus[0].size, "the GPU"
    return node.memory, "this machine"
