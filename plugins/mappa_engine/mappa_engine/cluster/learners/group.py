"""The driver's handle of a learner group: rank actors that train the same policies in lockstep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mappa_core import MappaError
from mappa_core.engine import EngineLost, Loss, PolicySpec, Process
from mappa_engine.arrays import Float32, Int32
from mappa_engine.cluster.actors import Actor, ActorCall, RayActors, ReservedBundle
from mappa_engine.cluster.actors.actor_environment import thread_variables
from mappa_engine.cluster.errors import ActorFailed
from mappa_engine.cluster.learners.presence import Presence
from mappa_engine.cluster.learners.rank import LearnerConfig, LearnerRank
from mappa_engine.cluster.sync import vllm_transfer
from mappa_engine.cluster.sync.transfer_records import SentWeights
from mappa_engine.learning.scoring import TokenScores

LEARNER_LIBRARIES = ("torch", "transformers", "ray", "deepspeed", "peft")
_GRACE_S = 3.0
"""Seconds to wait for the report of a lost rank: other ranks fail because of it, and may report first."""


class LearnerGroup:
    """Some policies on some ranks, created by `await LearnerGroup.open(…)`.

    After any error but one of wrong arguments the group cannot be used any more: ranks may wait for each other. Waits
    are limited by `engine.options.start_s`, `call_s` and, for weights, `sync_s`. Folders must be writable for rank 0
    and readable for all ranks.
    """

    def __init__(self, name: str, ray_actors: RayActors, config: LearnerConfig) -> None:
        self.name = name
        self.versions = {spec.name: 0 for spec in config.specs}
        """Number of publishes of each policy since the start of the run."""
        self._ray_actors = ray_actors
        self._config = replace(config, specs=tuple(_with_absolute_paths(spec) for spec in config.specs))
        self._ranks: list[Actor] = []

    @classmethod
    async def open(
        cls,
        name: str,
        ray_actors: RayActors,
        config: LearnerConfig,
        *,
        slots: Sequence[ReservedBundle | None],
        cpus: float = 1.0,
        gpus: float = 0.0,
    ) -> LearnerGroup:
        """Start a rank in every slot, each with `cpus` and `gpus` of it, and load all policies.

        Raises ConfigError, ModelError or RunError where settings or a policy cannot be used.
        """
        group = cls(name, ray_actors, config)
        try:
            await group._start(slots, cpus, gpus)
        except BaseException:
            await group.close()
            raise
        return group

    async def _start(self, slots: Sequence[ReservedBundle | None], cpus: float, gpus: float) -> None:
        deadline_s = self._config.options.start_s
        starts = [
            self._ray_actors.start(
                LearnerRank,
                self._config,
                rank=rank,
                ranks=len(slots),
                name=f"{self.name}/{rank}",
                role="learner",
                deadline_s=deadline_s,
                slot=slot,
                cpus=cpus,
                gpus=gpus,
                libraries=LEARNER_LIBRARIES,
                environment=thread_variables(self._config.threads),
            )
            for rank, slot in enumerate(slots)
        ]
        started = await asyncio.gather(*starts, return_exceptions=True)
        self._ranks = [result for result in started if isinstance(result, Actor)]
        for result in started:
            if isinstance(result, BaseException):
                raise result
        rendezvous = await self._wait_for(self._ranks[0].call("open_store"), deadline_s, "open a place to meet")
        await self._call_all("open", rendezvous, deadline_s=deadline_s, what="load its policies")

    @property
    def policies(self) -> tuple[str, ...]:
        """Policy names, in the order of the config."""
        return tuple(self.versions)

    def processes(self) -> tuple[Process, ...]:
        """Return the processes of the ranks."""
        return tuple(rank.process for rank in self._ranks if rank.process is not None)

    async def score(self, experience: Any, *, reference: bool = True) -> list[TokenScores]:
        """Score the rows of the group's policies with learners and, if `reference`, references; returns the parts of
        all ranks.
        `experience` is a scored or unscored Experience or, better, its reference from `RayActors.put`."""
        shares = await self._call_all("score", experience, reference, what="score an experience")
        return [scores for share in shares for scores in share]

    async def update(
        self, experience: Any, advantages: Any, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        """Take the optimiser steps of one iteration; returns metrics by policy. Takes references, too, as `score`."""
        metrics = await self._call_all("update", experience, advantages, loss, progress, what="update its policies")
        combined: Mapping[str, Mapping[str, float]] = metrics[0]
        return combined

    def advance_versions(self) -> dict[str, int]:
        """Increment the version of every policy, for the publish of its current weights; returns all versions."""
        for policy in self.versions:
            self.versions[policy] += 1
        return dict(self.versions)

    async def weights(self, policy: str, version: int) -> AsyncIterator[Any]:
        """Yield references to the Buckets of a policy's weights, in the model's order, each while the next is filled.

        Callers must consume it to its end: ranks wait for each other.
        """
        first, *others = self._ranks
        deadline_s = self._config.options.sync_s
        what = f"hand on the weights of {policy!r}"
        # An actor runs its calls in order, so the first bucket is filled without another round trip.
        starting = [first.call("begin_send", policy, version), first.call("next_bucket_reference")]
        following = [rank.call("follow_send", policy) for rank in others]
        _, wrapped = await self._wait_for(starting, deadline_s, what)
        while wrapped is not None:
            # Filled while the caller hands on the one before.
            coming = first.call("next_bucket_reference")
            yield wrapped[0]
            wrapped = await self._wait_for(coming, deadline_s, what)
        await self._wait_for(following, deadline_s, what)

    async def sent_record(self, policy: str) -> SentWeights:
        """Return the record of what the last `weights` sent."""
        sent: SentWeights = await self._wait_for(
            self._ranks[0].call("sent_record"), self._config.options.sync_s, "say what it sent"
        )
        if sent.policy != policy:
            raise ValueError(f"the weights that were handed on last are those of {sent.policy!r}, not of {policy!r}")
        return sent

    async def connect(
        self, policy: str, transport: vllm_transfer.GpuTransport, engines: Sequence[Any], workers: Sequence[int]
    ) -> None:
        """Connect all ranks to a policy's engines, given as Ray handles with their numbers of GPUs."""
        deadline_s = self._config.options.sync_s
        free = await self._wait_for(self._ranks[0].call("free_address"), deadline_s, "find a place to meet")
        rendezvous = vllm_transfer.TransferRendezvous(host=free.host, port=free.port, workers=tuple(workers))
        what = f"meet the samplers of {policy!r}"
        await self._call_all("connect", policy, transport, rendezvous, tuple(engines), deadline_s=deadline_s, what=what)

    async def transfer(self, policy: str, version: int) -> SentWeights:
        """Send a policy's weights from GPU to GPU, to all connected engines."""
        deadline_s = self._config.options.sync_s
        sent = await self._call_all("transfer", policy, version, deadline_s=deadline_s, what=f"send {policy!r}")
        first: SentWeights = sent[0]
        return first

    async def logprobs(self, policy: str, sequences: Sequence[Int32]) -> list[Float32]:
        """Compute with the current weights, for each sequence (T,), the log-probabilities (T - 1,) of every token after
        the first, at temperature 1."""
        results: list[list[Float32]] = await self._call_all(
            "logprobs", policy, list(sequences), deadline_s=self._config.options.sync_s, what="answer a probe"
        )
        return results[0]

    async def save(self, folder: Path, dtype: str = "float32") -> None:
        """Write weights (in `dtype`), optimiser and version of every policy to a subfolder of its name."""
        await self._call_all("save", _absolute(folder), self.versions, dtype, what="save its policies")

    async def load(self, folder: Path) -> None:
        """Load what any engine saved, on any number of ranks. Raises RunError where it is of other policies."""
        versions = await self._call_all("load", _absolute(folder), what="load a checkpoint")
        self.versions.update(versions[0])

    async def offload(self, *, keep_weights: bool = False) -> None:
        """Free the GPUs for samplers, with `keep_weights` of all but the weights that learners compute with. What a
        later call needs of a policy comes back for that call alone."""
        await self._call_all("move", Presence.WEIGHTS if keep_weights else Presence.NOTHING, what="move to the host")

    async def reload(self) -> None:
        """Move everything back to the GPUs."""
        await self._call_all("move", Presence.ALL, what="move to the GPU")

    async def close(self) -> None:
        """End all ranks."""
        ranks, self._ranks = self._ranks, []
        await asyncio.gather(*(self._ray_actors.end(rank) for rank in ranks))

    async def _call_all(self, method: str, *args: Any, what: str, deadline_s: float | None = None) -> list[Any]:
        """Call all ranks at once; returns their results in order."""
        calls = [rank.call(method, *args) for rank in self._ranks]
        results: list[Any] = await self._wait_for(calls, deadline_s or self._config.options.call_s, what)
        return results

    async def _wait_for(self, calls: ActorCall | Sequence[ActorCall], deadline_s: float, what: str) -> Any:
        try:
            return await self._ray_actors.wait_for(calls, deadline_s=deadline_s, what=what)
        except MappaError:
            raise
        except Exception as error:
            lost = await self._lost_rank()
            raise lost or ActorFailed.of(f"a rank of the learners {self.name}", error, name=self.name) from error

    async def _lost_rank(self) -> EngineLost | None:
        """Return the error of a lost rank, if there is one: it explains failures of others."""
        for _ in range(int(_GRACE_S / 0.1)):
            for rank in self._ranks:
                if rank.failure is not None:
                    return type(rank.failure)(str(rank.failure), actor=rank.name)
            await asyncio.sleep(0.1)
        return None


def _with_absolute_paths(spec: PolicySpec) -> PolicySpec:
    """Make the folders of a spec absolute, for processes with other working directories."""
    model = Path(spec.model).expanduser()
    return replace(
        spec,
        model=str(model.absolute()) if model.is_dir() else spec.model,
        start=None if spec.start is None else spec.start.absolute(),
        reference=None if spec.reference is None else spec.reference.absolute(),
    )


def _absolute(folder: Path) -> Path:
    """Make a folder absolute, for processes with other working directories."""
    return folder.absolute()
