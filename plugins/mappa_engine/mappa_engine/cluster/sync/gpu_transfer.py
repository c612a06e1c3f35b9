"""Driver's side of transfers from GPU to GPU: connects and reconnects ranks and engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mappa_engine.cluster.sync.transfer_records import SentWeights
from mappa_engine.cluster.sync.vllm_transfer import GpuTransport


class SendingGroup(Protocol):
    """A group of ranks that send weights."""

    async def connect(
        self, policy: str, transport: GpuTransport, engines: Sequence[Any], workers: Sequence[int]
    ) -> None:
        """Connect all ranks to the engines, given as Ray handles with their numbers of GPUs."""

    async def transfer(self, policy: str, version: int) -> SentWeights:
        """Send the weights from all ranks."""


class GpuTransfer:
    """Transfers of one policy; `transfer` is the function of its WeightRoute.

    Ranks and engines connect before the first transfer, and again after an engine was restarted or a transfer failed:
    an nccl group that lost a member, or a message, cannot be used any more.
    """

    def __init__(
        self, transport: GpuTransport, group: SendingGroup, engines: Callable[[], Sequence[Any]], workers: Sequence[int]
    ) -> None:
        self._transport = transport
        self._group = group
        self._engines, self._workers = engines, tuple(workers)
        self._connected: tuple[Any, ...] | None = None

    async def transfer(self, policy: str, version: int) -> SentWeights:
        """Send a version of the policy to all its engines; connect first where needed."""
        engines = tuple(self._engines())
        # Forgotten until the transfer has ended well, so that whatever breaks it leads to a new connection.
        connected, self._connected = self._connected, None
        if engines != connected:
            await self._group.connect(policy, self._transport, engines, self._workers)
        sent = await self._group.transfer(policy, version)
        self._connected = engines
        return sent
