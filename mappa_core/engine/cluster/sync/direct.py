"""The driver's side of weights that go from GPU to GPU: who meets whom, and when anew. Untried on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mappa_core.engine.cluster.sync.gpu import Transport
from mappa_core.engine.cluster.sync.receipt import Sent


class Group(Protocol):
    """The ranks that send."""

    async def connect(self, policy: str, transport: Transport, engines: Sequence[Any], workers: Sequence[int]) -> None:
        """Have all ranks meet the engines, given by handles of Ray, each with its number of GPUs."""

    async def transfer(self, policy: str, version: int) -> Sent:
        """Have all ranks send."""


class Direct:
    """Transfers of one policy; `transfer` is what its Route asks for.

    Ranks and engines meet before the first transfer, and again once an engine was started anew or a transfer broke: a
    group of nccl that lost a member, or a message, is of no further use.
    """

    def __init__(
        self, transport: Transport, group: Group, engines: Callable[[], Sequence[Any]], workers: Sequence[int]
    ) -> None:
        self._transport = transport
        self._group = group
        self._engines, self._workers = engines, tuple(workers)
        self._met: tuple[Any, ...] | None = None

    async def transfer(self, policy: str, version: int) -> Sent:
        """Send a version of the policy to all its engines."""
        engines = tuple(self._engines())
        met, self._met = self._met, None
        if engines != met:
            await self._group.connect(policy, self._transport, engines, self._workers)
        sent = await self._group.transfer(policy, version)
        self._met = engines
        return sent
