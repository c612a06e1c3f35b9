"""Sends weights in buckets, and records what was sent."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import accumulate
from typing import TypeVar

from mappa_engine.cluster.sync.buckets import BUCKET_BYTES, Bucket, NamedTensor, fill_buckets
from mappa_engine.cluster.sync.transfer_records import SentWeights

T = TypeVar("T")
_IN_LAYER = re.compile(r"\.\d+\.")
"""In the name of a tensor, as in `model.layers.7.mlp.up_proj.weight`."""


def order_for_sending(tensors: Iterable[T], name_and_bytes: Callable[[T], tuple[str, int]]) -> list[T]:
    """Sort tensors for sending: keep their order, but move those larger than a bucket that are in no layer (embedding
    and head) to the middle, so that filling and loading them overlap with what is sent before and after. Those of a
    layer stay together: a loader that fuses some of them holds what has come until the last of them is there."""
    known = [(tensor, *name_and_bytes(tensor)) for tensor in tensors]
    moved = [size > BUCKET_BYTES and not _IN_LAYER.search(name) for _, name, size in known]
    ends = list(accumulate(size for (_, _, size), away in zip(known, moved, strict=True) if not away))
    half = sum(2 * end <= ends[-1] for end in ends)
    large = [tensor for (tensor, _, _), away in zip(known, moved, strict=True) if away]
    others = [tensor for (tensor, _, _), away in zip(known, moved, strict=True) if not away]
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
