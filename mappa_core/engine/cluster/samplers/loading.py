"""Weights that arrive bucket by bucket while they are being loaded."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from mappa_core.engine.cluster.sync.buckets import Arrival, Bucket
from mappa_core.errors import EngineError

_LOOK_S = 0.1
_AHEAD = 3
"""Buckets that may wait to be loaded: enough that a load does not stand still while the driver fetches the next."""


class Feed:
    """A short queue of buckets between those who bring them and the load that asks for them.

    `outcome` is the load's; it is set before the first bucket is brought.
    """

    outcome: Future[Any]

    def __init__(self) -> None:
        self._queue: queue.Queue[Arrival | None] = queue.Queue(maxsize=_AHEAD)
        self._given_up = False

    def take(self, bucket: Bucket) -> None:
        """Pass a bucket on, once there is room for it; its checksums are taken here, beside the load. Raises what the
        load failed with."""
        self._put(Arrival.of(bucket))

    def end(self) -> Any:
        """Nothing more comes: the load's result. Raises what it failed with."""
        self._put(None)
        return self.outcome.result()

    def give_up(self) -> None:
        """End a load that will not be completed, and wait until it has ended."""
        self._given_up = True
        while not self.outcome.done():
            try:
                self._queue.put(None, timeout=_LOOK_S)
            except queue.Full:
                continue
            break
        self.outcome.exception()

    def arrivals(self) -> Iterator[Arrival]:
        """What was taken, in order, to its end."""
        while (arrival := self._queue.get()) is not None:
            yield arrival
        if self._given_up:
            raise EngineError("weights were not sent to their end")

    def _put(self, arrival: Arrival | None) -> None:
        while not self.outcome.done():
            try:
                self._queue.put(arrival, timeout=_LOOK_S)
            except queue.Full:
                continue
            return
        error = self.outcome.exception()
        raise error if error is not None else EngineError("weights came after the load had ended")
