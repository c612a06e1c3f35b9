"""Weights from GPU to GPU, by vLLM's own transfers: `nccl` where learners and samplers have GPUs of their own, `ipc`
where they share them.

Untried on a GPU: the order of calls, and what is computed here, are tested; that vLLM then moves the bytes is not.
There are no checksums, as no bytes lie in the memory of a host: names and the probe are what is verified.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from structlog.contextvars import get_contextvars

from mappa_core.engine.cluster.sync.buckets import Named
from mappa_core.engine.cluster.sync.receipt import Received, Sent

Transport = Literal["nccl", "ipc"]
Call = Callable[[str, Sequence[Mapping[str, Any]]], None]
"""Calls a method of every engine at once, each with keyword arguments of its own, and waits for all by a deadline."""
BUFFER_BYTES = 1 << 30
STARTS, _UPDATES, _ENDS = "start_weight_update", "update_weights", "finish_weight_update"
"""vLLM's calls: from the first of them to the last the weights are not whole."""
_NO_CHECKSUM = ""


class Meta(NamedTuple):
    """A tensor as it will be sent."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """Where the first rank of learners and all workers of a policy's engines meet for `nccl`."""

    host: str
    port: int
    workers: tuple[int, ...]
    """GPUs of each engine."""

    @property
    def members(self) -> int:
        """Of the group: one learner and every worker."""
        return 1 + sum(self.workers)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The rank of each engine's first worker; the learner is rank 0. vLLM counts within one engine alone, so that
        engines that were not told apart would all claim the same ranks."""
        return tuple(1 + sum(self.workers[:place]) for place in range(len(self.workers)))


def buffer_bytes(metas: Iterable[Meta]) -> int:
    """Of the buffers that tensors travel in: a tensor has to fit in whole."""
    return max([BUFFER_BYTES, *(meta.bytes for meta in metas)])


class Source:
    """What a rank sends, as vLLM asks for it: all ranks go through it together, as sharded weights are gathered."""

    def __init__(self, metas: Sequence[Meta], weights: Callable[[], Iterable[Named]]) -> None:
        self._metas, self._weights = metas, weights

    def metadata(self) -> list[Meta]:
        """What iteration gives, in its order."""
        return list(self._metas)

    def __iter__(self) -> Iterator[Named]:
        # vLLM packs on streams of its own. What is gathered must be there before they read it, and what they read must
        # not be given back before they have.
        for named in self._weights():
            torch.cuda.synchronize()
            yield named
            torch.cuda.synchronize()


class Client:
    """vLLM's calls from the first rank of learners to the engines: to all at once, and each by its own ranks."""

    def __init__(self, call: Call, engines: int, offsets: Sequence[int] | None) -> None:
        self._call, self._engines, self._offsets = call, engines, offsets
        self.version = 0
        """Of what is sent next."""

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Have every worker join. With `nccl` this returns once all of them, and the learner, have."""
        own = [dict(init_info) for _ in range(self._engines)]
        for info, offset in zip(own, self._offsets or (), strict=False):
            info["rank_offset"] = offset
        self._call("init_weight_transfer_engine", [{"init_info": info} for info in own])

    def start_weight_update(self) -> None:
        """Begin."""
        self._call(STARTS, [{}] * self._engines)

    def update_weights(self, update_info: Any) -> None:
        """Have the workers take what is being sent now."""
        self._call(_UPDATES, [{"update_info": update_info}] * self._engines)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End, and tell the version, which vLLM's learner does not know."""
        self._call(_ENDS, [{"weight_version": str(self.version)}] * self._engines)


def caller(engines: Sequence[Any], deadline_s: float) -> Call:
    """Calls engines, handles of Ray, by their `transfer`."""
    import ray

    def call(method: str, arguments: Sequence[Mapping[str, Any]]) -> None:
        calls, context = zip(engines, arguments, strict=True), get_contextvars()
        ray.get([one.invoke.remote(context, "transfer", method, own) for one, own in calls], timeout=deadline_s)

    return call


class Sender:
    """One rank's end of the transfer of one policy."""

    def __init__(
        self, transport: Transport, policy: str, *, rank: int, source: Source, call: Call, meeting: Meeting
    ) -> None:
        """Made on all ranks at once; with `nccl` it returns once every engine has joined."""
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        metas = source.metadata()
        self._policy, self._metas = policy, metas
        self._client = Client(call, len(meeting.workers), meeting.offsets if transport == "nccl" else None)
        self._engine = WeightTransferTrainerFactory.trainer_init(
            trainer_info(transport, rank=rank, meeting=meeting, size=buffer_bytes(metas)),
            client=self._client,
            source=source,
        )

    def send(self, version: int) -> Sent:
        """Send all weights; called on all ranks. A transfer that breaks leaves workers of `nccl` waiting for good:
        whoever catches it ends the engines."""
        self._client.version = version
        torch.cuda.synchronize()
        self._engine.send_weights()
        return Sent(
            policy=self._policy,
            version=version,
            names=tuple(meta.name for meta in self._metas),
            checksums=(_NO_CHECKSUM,) * len(self._metas),
            bytes=sum(meta.bytes for meta in self._metas),
        )


def trainer_info(transport: Transport, *, rank: int, meeting: Meeting, size: int) -> Any:
    """vLLM's settings of the learner's side. Packed in any case: else every gathered tensor is kept to the end."""
    if transport == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(rank=rank, packed=True, packed_buffer_size_bytes=size)
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo(
        rank=rank,
        master_address=meeting.host,
        master_port=meeting.port,
        world_size=meeting.members,
        packed=True,
        packed_buffer_size_bytes=size,
    )


class Taker:
    """A sampler's end: passes vLLM's calls on to its workers, and notes what they were given.

    `workers` calls a method of all workers. `label` is called with the version once everything is there.
    """

    def __init__(self, workers: Callable[[str, Mapping[str, Any]], Any], label: Callable[[int], None]) -> None:
        self._workers, self._label = workers, label
        self._names: list[str] = []
        self._version = 0
        self._begun = self._seconds = 0.0

    def take(self, method: str, arguments: Mapping[str, Any]) -> None:
        """One call."""
        if method == STARTS:
            self._names, self._begun = [], time.perf_counter()
        # Workers of vLLM know no version; the engine around them does.
        self._workers(method, {} if method == _ENDS else arguments)
        if method == _UPDATES:
            self._names += arguments["update_info"]["names"]
        elif method == _ENDS:
            self._version = int(arguments["weight_version"])
            self._label(self._version)
            self._seconds = time.perf_counter() - self._begun

    def received(self) -> Received:
        """What was taken since the last start."""
        names = tuple(self._names)
        checksums = (_NO_CHECKSUM,) * len(names)
        return Received(names=names, checksums=checksums, version=self._version, seconds=self._seconds)
