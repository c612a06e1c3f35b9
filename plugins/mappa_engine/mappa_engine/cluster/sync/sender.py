"""Sends weights in buckets, and records what was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import TypeVar

from mappa_engine.cluster.sync.buckets import BUCKET_BYTES, Bucket, NamedTensor, fill_buckets
from mappa_engine.cluster.sync.transfer_records import SentWeights

T = TypeVar("T")


def order_for_sending(tensors: Iterable[T], size: Callable[[T], int]) -> list[T]:
    """Sort tensors for sending: keep their order, but move those larger than a bucket to the middle, so that filling
    and loading a large one overlap with the tensors before and after it. `size` in bytes."""
    known = [(tensor, size(tensor)) for tensor in tensors]
    large = [tensor for tensor, size in known if size > BUCKET_BYTES]
    small = [(tensor, size) for tensor, size in known if size <= BUCKET_BYTES]
    ends = list(accumulate(size for _, size in small))
    half = sum(2 * end <= ends[-1] for end in ends)
    others = [tensor for tensor, _ in small]
    return [*others[:half], *large, *others[half:]]


class BucketSender:
    """Splits the tensors of one version of a policy into buckets."""

    def __init__(
        self, policy: str, version: int, tensors: Iterable[NamedTensor], bucket_bytes: int = BUCKET_BYTES
    ) -> None:
        self._policy, self._version = policy, version
        self._buckets = fill_buckets(tensors, bucket_bytes)
        self._names: list[str] = []
        self._checksums: list[str] = []
        self._bytes = 0

    def next_bucket(self) -> Bucket | None:
        """Return the next bucket; None after the last."""
        bucket = next(self._buckets, None)
        if bucket is not None:
            self._names += bucket.names
            self._checksums += bucket.checksums
            self._bytes += bucket.bytes
        return bucket

    def sent_record(self) -> SentWeights:
        """Return the record of the buckets so far."""
        return SentWeights(
            policy=self._policy,
            version=self._version,
            names=tuple(self._names),
            checksums=tuple(self._checksums),
            bytes=self._bytes,
        )
