"""The driver's hold on a group of learners: rank actors that work on the same policies in step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mappa_core.engine.cluster.fleet import Actor, Call, Fleet, Slot
from mappa_core.engine.cluster.learners.rank import LearnerRank, Task
from mappa_core.engine.cluster.learners.settings import check_settings
from mappa_core.engine.cluster.sync import gpu
from mappa_core.engine.cluster.sync.receipt import Sent
from mappa_core.engine.learning.scoring import Scores
from mappa_core.errors import EngineLost, MappaError
from mappa_core.protocols import Loss, PolicySpec
from mappa_core.records import Float32, Int32, Process

LIBRARIES = ("torch", "transformers", "ray", "deepspeed", "peft")
_GRACE_S = 3.0
"""Seconds in which a lost rank shows: those that it leaves behind fail as well, and may be heard first."""


class LearnerGroup:
    """Some policies on some ranks. Made by `await LearnerGroup.open(…)`.

    After an error of more than the caller's own making the group is of no use any more: ranks may wait for each other.
    Waits are bound by `engine.options.start_s`, `call_s` and, for weights, `sync_s`. Folders must be such that rank 0
    writes and all ranks read them.
    """

    def __init__(self, name: str, fleet: Fleet, task: Task) -> None:
        self.name = name
        self.versions = {spec.name: 0 for spec in task.specs}
        """Publishes of each policy since the start of the run."""
        self._fleet = fleet
        self._task = replace(task, specs=tuple(_located(spec) for spec in task.specs))
        self._ranks: list[Actor] = []

    @classmethod
    async def open(
        cls,
        name: str,
        fleet: Fleet,
        task: Task,
        *,
        slots: Sequence[Slot | None],
        cpus: float = 1.0,
        gpus: float = 0.0,
    ) -> LearnerGroup:
        """Start a rank in every slot, each with so many CPUs and GPUs of it, and load all policies.

        Raises ConfigError, ModelError or RunError where settings or a policy cannot be used.
        """
        check_settings(task.options, dtype=task.dtype, gpu=task.gpu)
        group = cls(name, fleet, task)
        try:
            await group._start(slots, cpus, gpus)
        except BaseException:
            await group.close()
            raise
        return group

    async def _start(self, slots: Sequence[Slot | None], cpus: float, gpus: float) -> None:
        deadline_s = self._task.options.start_s
        starts = [
            self._fleet.start(
                LearnerRank,
                self._task,
                rank=rank,
                ranks=len(slots),
                name=f"{self.name}/{rank}",
                role="learner",
                deadline_s=deadline_s,
                slot=slot,
                cpus=cpus,
                gpus=gpus,
                libraries=LIBRARIES,
            )
            for rank, slot in enumerate(slots)
        ]
        started = await asyncio.gather(*starts, return_exceptions=True)
        self._ranks = [one for one in started if isinstance(one, Actor)]
        for one in started:
            if isinstance(one, BaseException):
                raise one
        place = await self._ask(self._ranks[0].call("meeting"), deadline_s, "find a place to meet")
        await self._all("open", place, deadline_s=deadline_s, what="load its policies")

    @property
    def policies(self) -> tuple[str, ...]:
        """All names, in the order in which they were given."""
        return tuple(self.versions)

    def about(self) -> tuple[Process, ...]:
        """The processes of the ranks."""
        return tuple(one.process for one in self._ranks if one.process is not None)

    async def score(self, experience: Any) -> list[Scores]:
        """What learners and references say of the rows of the group's policies, in shares. `experience` is a scored or
        unscored Experience or, better, a reference to one that `Fleet.put` gave."""
        shares = await self._all("score", experience, what="score an experience")
        return [one for share in shares for one in share]

    async def update(
        self, experience: Any, advantages: Any, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        """Take the optimiser steps of one iteration; metrics by policy. References are welcome as in `score`."""
        metrics = await self._all("update", experience, advantages, loss, progress, what="update its policies")
        found: Mapping[str, Mapping[str, float]] = metrics[0]
        return found

    def advance(self) -> dict[str, int]:
        """The next version of every policy, under which its weights, as they are now, are to be published."""
        for policy in self.versions:
            self.versions[policy] += 1
        return dict(self.versions)

    async def weights(self, policy: str, version: int) -> AsyncIterator[Any]:
        """References to the Buckets of a policy's weights, in the model's order, each while the next is being filled.

        It is to be followed to its end: ranks wait for each other.
        """
        first, *others = self._ranks
        deadline_s = self._task.options.sync_s
        what = f"hand on the weights of {policy!r}"
        await self._ask(first.call("begin", policy, version), deadline_s, what)
        following = [one.call("follow", policy) for one in others]
        coming = first.call("bucket_reference")
        while (found := await self._ask(coming, deadline_s, what)) is not None:
            coming = first.call("bucket_reference")
            yield found[0]
        await self._ask(following, deadline_s, what)

    async def sent(self, policy: str) -> Sent:
        """What the last `weights` handed on."""
        sent: Sent = await self._ask(self._ranks[0].call("sent"), self._task.options.sync_s, "say what it sent")
        if sent.policy != policy:
            raise ValueError(f"the weights that were handed on last are those of {sent.policy!r}, not of {policy!r}")
        return sent

    async def connect(
        self, policy: str, transport: gpu.Transport, engines: Sequence[Any], workers: Sequence[int]
    ) -> None:
        """Have all ranks meet a policy's engines, given by handles of Ray, each with its number of GPUs. Untried."""
        deadline_s = self._task.options.sync_s
        free = await self._ask(self._ranks[0].call("meeting"), deadline_s, "find a place to meet")
        place = gpu.Meeting(host=free.host, port=free.port, workers=tuple(workers))
        what = f"meet the samplers of {policy!r}"
        await self._all("connect", policy, transport, place, tuple(engines), deadline_s=deadline_s, what=what)

    async def transfer(self, policy: str, version: int) -> Sent:
        """Send a policy's weights from GPU to GPU, to all engines that were met. Untried."""
        deadline_s = self._task.options.sync_s
        sent = await self._all("transfer", policy, version, deadline_s=deadline_s, what=f"send {policy!r}")
        first: Sent = sent[0]
        return first

    async def logprobs(self, policy: str, sequences: Sequence[Int32]) -> list[Float32]:
        """By the weights as they are now: of each sequence (T,) the log-probability of every token after the first,
        (T - 1,), at temperature 1."""
        found: list[list[Float32]] = await self._all(
            "logprobs", policy, list(sequences), deadline_s=self._task.options.sync_s, what="answer a probe"
        )
        return found[0]

    async def save(self, folder: Path) -> None:
        """Write every policy, weights, optimiser and version, to a subfolder of its name."""
        await self._all("save", _seen(folder), self.versions, what="save its policies")

    async def load(self, folder: Path) -> None:
        """Take over what any engine saved, on any number of ranks. Raises RunError where it is of other policies."""
        versions = await self._all("load", _seen(folder), what="load a checkpoint")
        self.versions.update(versions[0])

    async def offload(self) -> None:
        """Give the GPUs up to samplers. A policy whose weights or log-probabilities are asked for comes back; for all
        else there is `reload`. On CPUs nothing happens."""
        await self._all("offload", what="move to the host")

    async def reload(self) -> None:
        """Take the GPUs back."""
        await self._all("reload", what="move to the GPU")

    async def close(self) -> None:
        """End all ranks."""
        ranks, self._ranks = self._ranks, []
        await asyncio.gather(*(self._fleet.end(one) for one in ranks))

    async def _all(self, method: str, *args: Any, what: str, deadline_s: float | None = None) -> list[Any]:
        """Call all ranks at once; what each gives, in order."""
        calls = [one.call(method, *args) for one in self._ranks]
        found: list[Any] = await self._ask(calls, deadline_s or self._task.options.call_s, what)
        return found

    async def _ask(self, calls: Call | Sequence[Call], deadline_s: float, what: str) -> Any:
        try:
            return await self._fleet.ask(calls, deadline_s=deadline_s, what=what)
        except MappaError:
            raise
        except Exception as error:
            lost = await self._lost()
            if lost is not None:
                raise lost from error
            raise

    async def _lost(self) -> EngineLost | None:
        """Why a rank is gone, if one is: that is then why others failed."""
        for _ in range(int(_GRACE_S / 0.1)):
            for one in self._ranks:
                if one.fault is not None:
                    return type(one.fault)(str(one.fault), actor=one.name)
            await asyncio.sleep(0.1)
        return None


def _located(spec: PolicySpec) -> PolicySpec:
    """With folders as processes that work elsewhere must name them."""
    model = Path(spec.model).expanduser()
    return replace(
        spec,
        model=str(model.absolute()) if model.is_dir() else spec.model,
        start=None if spec.start is None else spec.start.absolute(),
    )


def _seen(folder: Path) -> Path:
    """As processes that work elsewhere must name it."""
    return folder.absolute()
