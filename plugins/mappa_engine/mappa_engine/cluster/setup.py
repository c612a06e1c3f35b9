"""What an engine knows before its processes start: policies, models, and a placement on resources that are reserved."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import structlog

from mappa_core.engine import PolicySpec, TrainSection
from mappa_engine.cluster.actors import RayActors, ReservedBundle
from mappa_engine.cluster.discovery import discover_resources
from mappa_engine.cluster.errors import NodeLost
from mappa_engine.cluster.placement import ModelShape, Placement, PoolPlacement, find_placement, read_shape
from mappa_engine.cluster.placement.memory import ActorRole
from mappa_engine.model_info import ModelInfo, WeightNames, read_model_info, read_weight_names
from mappa_engine.model_shape import is_large
from mappa_engine.options import ClusterOptions, PlacedOptions

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClusterSetup:
    """Everything that is known before processes start: policies, models, placement and options."""

    specs: Mapping[str, PolicySpec]
    models: Mapping[str, ModelInfo]
    """By their names in the recipe, as are `shapes` and `weight_names`."""
    shapes: Mapping[str, ModelShape]
    weight_names: Mapping[str, WeightNames]
    placement: Placement
    options: PlacedOptions
    train: TrainSection | None
    seed: int

    @property
    def gpu(self) -> bool:
        """Whether learners and samplers compute on GPUs."""
        return self.placement.device == "gpu"

    @property
    def colocated(self) -> bool:
        """Whether learners and samplers share GPUs in turns."""
        return self.gpu and self.options.placement == "colocated" and self.train is not None

    @property
    def transport(self) -> str:
        """Transport of full weights to samplers: store, nccl or ipc."""
        if self.options.transport != "auto":
            return self.options.transport
        if not self.gpu or self.train is None:
            return "store"
        return "ipc" if self.options.placement == "colocated" else "nccl"

    def threads(self, role: ActorRole, slots: Collection[int]) -> int:
        """Return how many threads each actor of `role` on these slots computes with."""
        large = is_large(max(shape.parameters for shape in self.shapes.values()))
        # On one thread sums are the same on every number of cores.
        several = large and not self.gpu and not self.options.deterministic
        return self.placement.cores_for(role, slots) if several else 1

    def window(self, model: str) -> int:
        """Return the context window of a sampler: maximum tokens of prompt plus action."""
        return self.options.max_model_len or self.models[model].window

    def tied_names(self, model: str) -> Mapping[str, str]:
        """Map the name of every tied weight to its second one. Between GPUs it is sent once, and the map is empty."""
        return self.weight_names[model].tied if self.transport == "store" else {}

    def slot_fraction(self, slot: int) -> float:
        """Return the fraction of a slot that each of its actors gets."""
        return 1.0 / len(self.placement.loads_on(slot))

    def memory_share(self, pool: PoolPlacement, slot: int) -> float:
        """Return the share of a GPU's memory that an engine of `pool` takes of it, beyond the CUDA context, which is
        there when vLLM measures what is free; 1 on a CPU."""
        size = self.placement.slots[slot].size
        if size is None:
            return 1.0
        own = f"sampler {pool.name}"
        load = next(load for load in self.placement.loads_on(slot) if f"{load.actor} ".startswith(f"{own} "))
        parts = load.by_phase["sampling"].items()
        return min(1.0, sum(part for what, part in parts if what != "context") / size)


async def read_models(policies: Sequence[PolicySpec]) -> Mapping[str, ModelInfo]:
    """Read every model of the policies, except for its weights. Raises ModelError if one cannot be used."""
    names = dict.fromkeys(spec.model for spec in policies)
    return {name: await asyncio.to_thread(read_model_info, name) for name in names}


async def reserve_setup(
    ray_actors: RayActors,
    policies: Sequence[PolicySpec],
    models: Mapping[str, ModelInfo],
    train: TrainSection | None,
    options: ClusterOptions,
    *,
    seed: int,
) -> tuple[ClusterSetup, tuple[ReservedBundle, ...]]:
    """Place the policies on the nodes that there are, and reserve what they take.

    Raises ConfigError where they do not fit, ModelError where a model is none that can be trained.
    """
    weight_names = {name: read_weight_names(model) for name, model in models.items()}
    shapes = {name: read_shape(name) for name in models}
    while True:
        # Ray lists a node until it has missed it for some seconds: if one of those placed on is gone, place again.
        try:
            resources = await discover_resources(ray_actors, deadline_s=options.start_s)
            placement = find_placement(policies, shapes, resources, options, train=train)
            slots = await ray_actors.reserve(placement.bundles, deadline_s=options.start_s)
        except NodeLost as lost:
            log.warning("everything is placed again", reason=str(lost))
            continue
        setup = ClusterSetup(
            specs={spec.name: spec for spec in policies},
            models=models,
            shapes=shapes,
            weight_names=weight_names,
            placement=placement,
            options=placement.options,
            train=train,
            seed=seed,
        )
        return setup, slots
