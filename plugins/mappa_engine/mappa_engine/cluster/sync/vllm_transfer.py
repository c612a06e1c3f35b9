"""Weight transfer from GPU to GPU by vLLM: `nccl` where learners and samplers have separate GPUs, `ipc` where they
share them.

`ipc` ran on one GPU, `nccl` on none: tests cover the order of calls and the computations here, not the bytes. There are
no checksums, as no bytes pass through host memory: names and the probe are verified.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from structlog.contextvars import get_contextvars

from mappa_engine.cluster.sync.buckets import NamedTensor
from mappa_engine.cluster.sync.transfer_records import ReceivedWeights, SentWeights

GpuTransport = Literal["nccl", "ipc"]
CallEngines = Callable[[str, Sequence[Mapping[str, Any]]], None]
"""Calls a method of all engines at once, each with its own keyword arguments, and waits for all by a deadline."""
BUFFER_BYTES = 1 << 30
START_UPDATE, _UPDATE, _FINISH_UPDATE = "start_weight_update", "update_weights", "finish_weight_update"
"""vLLM's methods: between the first and the last call the weights are incomplete."""
_NO_CHECKSUM = ""


class TensorMeta(NamedTuple):
    """Name, dtype and shape of a tensor to be sent."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRendezvous:
    """Address of the `nccl` group of the learners' first rank and all workers of a policy's engines."""

    host: str
    port: int
    workers: tuple[int, ...]
    """Number of GPUs of each engine."""

    @property
    def world_size(self) -> int:
        """Size of the group: one learner and every worker."""
        return 1 + sum(self.workers)

    @property
    def rank_offsets(self) -> tuple[int, ...]:
        """Rank of each engine's first worker; the learner is rank 0. vLLM counts ranks within one engine, so without
        offsets all engines would claim the same ranks."""
        return tuple(1 + sum(self.workers[:index]) for index in range(len(self.workers)))


def buffer_bytes(metas: Iterable[TensorMeta]) -> int:
    """Compute the size of the transfer buffers: every tensor must fit in whole."""
    return max([BUFFER_BYTES, *(meta.bytes for meta in metas)])


class WeightSource:
    """A rank's weights in vLLM's source interface: all ranks iterate together, as sharded weights are gathered."""

    def __init__(self, metas: Sequence[TensorMeta], weights: Callable[[], Iterable[NamedTensor]]) -> None:
        self._metas, self._weights = metas, weights

    def metadata(self) -> list[TensorMeta]:
        """List the tensors in the order of iteration."""
        return list(self._metas)

    def __iter__(self) -> Iterator[NamedTensor]:
        # vLLM packs on its own CUDA streams: a gathered tensor must be complete before they read it, and must not be
        # freed before they have.
        for named in self._weights():
            torch.cuda.synchronize()
            yield named
            torch.cuda.synchronize()


class TransferClient:
    """vLLM's client interface at the learners' first rank: calls all engines at once, each with its own rank offset."""

    def __init__(self, call: CallEngines, engines: int, rank_offsets: Sequence[int] | None) -> None:
        self._call, self._engines, self._rank_offsets = call, engines, rank_offsets
        self.version = 0
        """Version of the weights that are sent next."""

    def init_weight_transfer_engine(self, init_info: Mapping[str, Any]) -> None:
        """Initialise the transfer in all workers. With `nccl` it returns once they and the learner have joined."""
        own = [dict(init_info) for _ in range(self._engines)]
        for info, offset in zip(own, self._rank_offsets or (), strict=False):
            info["rank_offset"] = offset
        self._call("init_weight_transfer_engine", [{"init_info": info} for info in own])

    def start_weight_update(self) -> None:
        """Start an update in all engines."""
        self._call(START_UPDATE, [{}] * self._engines)

    def update_weights(self, update_info: Any) -> None:
        """Receive the tensors that are being sent, in all engines."""
        self._call(_UPDATE, [{"update_info": update_info}] * self._engines)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Finish the update with the version, which vLLM's learner side does not know."""
        self._call(_FINISH_UPDATE, [{"weight_version": str(self.version)}] * self._engines)


def make_engine_caller(engines: Sequence[Any], deadline_s: float) -> CallEngines:
    """Build the function that calls `transfer` of engines, given as Ray handles."""
    import ray

    def call(method: str, arguments: Sequence[Mapping[str, Any]]) -> None:
        calls, context = zip(engines, arguments, strict=True), get_contextvars()
        ray.get([engine.invoke.remote(context, "transfer", method, own) for engine, own in calls], timeout=deadline_s)

    return call


class GpuSender:
    """One rank's side of the transfers of one policy."""

    def __init__(
        self,
        transport: GpuTransport,
        policy: str,
        *,
        rank: int,
        source: WeightSource,
        call: CallEngines,
        rendezvous: TransferRendezvous,
    ) -> None:
        """Construct on all ranks at once; with `nccl` it returns once every engine has joined."""
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        metas = source.metadata()
        self._policy, self._metas = policy, metas
        self._client = TransferClient(
            call, len(rendezvous.workers), rendezvous.rank_offsets if transport == "nccl" else None
        )
        self._engine = WeightTransferTrainerFactory.trainer_init(
            trainer_init_info(transport, rank=rank, rendezvous=rendezvous, size=buffer_bytes(metas)),
            client=self._client,
            source=source,
        )

    def send(self, version: int) -> SentWeights:
        """Send all weights; call on all ranks. A failed transfer leaves `nccl` workers waiting forever: the caller must
        end the engines."""
        self._client.version = version
        torch.cuda.synchronize()
        self._engine.send_weights()
        return SentWeights(
            policy=self._policy,
            version=version,
            names=tuple(meta.name for meta in self._metas),
            checksums=(_NO_CHECKSUM,) * len(self._metas),
            bytes=sum(meta.bytes for meta in self._metas),
        )


def trainer_init_info(transport: GpuTransport, *, rank: int, rendezvous: TransferRendezvous, size: int) -> Any:
    """Build vLLM's settings of the learner's side. Always packed: else all gathered tensors are kept to the end."""
    if transport == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(rank=rank, packed=True, packed_buffer_size_bytes=size)
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo(
        rank=rank,
        master_address=rendezvous.host,
        master_port=rendezvous.port,
        world_size=rendezvous.world_size,
        packed=True,
        packed_buffer_size_bytes=size,
    )


class GpuReceiver:
    """A sampler's side of a transfer: forwards vLLM's calls to its workers, and records what they received.

    `workers` calls a method of all workers. `set_version` is called with the version when the update is complete.
    """

    def __init__(self, workers: Callable[[str, Mapping[str, Any]], Any], set_version: Callable[[int], None]) -> None:
        self._workers, self._set_version = workers, set_version
        self._names: list[str] = []
        self._version = 0
        self._begun = self._seconds = 0.0

    def handle_call(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Forward one call."""
        if method == START_UPDATE:
            self._names, self._begun = [], time.perf_counter()
        # vLLM's workers do not know versions; the engine around them does.
        self._workers(method, {} if method == _FINISH_UPDATE else arguments)
        if method == _UPDATE:
            self._names += arguments["update_info"]["names"]
        elif method == _FINISH_UPDATE:
            self._version = int(arguments["weight_version"])
            self._set_version(self._version)
            self._seconds = time.perf_counter() - self._begun

    def received_record(self) -> ReceivedWeights:
        """Return the record of what arrived since the last start."""
        names = tuple(self._names)
        checksums = (_NO_CHECKSUM,) * len(names)
        return ReceivedWeights(names=names, checksums=checksums, version=self._version, seconds=self._seconds)
