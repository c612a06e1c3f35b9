"""Builds learner groups, sampler pools and weight routes from a placement."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from mappa_core.engine import Lora
from mappa_engine.adapters import LORA_MATRICES, PEFT_PREFIX, adapter_config
from mappa_engine.cluster.actors import RayActors, ReservedBundle
from mappa_engine.cluster.learners import LearnerConfig, LearnerGroup
from mappa_engine.cluster.placement import GroupPlacement, ModelShape, PoolPlacement
from mappa_engine.cluster.samplers.messages import SamplerConfig
from mappa_engine.cluster.samplers.pool import SamplerPool
from mappa_engine.cluster.samplers.remote_engine import Deadlines, EngineResources
from mappa_engine.cluster.setup import ClusterSetup
from mappa_engine.cluster.sync.gpu_transfer import GpuTransfer
from mappa_engine.cluster.sync.interfaces import WeightProvider
from mappa_engine.cluster.sync.probe import MAX_MEAN_NATS
from mappa_engine.cluster.sync.publisher import WeightRoute


class EngineBuilder:
    """Starts learner groups and sampler pools of a setup on its reserved slots."""

    def __init__(self, setup: ClusterSetup, ray_actors: RayActors, slots: Sequence[ReservedBundle]) -> None:
        self._setup = setup
        self._ray_actors = ray_actors
        self._slots = slots

    async def open_group(self, placed: GroupPlacement) -> LearnerGroup:
        """Start a learner group, and load its policies."""
        setup = self._setup
        assert setup.train is not None  # without training there are no groups
        config = LearnerConfig(
            specs=tuple(setup.specs[name] for name in placed.policies),
            train=setup.train,
            options=setup.options,
            dtype=setup.placement.dtype,
            gpu=setup.gpu,
            seed=setup.seed,
            threads=setup.threads("learner", placed.slots),
        )
        share = min(setup.slot_fraction(slot) for slot in placed.slots)
        return await LearnerGroup.open(
            placed.name,
            self._ray_actors,
            config,
            slots=[self._slots[slot] for slot in placed.slots],
            cpus=share,
            gpus=share if setup.gpu else 0.0,
        )

    def build_pool(
        self,
        placed: PoolPlacement,
        refresh: Callable[[str], Awaitable[object]],
        room: Callable[[], AbstractAsyncContextManager[object]],
    ) -> SamplerPool:
        """Build the sampler pool of a model; its engines are not started."""
        setup, options = self._setup, self._setup.options
        return SamplerPool(
            self._ray_actors,
            self._sampler_config(placed),
            [self._engine_resources(placed, engine) for engine in placed.engines],
            name=placed.name,
            full=any(setup.specs[name].kind == "full" for name in placed.policies),
            deadlines=Deadlines(start_s=options.start_s, sync_s=options.sync_s, call_s=options.call_s),
            refresh=refresh,
            room=room,
        )

    def _engine_resources(self, placed: PoolPlacement, slots: Sequence[int]) -> EngineResources:
        setup = self._setup
        share = min(setup.slot_fraction(slot) for slot in slots)
        first, *others = (self._slots[slot] for slot in slots)
        return EngineResources(
            slot=first,
            cpus=share,
            gpus=share if setup.gpu else 0.0,
            other_slots=tuple(others),
            memory_share=max(setup.memory_share(placed, slot) for slot in slots),
        )

    def _sampler_config(self, placed: PoolPlacement) -> SamplerConfig:
        setup, options = self._setup, self._setup.options
        model = setup.models[placed.model]
        adapters = [spec for name in placed.policies if (spec := setup.specs[name]).lora is not None]
        return SamplerConfig(
            model=model.model_path,
            device="cuda" if setup.gpu else "cpu",
            dtype=setup.placement.dtype,
            window=setup.window(placed.model),
            kv_cache_bytes=options.kv_cache_mb << 20,
            max_batch=options.max_batch,
            threads=setup.threads("sampler", {slot for engine in placed.engines for slot in engine}),
            prefix_caching=options.prefix_caching,
            tensor_parallel=options.tensor_parallel,
            isolate_waves=options.deterministic,
            adapter_policies=tuple(adapter.name for adapter in adapters),
            lora_rank=max((adapter.lora.rank for adapter in adapters if adapter.lora is not None), default=0),
            # Running requests keep the adapter that they started with.
            max_adapters=len(adapters) * (options.max_staleness + 2),
            tied=setup.tied_names(placed.model),
            transport=setup.transport,
            serve_base_without_adapter=setup.train is None,
            sleep_mode=setup.colocated,
            seed=setup.seed,
        )


def build_route(
    setup: ClusterSetup, policy: str, learners: WeightProvider, pool: SamplerPool, *, probed: bool
) -> WeightRoute:
    """Build the route of a policy's weights from learners to the engines that serve it."""
    spec, dtype = setup.specs[policy], setup.placement.dtype
    shape, names = setup.shapes[spec.model], setup.weight_names[spec.model].names
    kind: dict[str, Any] = {"tied": setup.tied_names(spec.model), "colocated": setup.colocated and spec.kind == "full"}
    if spec.lora is not None:
        layers = _adapted_layers(spec.lora, names, shape)
        names = frozenset(f"{PEFT_PREFIX}{layer}.{side}.weight" for layer in layers for side in LORA_MATRICES)
        kind = {"adapter": adapter_config(spec.lora, _module_names(layers), base=spec.model)}
    elif isinstance(learners, LearnerGroup) and setup.transport != "store":
        kind["transfer"] = _gpu_transfer(setup, learners, pool)
    return WeightRoute(
        policy=policy,
        learners=learners,
        samplers=pool,
        tensors=names,
        probe_limit=(setup.options.probe_limit or MAX_MEAN_NATS[dtype]) if probed else None,
        vocabulary=shape.vocabulary,
        window=setup.window(spec.model),
        **kind,
    )


def _adapted_layers(lora: Lora, tensors: Collection[str], shape: ModelShape) -> list[str]:
    """List the paths of the layers that an adapter changes, sorted."""
    linear = {name for name, _ in shape.linears}
    chosen = linear if lora.targets is None else linear & set(lora.targets)
    layers = (name.removesuffix(".weight") for name in tensors if name.endswith(".weight"))
    return sorted(layer for layer in layers if layer.rpartition(".")[2] in chosen)


def _gpu_transfer(setup: ClusterSetup, group: LearnerGroup, pool: SamplerPool) -> Any:
    """Build the transfer from GPU to GPU."""
    workers = [setup.options.tensor_parallel] * len(pool.engines)
    transport: Any = setup.transport
    return GpuTransfer(transport, group, lambda: [engine.actor.handle for engine in pool.engines], workers).transfer


def _module_names(layers: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted({layer.rpartition(".")[2] for layer in layers}))
