"""The engine `cluster`: one contract over groups of learners, pools of samplers and the way between them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import structlog

from mappa_core.config.schema import TrainSection
from mappa_core.engine.checkpoint import WEIGHTS
from mappa_core.engine.cluster.building import Building, Plan, route
from mappa_core.engine.cluster.fleet import Fleet
from mappa_core.engine.cluster.learners import LearnerGroup
from mappa_core.engine.cluster.nodes import resources
from mappa_core.engine.cluster.placement import place, read_shape, table
from mappa_core.engine.cluster.placement.checks import check_options
from mappa_core.engine.cluster.samplers.pool import SamplerPool
from mappa_core.engine.cluster.samplers.sampler import ClusterSampler
from mappa_core.engine.cluster.sync.publisher import Publisher
from mappa_core.engine.cluster.sync.stored import StoredWeights, stored_version
from mappa_core.engine.export import export
from mappa_core.engine.learning.scoring import scored
from mappa_core.engine.models import read
from mappa_core.engine.options import ClusterOptions
from mappa_core.engine.schedule import check_schedule
from mappa_core.errors import ConfigError, EngineError, RunError
from mappa_core.experience import Advantages, Experience, Receipt
from mappa_core.protocols import Loss, PolicySpec
from mappa_core.records import Process

log = structlog.get_logger()
T = TypeVar("T")


class ClusterEngine:
    """Learners and samplers are processes of their own, here or on other machines; the driver holds no weights.

    Where it raises EngineLost, or its weights could not be handed on, it is to be closed: a run opens another one and
    goes on from its last checkpoint.
    """

    def __init__(self, options: ClusterOptions) -> None:
        check_options(options)
        self._options = options
        self._stack = AsyncExitStack()
        self._fleet: Fleet | None = None
        self._plan: Plan | None = None
        self._groups: tuple[LearnerGroup, ...] = ()
        self._pools: dict[str, SamplerPool] = {}
        """By policy."""
        self._samplers: dict[str, ClusterSampler] = {}
        self._publisher = Publisher((), seed=0, deadline_s=options.sync_s)
        self._folders: dict[str, Path] = {}
        """Where the weights of policies lie that are served, and that no learner here holds."""
        self._learning = asyncio.Lock()
        """Held while weights move or are handed on: an engine that is started again waits for whole ones."""

    @property
    def deterministic(self) -> bool:
        """Whether equal requests in equal waves give bit-equal completions."""
        return self._options.deterministic

    @property
    def max_staleness(self) -> int:
        """Updates by which the weights that sampled may be older than those that learn."""
        return self._options.max_staleness

    @property
    def straggler_share(self) -> float:
        """Share of an iteration's trajectories that it does not wait for."""
        return self._options.straggler_share

    @property
    def processes(self) -> tuple[Process, ...]:
        """Those that sample and learn."""
        return () if self._fleet is None else self._fleet.processes

    async def open(self, policies: Sequence[PolicySpec], train: TrainSection | None, *, seed: int) -> None:
        """Start Ray or connect to it, map policies to what is there, start everything and verify that samplers and
        learners agree.

        Raises ConfigError, ModelError or RunError where settings or models cannot be used, or do not fit.
        """
        if train is not None:
            check_schedule(train)
        try:
            await self._open(policies, train, seed)
        except BaseException:
            await self.close()
            raise

    async def _open(self, policies: Sequence[PolicySpec], train: TrainSection | None, seed: int) -> None:
        options, models = self._options, tuple(dict.fromkeys(spec.model for spec in policies))
        readings = {model: await asyncio.to_thread(read, model) for model in models}
        shapes = {model: read_shape(model) for model in models}
        fleet = self._fleet = await Fleet.open(
            options.address, deadline_s=options.start_s, logs=None if options.logs is None else Path(options.logs)
        )
        self._stack.push_async_callback(fleet.close)
        found = place(
            policies,
            shapes,
            await resources(fleet, deadline_s=options.start_s),
            options,
            micro_tokens=None if train is None else train.micro_tokens,
        )
        log.info("\n".join(["who runs where", *table(found)]))
        plan = self._plan = Plan(
            specs={spec.name: spec for spec in policies},
            readings=readings,
            shapes=shapes,
            placement=found,
            options=options,
            train=train,
            seed=seed,
        )
        if options.tensor_parallel > 1 and plan.transport == "store":
            raise ConfigError(
                f"engine.options.tensor_parallel={options.tensor_parallel}: weights reach the pieces of an engine from "
                "GPU to GPU alone (engine.options.transport nccl or ipc)"
            )
        building = Building(plan, fleet, await fleet.reserve(found.bundles, deadline_s=options.start_s))
        if plan.shared:
            await self._open_groups(building)
            await _all(*(group.offload() for group in self._groups))
            await self._open_pools(building)
            await self._take_turn()
        else:
            await _all(self._open_groups(building), self._open_pools(building))
        await self._publish_first()

    async def _open_groups(self, building: Building) -> None:
        self._groups = tuple(await _all(*(building.group(one) for one in self._opened.placement.groups)))

    async def _open_pools(self, building: Building) -> None:
        plan = self._opened
        for found in plan.placement.pools:
            pool = building.pool(found, self._refresh)
            self._stack.push_async_callback(pool.close)
            for name in found.policies:
                spec = plan.specs[name]
                self._pools[name] = pool
                self._samplers[name] = ClusterSampler(
                    name,
                    plan.readings[spec.model],
                    pool,
                    window=plan.window(spec.model),
                    template_kwargs=spec.template_kwargs,
                )
        await _all(*(pool.open() for pool in dict.fromkeys(self._pools.values())))

    async def _publish_first(self) -> None:
        """Bring samplers what policies start with, and hold them against the learners before anything is sampled."""
        plan = self._opened
        routes = [
            route(plan, policy, group, self._pools[policy], probed=True)
            for group in self._groups
            for policy in group.policies
        ]
        self._publisher = Publisher(routes, seed=plan.seed, deadline_s=self._options.sync_s)
        starts = {name: spec.start for name, spec in plan.specs.items() if spec.start is not None}
        await self._hand_on(starts)

    def sampler(self, policy: str) -> ClusterSampler:
        """The sampler of `policy`."""
        if policy not in self._samplers:
            raise EngineError(f"the engine was not opened with a policy {policy!r}, only with {sorted(self._samplers)}")
        return self._samplers[policy]

    async def score(self, experience: Experience) -> Experience:
        """Fill old_logprobs, ref_logprobs (and values, NaN for policies without a value head) of all rows."""
        async with self._learning:
            await self._take_turn()
            self._publisher.remember(experience)
            reference = self._running.put(experience)
            shares = await _all(*(group.score(reference) for group in self._learners))
        return scored(experience, [one for share in shares for one in share])

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        """Take the optimiser steps of one iteration; metrics per policy, as of the engine `local`."""
        async with self._learning:
            references = self._running.put(experience), self._running.put(advantages)
            found = await _all(*(group.update(*references, loss, progress) for group in self._learners))
        return {name: metrics for metrics_of in found for name, metrics in metrics_of.items()}

    async def publish(self) -> Mapping[str, Receipt]:
        """Hand the new weights to the samplers, verified; each is paused until it holds them whole."""
        async with self._learning:
            for group in self._learners:
                group.advance()
            return await self._publisher.publish(self._versions)

    async def save(self, folder: Path) -> None:
        """Write every trained policy, weights and optimiser, to a subfolder of its name. The folder is one that the
        learners' machines see, too."""
        async with self._learning:
            await _all(*(group.save(folder) for group in self._learners))
        missing = [name for name in self._versions if not (folder / name / WEIGHTS).is_file()]
        if missing:
            raise RunError(
                f"{folder}: learners on another machine wrote there, and nothing of {missing[0]!r} is seen here. Put "
                "run.root on a file system that all machines share."
            )

    async def load(self, folder: Path) -> None:
        """Take over what `save` of any engine wrote. Raises RunError where it is of other policies."""
        async with self._learning:
            await self._take_turn()
            await _all(*(group.load(folder) for group in self._groups))
        await self._hand_on({name: folder / name for name, spec in self._opened.specs.items() if spec.trained})

    async def export(self, policy: str, folder: Path) -> None:
        """Write one policy as an ordinary Hugging Face folder, without its value head."""
        self.sampler(policy)  # or it says which policies there are
        spec = self._opened.specs[policy]
        with tempfile.TemporaryDirectory(prefix=".export-", dir=folder.parent) as saved:
            await self.save(Path(saved))
            files = Path(saved, policy)
            await asyncio.to_thread(export, files, folder, model=spec.model, lora=spec.lora, merged=False, dtype=None)

    async def close(self) -> None:
        """End all processes, and Ray where it was started here."""
        groups, self._groups = self._groups, ()
        try:
            await asyncio.gather(*(group.close() for group in groups))
        finally:
            await self._stack.aclose()
            self._fleet = None

    async def _hand_on(self, folders: Mapping[str, Path]) -> None:
        """Bring samplers the weights that learners hold and, of the policies that nobody here trains, those in
        `folders`."""
        held = self._versions
        self._folders.update({name: folder for name, folder in folders.items() if name not in held})
        async with self._learning:
            if held:
                await self._publisher.publish(held)
            if self._folders:
                publisher, versions = self._from_files()
                await publisher.publish(versions)

    async def _refresh(self, engine: str) -> None:
        """Bring one engine that was started again what the others have."""
        async with self._learning:
            await self._publisher.refresh(engine, self._versions)
            if self._folders:
                publisher, versions = self._from_files()
                await publisher.refresh(engine, versions)

    def _from_files(self) -> tuple[Publisher, dict[str, int]]:
        """Who hands on the weights that lie in folders, and their versions."""
        plan, folders = self._opened, self._folders
        stored = StoredWeights(
            folders,
            adapters=frozenset(name for name in folders if plan.specs[name].lora is not None),
            dtype=plan.placement.dtype,
            put=self._running.put,
        )
        routes = [route(plan, name, stored, self._pools[name], probed=False) for name in folders]
        versions = {name: stored_version(folder) for name, folder in folders.items()}
        return Publisher(routes, seed=plan.seed, deadline_s=self._options.sync_s), versions

    async def _take_turn(self) -> None:
        """Let learners have GPUs that they share with samplers. A publish gives them back."""
        if self._opened.shared:
            for pool in self._sleeping:
                for engine in pool.engines:
                    await engine.pause()
                    await engine.sleep()
            await _all(*(group.reload() for group in self._groups))

    @property
    def _sleeping(self) -> list[SamplerPool]:
        """The pools that give GPUs up to learners: adapters are small, and leave their engines where they are."""
        full = (name for name, spec in self._opened.specs.items() if spec.kind == "full")
        return list(dict.fromkeys(self._pools[name] for name in full))

    @property
    def _versions(self) -> dict[str, int]:
        """Of the policies that learners hold."""
        return {name: version for group in self._groups for name, version in group.versions.items()}

    @property
    def _opened(self) -> Plan:
        if self._plan is None:
            raise EngineError("the engine is not open")
        return self._plan

    @property
    def _running(self) -> Fleet:
        if self._fleet is None:
            raise EngineError("the engine is not open")
        return self._fleet

    @property
    def _learners(self) -> tuple[LearnerGroup, ...]:
        if not self._groups:
            raise EngineError("the engine was opened for sampling only")
        return self._groups


async def _all(*awaited: Awaitable[T]) -> list[T]:
    """What all give, in order. All are waited for; then the first that failed raises."""
    results = await asyncio.gather(*awaited, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
