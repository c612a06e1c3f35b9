"""Queue of weight buckets between their arrival and the load that consumes them."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

from mappa_core.engine import EngineError
from mappa_engine.cluster.sync.buckets import Bucket, ReceivedBucket

_POLL_S = 0.1
_MAX_WAITING = 3
"""Buckets that may wait to be loaded: enough that a load does not stall while the driver fetches the next."""


class BucketQueue:
    """Short queue of buckets from the calls that deliver them to the load that consumes them.

    `outcome` is the future of the load; it is set before the first bucket is put.
    """

    outcome: Future[Any]

    def __init__(self) -> None:
        self._queue: queue.Queue[ReceivedBucket | None] = queue.Queue(maxsize=_MAX_WAITING)
        self._cancelled = False

    def put(self, bucket: Bucket) -> None:
        """Put a bucket, once there is room; its checksums are computed here, in parallel to the load. Raises the load's
        error."""
        self._put(ReceivedBucket.of(bucket))

    def finish(self) -> Any:
        """End the stream and return the load's result. Raises the load's error."""
        self._put(None)
        return self.outcome.result()

    def cancel(self) -> None:
        """Cancel an incomplete load, and wait until it has ended."""
        self._cancelled = True
        while not self.outcome.done():
            try:
                self._queue.put(None, timeout=_POLL_S)
            except queue.Full:
                continue
            break
        self.outcome.exception()

    def received_buckets(self) -> Iterator[ReceivedBucket]:
        """Yield the buckets in order, to the end of the stream."""
        while (arrival := self._queue.get()) is not None:
            yield arrival
        if self._cancelled:
            raise EngineError("a load of weights was finished, or cancelled, before all of them had been sent")

    def _put(self, arrival: ReceivedBucket | None) -> None:
        while not self.outcome.done():
            try:
                self._queue.put(arrival, timeout=_POLL_S)
            except queue.Full:
                continue
            return
        error = self.outcome.exception()
        raise error if error is not None else EngineError("weights came after the load had ended")
