"""Engine `cluster`: implements the engine protocol with processes on one machine or many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mappa_core.engine import (
    Advantages,
    Engine,
    EngineError,
    EnginePlan,
    Experience,
    Loss,
    Machine,
    ModelError,
    PolicySpec,
    Process,
    Receipt,
    Sampler,
    TrainSection,
)
from mappa_engine.cluster.placement import read_shape
from mappa_engine.cluster.placement.checks import check_options
from mappa_engine.cluster.plan import node_problems, plan_cluster
from mappa_engine.cluster.requirements import check_installed
from mappa_engine.node import this_node
from mappa_engine.options import ClusterOptions
from mappa_engine.teacher_servers import TeacherServers

if TYPE_CHECKING:
    from mappa_engine.cluster.running_cluster import RunningCluster


class ClusterEngine(Engine):
    """Runs learners and samplers as separate processes, here or on other machines; the driver holds no weights.

    Ray and torch are imported when it opens. After EngineLost or a failed publish it must be closed: the run opens a
    new engine and resumes from its last checkpoint.
    """

    def __init__(self, options: ClusterOptions) -> None:
        check_options(options)
        self._options = options
        self._teachers = TeacherServers(options.teachers)
        self._cluster: RunningCluster | None = None

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
        return () if self._cluster is None else self._cluster.processes

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
        micro_tokens = None if train is None else train.micro_tokens
        return plan_cluster(policies, shapes, self._options, machines, micro_tokens=micro_tokens)

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
        from mappa_engine.cluster.running_cluster import RunningCluster

        cluster = RunningCluster(self._options)
        await self._teachers.open(policies, learning=train is not None)
        await cluster.open(self._teachers.loaded_by_engine(policies), train, seed=seed)
        self._cluster = cluster

    def sampler(self, policy: str) -> Sampler:
        """Return the sampler of `policy`."""
        if policy in self._teachers:
            return self._teachers.sampler(policy)
        return self._running.sampler(policy)

    async def score(self, experience: Experience) -> Experience:
        """Fill old_logprobs, ref_logprobs and values (NaN for policies without a value head) of all rows; of a teacher
        on a server old_logprobs alone."""
        if self._teachers.teach(experience):
            return await self._teachers.score(experience)
        return await self._running.score(experience)

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        """Take the optimiser steps of one iteration; returns metrics by policy, the same as the engine `local`."""
        return await self._running.update(experience, advantages, loss, progress)

    async def publish(self) -> Mapping[str, Receipt]:
        """Publish the new weights to the samplers, verified; each is paused until it has loaded them completely."""
        return await self._running.publish()

    def checkpoint_bytes(self, dtype: str) -> int | None:
        """Compute the size of what `save` writes."""
        return self._running.checkpoint_bytes(dtype)

    async def save(self, folder: Path, *, dtype: str = "float32") -> None:
        """Write weights and optimiser of every trained policy to a subfolder of its name, weights of full policies in
        `dtype`. The learners' machines must see the folder, too."""
        await self._running.save(folder, dtype)

    async def load(self, folder: Path) -> None:
        """Load what `save` of any engine wrote. Raises RunError where it is of other policies."""
        await self._running.load(folder)

    async def close(self) -> None:
        """End all processes, and Ray if it was started here."""
        await self._teachers.close()
        if self._cluster is not None:
            await self._cluster.close()

    @property
    def _running(self) -> RunningCluster:
        if self._cluster is None:
            raise EngineError("the engine is not open")
        return self._cluster
