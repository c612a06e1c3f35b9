"""Weights on their way, and the record of what was sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import TypeVar

from mappa_core.engine.cluster.sync.buckets import BUCKET_BYTES, Bucket, Named, fill
from mappa_core.engine.cluster.sync.receipt import Sent

T = TypeVar("T")


def in_sending_order(tensors: Iterable[T], size: Callable[[T], int]) -> list[T]:
    """In their order, but those larger than a bucket in the middle: while one is filled in, engines load what came
    before it, and while they load it, what comes after is filled in. `size` in bytes."""
    known = [(one, size(one)) for one in tensors]
    large = [one for one, size in known if size > BUCKET_BYTES]
    small = [(one, size) for one, size in known if size <= BUCKET_BYTES]
    ends = list(accumulate(size for _, size in small))
    half = sum(2 * end <= ends[-1] for end in ends)
    others = [one for one, _ in small]
    return [*others[:half], *large, *others[half:]]


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
