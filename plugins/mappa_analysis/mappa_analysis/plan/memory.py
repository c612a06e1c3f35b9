"""Estimates the memory of a recipe's engine and the placement of its policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mappa_core.config.schema import RunConfig
from mappa_core.errors import ModelError
from mappa_core.protocols import PolicySpec
from mappa_engine import memory_estimate
from mappa_engine.cluster.placement import Placement, Resources, find_placement, read_shape
from mappa_engine.memory_estimate import MemoryParts
from mappa_engine.model_shape import ModelShape
from mappa_engine.options import ClusterOptions, LocalOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """The memory of an engine. The engine `cluster` has a `placement`; the engine `local` has bytes by policy and part,
    with the parts that all policies share under the empty name. If neither is known, `unknown` is the reason."""

    placement: Placement | None = None
    local: Mapping[str, MemoryParts] | None = None
    unknown: str | None = None


def estimate_memory(
    config: RunConfig, policies: Sequence[PolicySpec], resources: Resources, *, learning: bool
) -> EngineMemory:
    """Estimate the memory of a recipe's engine.

    Raises:
        ConfigError: the engine is `cluster`, and its options are inconsistent or the policies do not fit.
    """
    options: Any = config.engine.options
    if not policies:
        return EngineMemory(unknown="every policy is behind an API: there are no weights here")
    if not isinstance(options, LocalOptions | ClusterOptions):
        return EngineMemory(unknown=f"the engine {config.engine.use} is not one of core's")
    try:
        shapes = {model: read_shape(model) for model in dict.fromkeys(one.model for one in policies)}
    except ModelError as error:
        return EngineMemory(unknown=str(error))
    if isinstance(options, LocalOptions):
        return EngineMemory(local=estimate_local_memory(config, policies, shapes, options, learning=learning))
    tokens = config.train.micro_tokens if learning else None
    return EngineMemory(placement=find_placement(policies, shapes, resources, options, micro_tokens=tokens))


def estimate_local_memory(
    config: RunConfig,
    policies: Sequence[PolicySpec],
    shapes: Mapping[str, ModelShape],
    options: LocalOptions,
    *,
    learning: bool,
) -> dict[str, MemoryParts]:
    """Estimate the engine `local`: one module per `full` policy, and one per model, which serves as the reference, the
    base of adapters and the frozen policies. KV cache and activations are upper bounds."""
    dtype, width = options.dtype, memory_estimate.BYTES_PER_NUMBER[options.dtype]
    rows = min(options.max_batch, config.sampling.concurrency)
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
        found[one.name] = memory_estimate.add_parts(
            parts, {"kv cache": memory_estimate.kv_cache_bytes(shape, dtype, rows * shape.window)}
        )
    kept = {one.model for one in policies if learning or one.kind != "full"}
    shared: MemoryParts = {"reference": sum(memory_estimate.weight_bytes(shapes[model], dtype) for model in kept)}
    if learning:
        longest = {model: max(config.train.micro_tokens, shape.window) for model, shape in shapes.items()}
        shared["activations"] = max(
            memory_estimate.activation_bytes(shape, dtype, longest[model]) for model, shape in shapes.items()
        )
    return {**found, "": {name: size for name, size in shared.items() if size}}
