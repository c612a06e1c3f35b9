"""Weights on their way, and the record of what was sent."""

from __future__ import annotations

from collections.abc import Iterable

from mappa_core.engine.cluster.sync.buckets import BUCKET_BYTES, Bucket, Named, fill
from mappa_core.engine.cluster.sync.receipt import Sent


class Sending:
    """The tensors of one version of a policy, a bucket at a time."""

    def __init__(self, policy: str, version: int, tensors: Iterable[Named], bucket_bytes: int = BUCKET_BYTES) -> None:
        self._policy, self._version = policy, version
        self._buckets = fill(tensors, bucket_bytes)
        self._names: list[str] = []
        self._checksums: list[str] = []
        self._bytes = 0

    def take(self) -> Bucket | None:
        """The next bucket; None: there are no more."""
        bucket = next(self._buckets, None)
        if bucket is not None:
            self._names += bucket.names
            self._checksums += bucket.checksums
            self._bytes += bucket.data.nbytes
        return bucket

    def sent(self) -> Sent:
        """What was taken so far."""
        return Sent(
            policy=self._policy,
            version=self._version,
            names=tuple(self._names),
            checksums=tuple(self._checksums),
            bytes=self._bytes,
        )
