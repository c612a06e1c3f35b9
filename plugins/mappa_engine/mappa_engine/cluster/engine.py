"""Engine `cluster`: implements the engine protocol with processes on one machine or many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import structlog

from mappa_core import ConfigError, RunError
from mappa_core.engine import (
    Advantages,
    Engine,
    EngineError,
    EngineLost,
    EnginePlan,
    Experience,
    Loss,
    Machine,
    PolicySpec,
    Process,
    Receipt,
    Sampler,
    TrainSection,
)
from mappa_engine.cluster.actors import RayActors
from mappa_engine.cluster.experimental import experimental_warning
from mappa_engine.cluster.placement import format_placement, read_shape
from mappa_engine.cluster.placement.checks import check_options
from mappa_engine.cluster.plan import node_problems, plan_cluster
from mappa_engine.cluster.requirements import check_installed
from mappa_engine.cluster.sync.publisher import Publisher
from mappa_engine.errors import ModelError
from mappa_engine.memory_estimate import checkpoint_bytes
from mappa_engine.node import this_node
from mappa_engine.options import ClusterOptions
from mappa_engine.teacher_servers import TeacherServers

if TYPE_CHECKING:
    from mappa_engine.cluster.builder import EngineBuilder
    from mappa_engine.cluster.learners import LearnerGroup
    from mappa_engine.cluster.samplers.pool import SamplerPool
    from mappa_engine.cluster.samplers.remote_engine import RemoteEngine
    from mappa_engine.cluster.samplers.sampler import ClusterSampler
    from mappa_engine.cluster.setup import ClusterSetup

log = structlog.get_logger()
T = TypeVar("T")


class ClusterEngine(Engine):
    """Runs learners and samplers as separate processes, here or on other machines; the driver holds no weights.

    Ray and torch are imported when it opens, as a plan needs neither. After EngineLost or a failed publish it must be
    closed: the run opens a new engine and resumes from its last checkpoint.
    """

    def __init__(self, options: ClusterOptions) -> None:
        check_options(options)
        self._options = options
        self._teachers = TeacherServers(options.teachers)
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
    def deterministic(self) -> bool:
        """Whether equal requests in equal waves give bit-equal completions."""
        return self._options.deterministic

    @property
    def max_staleness(self) -> int:
        """Maximum number of updates between the weights that sampled and those that learn."""
        return self._options.max_staleness

    @property
    def straggler_share(self) -> float:
        """Fraction of an iteration's trajectories that it does not wait for."""
        return self._options.straggler_share

    @property
    def processes(self) -> tuple[Process, ...]:
        """Sampler and learner processes."""
        return () if self._ray_actors is None else self._ray_actors.processes

    def can_score(self, policy: PolicySpec) -> bool:
        """Whether a learner holds the policy, or a server; samplers score no given tokens."""
        return policy.trained or policy.name in self._teachers

    def plan(
        self, policies: Sequence[PolicySpec], train: TrainSection | None, *, rows: int, machines: Sequence[Machine]
    ) -> EnginePlan:
        """Place the policies on the machines' GPUs, or on CPUs if there are none; without machines on this one."""
        policies = self._teachers.loaded_by_engine(policies)
        try:
            shapes = {model: read_shape(model) for model in dict.fromkeys(spec.model for spec in policies)}
        except ModelError as error:
            problems = (str(error), *node_problems(this_node(), self._options))
            return EnginePlan(unknown=str(error), details={"problems": problems})
        return plan_cluster(policies, shapes, self._options, machines, train=train)

    def export(self, policy: PolicySpec, weights: Path, out: Path, *, merged: bool, dtype: str | None) -> None:
        """Write a policy of a checkpoint for Hugging Face's libraries, without its value head."""
        from mappa_engine.export import export

        export(weights, out, model=policy.model, lora=policy.lora, merged=merged, dtype=dtype)

    async def open(self, policies: Sequence[PolicySpec], train: TrainSection | None, *, seed: int) -> None:
        """Start Ray or connect to it, place the policies, start all processes and verify that samplers and learners
        agree.

        Raises ConfigError, ModelError or RunError where settings or models cannot be used, or do not fit.
        """
        check_installed()
        try:
            await self._teachers.open(policies, learning=train is not None)
            await self._open(self._teachers.loaded_by_engine(policies), train, seed)
        except BaseException:
            await self.close()
            raise

    async def _open(self, policies: Sequence[PolicySpec], train: TrainSection | None, seed: int) -> None:
        from mappa_engine.cluster.builder import EngineBuilder
        from mappa_engine.cluster.setup import read_models, reserve_setup

        options, models = self._options, await read_models(policies)
        ray_actors = self._ray_actors = await RayActors.open(
            options.address, deadline_s=options.start_s, logs=None if options.logs is None else Path(options.logs)
        )
        self._stack.push_async_callback(ray_actors.close)
        setup, slots = await reserve_setup(ray_actors, policies, models, train, options, seed=seed)
        self._setup = setup
        log.info("\n".join(["who runs where", *format_placement(setup.placement)]))
        if warning := experimental_warning(setup.placement):
            log.warning(warning)
        builder = EngineBuilder(setup, ray_actors, slots)
        if setup.colocated:
            # vLLM measures what is free of its GPU when it starts, so learners make room first.
            await self._open_groups(builder)
            await _gather(*(group.offload() for group in self._groups))
            await self._open_pools(builder)
            await self._give_gpus_to_learners()
        else:
            await _gather(self._open_groups(builder), self._open_pools(builder))
        await self._publish_first()

    async def _open_groups(self, builder: EngineBuilder) -> None:
        groups = self._open_setup.placement.groups
        self._groups = tuple(await _gather(*(builder.open_group(group) for group in groups)))

    async def _open_pools(self, builder: EngineBuilder) -> None:
        from mappa_engine.cluster.samplers.sampler import ClusterSampler

        setup = self._open_setup
        for pool_placement in setup.placement.pools:
            pool = builder.build_pool(pool_placement, self._refresh, self._room_for_samplers)
            self._stack.push_async_callback(pool.close)
            for name in pool_placement.policies:
                spec = setup.specs[name]
                self._pools[name] = pool
                self._samplers[name] = ClusterSampler(
                    name,
                    setup.models[spec.model],
                    pool,
                    window=setup.window(spec.model),
                    template_kwargs=spec.template_kwargs,
                )
        await _gather(*(pool.open() for pool in dict.fromkeys(self._pools.values())))

    async def _publish_first(self) -> None:
        """Publish the start weights, which verifies samplers against learners before anything is sampled."""
        from mappa_engine.cluster.builder import build_route

        setup = self._open_setup
        routes = [
            build_route(setup, policy, group, self._pools[policy], probed=True)
            for group in self._groups
            for policy in group.policies
        ]
        self._publisher = Publisher(routes, seed=setup.seed, deadline_s=self._options.sync_s)
        starts = {name: spec.start for name, spec in setup.specs.items() if spec.start is not None}
        await self._publish_all(starts)

    def sampler(self, policy: str) -> Sampler:
        """Return the sampler of `policy`."""
        if policy in self._teachers:
            return self._teachers.sampler(policy)
        if policy not in self._open_setup.specs:
            raise EngineError(f"the engine was not opened with a policy {policy!r}, only with {sorted(self._samplers)}")
        return self._samplers[policy]

    async def score(self, experience: Experience, *, reference: bool = True) -> Experience:
        """Fill old_logprobs, ref_logprobs (if `reference`) and values (NaN for policies without a value head) of all
        rows; of a teacher on a server old_logprobs alone."""
        from mappa_engine.learning.scoring import merge_scores

        if self._teachers.teach(experience):
            return await self._teachers.score(experience)
        held = {policy for group in self._learners for policy in group.policies}
        if unknown := [policy for policy in experience.policies if policy not in held]:
            raise ConfigError(
                f"the policy {unknown[0]} is not trained, and the engine cluster scores tokens with learners alone"
            )
        async with self._weights_lock:
            await self._give_gpus_to_learners()
            self._publisher.take_probes_from(experience)
            stored = self._open_ray_actors.put(experience)
            shares = await _gather(*(group.score(stored, reference=reference) for group in self._learners))
        return merge_scores(experience, [scores for share in shares for scores in share])

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        """Take the optimiser steps of one iteration; returns metrics by policy, the same as the engine `local`."""
        learners = self._learners
        async with self._weights_lock:
            await self._give_gpus_to_learners()
            references = self._open_ray_actors.put(experience), self._open_ray_actors.put(advantages)
            results = await _gather(*(group.update(*references, loss, progress) for group in learners))
        return {name: metrics for metrics_of in results for name, metrics in metrics_of.items()}

    async def publish(self) -> Mapping[str, Receipt]:
        """Publish the new weights to the samplers, verified; each is paused until it has loaded them completely."""
        async with self._weights_lock:
            for group in self._learners:
                group.advance_versions()
            return await self._publisher.publish(self._versions)

    def checkpoint_bytes(self, dtype: str) -> int | None:
        """Compute the size of what `save` writes."""
        setup = self._open_setup
        trained = (spec for spec in setup.specs.values() if spec.trained)
        computed = setup.placement.dtype
        return sum(checkpoint_bytes(spec, setup.shapes[spec.model], dtype, computed=computed) for spec in trained)

    async def save(self, folder: Path, *, dtype: str = "float32") -> None:
        """Write weights and optimiser of every trained policy to a subfolder of its name, weights of full policies in
        `dtype`. The learners' machines must see the folder, too."""
        from mappa_engine.checkpoint import WEIGHTS_FILE, has_tensors

        async with self._weights_lock:
            await _gather(*(group.save(folder, dtype) for group in self._learners))
        missing = [name for name in self._versions if not has_tensors(folder / name / WEIGHTS_FILE)]
        if missing:
            raise RunError(
                f"{folder}: learners on another machine wrote there, and nothing of {missing[0]!r} is seen here. Put "
                "run.root on a file system that all machines share."
            )

    async def load(self, folder: Path) -> None:
        """Load what `save` of any engine wrote. Raises RunError where it is of other policies."""
        setup = self._open_setup
        async with self._weights_lock:
            await self._give_gpus_to_learners()
            await _gather(*(group.load(folder) for group in self._groups))
        await self._publish_all({name: folder / name for name, spec in setup.specs.items() if spec.trained})

    async def close(self) -> None:
        """End all processes, and Ray if it was started here."""
        await self._teachers.close()
        groups, self._groups = self._groups, ()
        try:
            await asyncio.gather(*(group.close() for group in groups))
        finally:
            await self._stack.aclose()
            self._ray_actors = self._setup = None
            self._pools.clear()
            self._samplers.clear()

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
        from mappa_engine.cluster.builder import build_route
        from mappa_engine.cluster.sync.from_checkpoint import CheckpointWeights, checkpoint_version

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
            await _gather(*(_put_to_sleep(engine) for pool in self._pools_to_offload for engine in pool.engines))
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
            raise EngineError("the engine cluster is not open: await `open` first, and use it before `close`")
        return self._setup

    @property
    def _open_ray_actors(self) -> RayActors:
        if self._ray_actors is None:
            raise EngineError("the engine cluster is not open: await `open` first, and use it before `close`")
        return self._ray_actors

    @property
    def _learners(self) -> tuple[LearnerGroup, ...]:
        if self._open_setup.train is None or not self._groups:
            raise EngineError(
                "the engine was opened for sampling only: to learn, open it with a train section and a trained policy"
            )
        return self._groups


async def _put_to_sleep(engine: RemoteEngine) -> None:
    """Free an engine's GPU, whatever state it is in."""
    try:
        await engine.pause()
        await engine.sleep()
    except EngineLost:
        await engine.end()  # what it still held is free then


async def _gather(*awaited: Awaitable[T]) -> list[T]:
    """Wait for all and return their results in order; then raise the first failure."""
    results = await asyncio.gather(*awaited, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
