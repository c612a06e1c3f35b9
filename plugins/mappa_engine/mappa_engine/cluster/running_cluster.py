"""The processes of the engine `cluster`: learner groups, sampler pools and the transfer of weights between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import structlog

from mappa_core import ConfigError, RunError
from mappa_core.engine import (
    Advantages,
    EngineError,
    EngineLost,
    Experience,
    Loss,
    PolicySpec,
    Process,
    Receipt,
    TrainSection,
)
from mappa_engine.checkpoint import WEIGHTS_FILE, has_tensors
from mappa_engine.cluster.actors import RayActors, ReservedBundle
from mappa_engine.cluster.builder import ClusterSetup, EngineBuilder, build_route
from mappa_engine.cluster.discovery import discover_resources
from mappa_engine.cluster.errors import NodeLost
from mappa_engine.cluster.learners import LearnerGroup
from mappa_engine.cluster.placement import Resources, find_placement, format_placement, read_shape
from mappa_engine.cluster.samplers.pool import SamplerPool
from mappa_engine.cluster.samplers.sampler import ClusterSampler
from mappa_engine.cluster.sync.from_checkpoint import CheckpointWeights, checkpoint_version
from mappa_engine.cluster.sync.publisher import Publisher
from mappa_engine.learning.scoring import merge_scores
from mappa_engine.memory_estimate import checkpoint_bytes
from mappa_engine.model_info import read_model_info, read_weight_names
from mappa_engine.options import ClusterOptions

log = structlog.get_logger()
T = TypeVar("T")


class RunningCluster:
    """Runs learners and samplers as separate processes, here or on other machines; the driver holds no weights.

    After EngineLost or a failed publish it must be closed.
    """

    def __init__(self, options: ClusterOptions) -> None:
        self._options = options
        self._stack = AsyncExitStack()
        self._ray_actors: RayActors | None = None
        self._setup: ClusterSetup | None = None
        self._groups: tuple[LearnerGroup, ...] = ()
        self._pools: dict[str, SamplerPool] = {}
        """Sampler pools by policy."""
        self._samplers: dict[str, ClusterSampler] = {}
        self._publisher = Publisher((), seed=0, deadline_s=options.sync_s)
        self._folders: dict[str, Path] = {}
        """Checkpoint folders of served policies that no learner here trains."""
        self._weights_lock = asyncio.Lock()
        """Held while weights are updated or published: a restarted sampler waits for complete ones."""

    @property
    def processes(self) -> tuple[Process, ...]:
        """Sampler and learner processes."""
        return () if self._ray_actors is None else self._ray_actors.processes

    async def open(self, policies: Sequence[PolicySpec], train: TrainSection | None, *, seed: int) -> None:
        """Start Ray or connect to it, place the policies, start all processes and verify that samplers and learners
        agree.

        Raises ConfigError, ModelError or RunError where settings or models cannot be used, or do not fit.
        """
        try:
            await self._open(policies, train, seed)
        except BaseException:
            await self.close()
            raise

    async def _open(self, policies: Sequence[PolicySpec], train: TrainSection | None, seed: int) -> None:
        options, models = self._options, tuple(dict.fromkeys(spec.model for spec in policies))
        readings = {model: await asyncio.to_thread(read_model_info, model) for model in models}
        shapes = {model: read_shape(model) for model in models}
        ray_actors = self._ray_actors = await RayActors.open(
            options.address, deadline_s=options.start_s, logs=None if options.logs is None else Path(options.logs)
        )
        self._stack.push_async_callback(ray_actors.close)
        weight_names = {model: read_weight_names(reading) for model, reading in readings.items()}

        def place(resources: Resources) -> ClusterSetup:
            micro_tokens = None if train is None else train.micro_tokens
            placement = find_placement(policies, shapes, resources, options, micro_tokens=micro_tokens)
            return ClusterSetup(
                specs={spec.name: spec for spec in policies},
                readings=readings,
                shapes=shapes,
                weight_names=weight_names,
                placement=placement,
                options=placement.options,
                train=train,
                seed=seed,
            )

        setup, slots = await self._reserve(ray_actors, place)
        self._setup = setup
        log.info("\n".join(["who runs where", *format_placement(setup.placement)]))
        builder = EngineBuilder(setup, ray_actors, slots)
        if setup.colocated:
            await self._open_groups(builder)
            await _gather(*(group.offload() for group in self._groups))
            await self._open_pools(builder)
            await self._give_gpus_to_learners()
        else:
            await _gather(self._open_groups(builder), self._open_pools(builder))
        await self._publish_first()

    async def _reserve(
        self, ray_actors: RayActors, place: Callable[[Resources], ClusterSetup]
    ) -> tuple[ClusterSetup, tuple[ReservedBundle, ...]]:
        """Place everything and reserve its resources; once more where a node is gone, which Ray lists until it misses
        it."""
        while True:
            try:
                setup = place(await discover_resources(ray_actors, deadline_s=self._options.start_s))
                slots = await ray_actors.reserve(setup.placement.bundles, deadline_s=self._options.start_s)
            except NodeLost as lost:
                log.warning("everything is placed again", reason=str(lost))
            else:
                return setup, slots

    async def _open_groups(self, builder: EngineBuilder) -> None:
        self._groups = tuple(await _gather(*(builder.open_group(one) for one in self._open_setup.placement.groups)))

    async def _open_pools(self, builder: EngineBuilder) -> None:
        setup = self._open_setup
        for pool_placement in setup.placement.pools:
            pool = builder.build_pool(pool_placement, self._refresh, self._room_for_samplers)
            self._stack.push_async_callback(pool.close)
            for name in pool_placement.policies:
                spec = setup.specs[name]
                self._pools[name] = pool
                self._samplers[name] = ClusterSampler(
                    name,
                    setup.readings[spec.model],
                    pool,
                    window=setup.window(spec.model),
                    template_kwargs=spec.template_kwargs,
                )
        await _gather(*(pool.open() for pool in dict.fromkeys(self._pools.values())))

    async def _publish_first(self) -> None:
        """Publish the start weights, which verifies samplers against learners before anything is sampled."""
        setup = self._open_setup
        routes = [
            build_route(setup, policy, group, self._pools[policy], probed=True)
            for group in self._groups
            for policy in group.policies
        ]
        self._publisher = Publisher(routes, seed=setup.seed, deadline_s=self._options.sync_s)
        starts = {name: spec.start for name, spec in setup.specs.items() if spec.start is not None}
        await self._publish_all(starts)

    def sampler(self, policy: str) -> ClusterSampler:
        """Return the sampler of `policy`."""
        if policy not in self._samplers:
            raise EngineError(f"the engine was not opened with a policy {policy!r}, only with {sorted(self._samplers)}")
        return self._samplers[policy]

    async def score(self, experience: Experience) -> Experience:
        """Fill old_logprobs, ref_logprobs and values (NaN for policies without a value head) of all rows."""
        held = {policy for group in self._learners for policy in group.policies}
        if unknown := [policy for policy in experience.policies if policy not in held]:
            raise ConfigError(
                f"the policy {unknown[0]} is not trained, and the engine cluster scores tokens with learners alone"
            )
        async with self._weights_lock:
            await self._give_gpus_to_learners()
            self._publisher.take_probes_from(experience)
            reference = self._open_ray_actors.put(experience)
            shares = await _gather(*(group.score(reference) for group in self._learners))
        return merge_scores(experience, [one for share in shares for one in share])

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        """Take the optimiser steps of one iteration; returns metrics by policy, the same as the engine `local`."""
        async with self._weights_lock:
            await self._give_gpus_to_learners()
            references = self._open_ray_actors.put(experience), self._open_ray_actors.put(advantages)
            results = await _gather(*(group.update(*references, loss, progress) for group in self._learners))
        return {name: metrics for metrics_of in results for name, metrics in metrics_of.items()}

    async def publish(self) -> Mapping[str, Receipt]:
        """Publish the new weights to the samplers, verified; each is paused until it has loaded them completely."""
        async with self._weights_lock:
            for group in self._learners:
                group.advance_versions()
            return await self._publisher.publish(self._versions)

    async def save(self, folder: Path, dtype: str) -> None:
        """Write weights and optimiser of every trained policy to a subfolder of its name. The learners' machines must
        see the folder, too."""
        async with self._weights_lock:
            await _gather(*(group.save(folder, dtype) for group in self._learners))
        missing = [name for name in self._versions if not has_tensors(folder / name / WEIGHTS_FILE)]
        if missing:
            raise RunError(
                f"{folder}: learners on another machine wrote there, and nothing of {missing[0]!r} is seen here. Put "
                "run.root on a file system that all machines share."
            )

    def checkpoint_bytes(self, dtype: str) -> int:
        """Compute the size of what `save` writes."""
        setup = self._open_setup
        trained = (spec for spec in setup.specs.values() if spec.trained)
        return sum(checkpoint_bytes(setup.shapes[spec.model], spec.lora, dtype) for spec in trained)

    async def load(self, folder: Path) -> None:
        """Load what `save` of any engine wrote. Raises RunError where it is of other policies."""
        async with self._weights_lock:
            await self._give_gpus_to_learners()
            await _gather(*(group.load(folder) for group in self._groups))
        await self._publish_all({name: folder / name for name, spec in self._open_setup.specs.items() if spec.trained})

    async def close(self) -> None:
        """End all processes, and Ray if it was started here."""
        groups, self._groups = self._groups, ()
        try:
            await asyncio.gather(*(group.close() for group in groups))
        finally:
            await self._stack.aclose()
            self._ray_actors = None

    async def _publish_all(self, folders: Mapping[str, Path]) -> None:
        """Publish the learners' weights to the samplers and, for policies that no learner here trains, those in
        `folders`."""
        held = self._versions
        self._folders.update({name: folder for name, folder in folders.items() if name not in held})
        async with self._weights_lock:
            if held:
                await self._publisher.publish(held)
            if self._folders:
                publisher, versions = self._checkpoint_publisher()
                await publisher.publish(versions)

    async def _refresh(self, engine: str) -> None:
        """Publish the current weights to one restarted engine."""
        async with self._weights_lock:
            await self._publisher.refresh(engine, self._versions)
            if self._folders:
                publisher, versions = self._checkpoint_publisher()
                await publisher.refresh(engine, versions)

    def _checkpoint_publisher(self) -> tuple[Publisher, dict[str, int]]:
        """Build the publisher of weights in checkpoint folders, and return it with their versions."""
        setup, folders = self._open_setup, self._folders
        stored = CheckpointWeights(
            folders,
            adapters=frozenset(name for name in folders if setup.specs[name].lora is not None),
            dtype=setup.placement.dtype,
            put=self._open_ray_actors.put,
        )
        routes = [build_route(setup, name, stored, self._pools[name], probed=False) for name in folders]
        versions = {name: checkpoint_version(folder) for name, folder in folders.items()}
        return Publisher(routes, seed=setup.seed, deadline_s=self._options.sync_s), versions

    async def _give_gpus_to_learners(self) -> None:
        """Move colocated samplers off the GPUs and learners onto them. A publish reverses it."""
        if self._open_setup.colocated:
            for pool in self._pools_to_offload:
                for engine in pool.engines:
                    try:
                        await engine.pause()
                        await engine.sleep()
                    except EngineLost:
                        await engine.end()  # what it still held is free then
            await _gather(*(group.reload() for group in self._groups))

    @asynccontextmanager
    async def _room_for_samplers(self) -> AsyncIterator[None]:
        """Keep learners off GPUs that they share with samplers."""
        if not self._open_setup.colocated:
            yield
            return
        async with self._weights_lock:
            await _gather(*(group.offload() for group in self._groups))
            yield

    @property
    def _pools_to_offload(self) -> list[SamplerPool]:
        """Pools that free their GPUs for learners: adapters are small, so their engines stay."""
        full = (name for name, spec in self._open_setup.specs.items() if spec.kind == "full")
        return list(dict.fromkeys(self._pools[name] for name in full))

    @property
    def _versions(self) -> dict[str, int]:
        """Weight versions of the policies that learners hold."""
        return {name: version for group in self._groups for name, version in group.versions.items()}

    @property
    def _open_setup(self) -> ClusterSetup:
        if self._setup is None:
            raise EngineError("the engine is not open")
        return self._setup

    @property
    def _open_ray_actors(self) -> RayActors:
        if self._ray_actors is None:
            raise EngineError("the engine is not open")
        return self._ray_actors

    @property
    def _learners(self) -> tuple[LearnerGroup, ...]:
        if not self._groups:
            raise EngineError("the engine was opened for sampling only")
        return self._groups


async def _gather(*awaited: Awaitable[T]) -> list[T]:
    """Wait for all and return their results in order; then raise the first failure."""
    results = await asyncio.gather(*awaited, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
