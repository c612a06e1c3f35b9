"""Memory of the engine `local`, computed from the shapes of its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mappa_core.engine import EnginePlan, PolicySpec
from mappa_engine import memory_estimate
from mappa_engine.memory_estimate import MemoryParts, SavedActivations, format_bytes
from mappa_engine.model_shape import ModelShape
from mappa_engine.options import LocalOptions

_SAMPLING_BYTES = 4 + 4 + 8 + 8
"""Bytes per logit while a token is sampled: it and its log-probability, its probability and their sums in float64."""


def estimate_local_memory(
    policies: Sequence[PolicySpec],
    shapes: Mapping[str, ModelShape],
    options: LocalOptions,
    *,
    micro_tokens: int | None,
    rows: int,
) -> dict[str, MemoryParts]:
    """Estimate the memory by policy and part; parts that all policies share are under the empty name.

    There is one module per `full` policy, and one per model, which serves as the reference, the base of adapters and
    the frozen policies. KV cache, activations and the workspace of sampling are upper bounds. `micro_tokens` is None
    without training; `rows` are decoded at a time.
    """

    def window(shape: ModelShape) -> int:
        return min(shape.window, options.max_model_len or shape.window)

    dtype, width, learning = options.dtype, memory_estimate.BYTES_PER_NUMBER[options.dtype], micro_tokens is not None
    found: dict[str, MemoryParts] = {}
    for one in policies:
        shape = shapes[one.model]
        parts: MemoryParts = {}
        if learning and one.lora is not None:
            parts = memory_estimate.adapter_memory(shape.adapter(one.lora))
        elif learning and one.trained:
            # In bfloat16 the gradients exist twice for a moment, as in DeepSpeed's ZeRO stage 1.
            parts = memory_estimate.full_training_memory(
                shape, dtype, zero=0 if width == memory_estimate.FLOAT32_BYTES else 1
            )
        elif one.kind == "full":
            parts = {"weights": memory_estimate.weight_bytes(shape, dtype)}
        cached = memory_estimate.kv_cache_bytes(shape, dtype, min(options.max_batch, rows) * window(shape))
        found[one.name] = memory_estimate.add_parts(parts, {"kv cache": min(cached, options.kv_cache_mb << 20)})
    kept = {one.model for one in policies if learning or one.kind != "full"}
    shared: MemoryParts = {"reference": sum(memory_estimate.weight_bytes(shapes[model], dtype) for model in kept)}
    if micro_tokens is not None:
        saved: SavedActivations = "inputs" if options.gradient_checkpointing else "all"
        shared["activations"] = max(
            memory_estimate.activation_bytes(shape, dtype, max(micro_tokens, window(shape)), saved=saved)
            for shape in shapes.values()
        )
    shared["workspace"] = max(_sampling_bytes(shape, dtype, options, rows) for shape in shapes.values())
    return {**found, "": {name: size for name, size in shared.items() if size}}


def _sampling_bytes(shape: ModelShape, dtype: str, options: LocalOptions, rows: int) -> int:
    """Compute the size of what a sampler holds for a moment: a prefill's activations, keys and values, or the logits of
    all rows, their log-probabilities, probabilities and sums."""
    prefill = memory_estimate.activation_bytes(shape, dtype, options.prefill_tokens, saved="nothing")
    prefill += memory_estimate.kv_cache_bytes(shape, dtype, options.prefill_tokens)
    return max(prefill, min(options.max_batch, rows) * shape.vocabulary * _SAMPLING_BYTES)


def memory_plan(memory: Mapping[str, MemoryParts]) -> EnginePlan:
    """Build the plan: a table with a column per policy and for shared memory, and a row per part."""
    names = list(dict.fromkeys(part for parts in memory.values() for part in parts))
    table = (
        ("memory", *(who or "shared" for who in memory)),
        *((name, *(format_bytes(own[name]) if name in own else "" for own in memory.values())) for name in names),
        ("in all", *(format_bytes(sum(parts.values())) for parts in memory.values())),
    )
    return EnginePlan(tables=(table,), details={"local": dict(memory)})
