"""What the engine of a recipe takes of memory, and where its policies run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mappa_core.config.schema import RunConfig
from mappa_core.engine import footprint
from mappa_core.engine.cluster.placement import Placement, Resources, place, read_shape
from mappa_core.engine.footprint import Parts
from mappa_core.engine.options import ClusterOptions, LocalOptions
from mappa_core.engine.shapes import ModelShape
from mappa_core.errors import ModelError
from mappa_core.protocols import PolicySpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What an engine takes. The engine `cluster` has a `placement`; the engine `local` bytes by policy and part, with
    what all policies share under no name. Where neither can be told, `unknown` says why."""

    placement: Placement | None = None
    local: Mapping[str, Parts] | None = None
    unknown: str | None = None


def memory(config: RunConfig, policies: Sequence[PolicySpec], resources: Resources, *, learning: bool) -> Memory:
    """The memory of a recipe's engine.

    Raises:
        ConfigError: the engine is `cluster`, and its options make no sense or the policies do not fit.
    """
    options: Any = config.engine.options
    if not policies:
        return Memory(unknown="every policy is behind an API: there are no weights here")
    if not isinstance(options, LocalOptions | ClusterOptions):
        return Memory(unknown=f"the engine {config.engine.use} is not one of core's")
    try:
        shapes = {model: read_shape(model) for model in dict.fromkeys(one.model for one in policies)}
    except ModelError as error:
        return Memory(unknown=str(error))
    if isinstance(options, LocalOptions):
        return Memory(local=local_memory(config, policies, shapes, options, learning=learning))
    tokens = config.train.micro_tokens if learning else None
    return Memory(placement=place(policies, shapes, resources, options, micro_tokens=tokens))


def local_memory(
    config: RunConfig,
    policies: Sequence[PolicySpec],
    shapes: Mapping[str, ModelShape],
    options: LocalOptions,
    *,
    learning: bool,
) -> dict[str, Parts]:
    """The engine `local`: a module for every `full` policy, and one for every model, which is reference, base of
    adapters and what is frozen. Keys and values, and activations, are what they can come to at most."""
    dtype, width = options.dtype, footprint.WIDTH[options.dtype]
    rows = min(options.max_batch, config.sampling.concurrency)
    found: dict[str, Parts] = {}
    for one in policies:
        shape = shapes[one.model]
        parts: Parts = {}
        if learning and one.lora is not None:
            parts = footprint.adapter(shape.adapter(one.lora))
        elif learning and one.trained:
            # Of a model in bfloat16 gradients are there twice for a moment, as with DeepSpeed's first stage.
            parts = footprint.full(shape, dtype, zero=0 if width == footprint.FLOAT32 else 1)
        elif one.kind == "full":
            parts = {"weights": footprint.weights(shape, dtype)}
        found[one.name] = footprint.added(parts, {"kv cache": footprint.kv_cache(shape, dtype, rows * shape.window)})
    kept = {one.model for one in policies if learning or one.kind != "full"}
    shared: Parts = {"reference": sum(footprint.weights(shapes[model], dtype) for model in kept)}
    if learning:
        longest = {model: max(config.train.micro_tokens, shape.window) for model, shape in shapes.items()}
        shared["activations"] = max(
            footprint.activations(shape, dtype, longest[model]) for model, shape in shapes.items()
        )
    return {**found, "": {name: size for name, size in shared.items() if size}}
