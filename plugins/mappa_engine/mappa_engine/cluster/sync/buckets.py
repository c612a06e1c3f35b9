"""Buckets: many tensors that go from a learner to samplers together, each with a checksum."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

NamedTensor = tuple[str, Tensor]
Bytes = NDArray[np.uint8]
BUCKET_BYTES = 30 << 20
"""Small enough that filling, sending and loading overlap; large enough that the overhead per bucket does not matter."""
FIRST_BYTES = 4 << 20
"""Size of the first bucket, so that engines start to load early. Each is twice the one before: it is filled, sent and
checked in less than half of the time in which vLLM loads as many bytes, so that engines need not wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bucket:
    """Whole tensors in loading order."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    """Torch dtype names: float32, bfloat16."""
    shapes: tuple[tuple[int, ...], ...]
    data: tuple[Bytes, ...]
    """Bytes of each tensor. They are those of the learner's own memory where it is the host's: Ray's store copies them,
    and nothing else does."""
    checksums: tuple[str, ...]
    """Checksum of each tensor's bytes, dtype and shape when it was put in."""

    @property
    def bytes(self) -> int:
        """Size of the tensors."""
        return sum(array.nbytes for array in self.data)


def fill_buckets(tensors: Iterable[NamedTensor], bucket_bytes: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """Put tensors, in order, into buckets of at most `FIRST_BYTES`, then of twice as much each, up to `bucket_bytes`; a
    larger tensor gets a bucket of its own.

    A tensor must keep its values until the bucket after its own is requested.
    """
    limit, size, held = min(FIRST_BYTES, bucket_bytes), 0, list[NamedTensor]()
    for name, tensor in tensors:
        own = tensor.numel() * tensor.element_size()
        if held and size + own > limit:
            yield _bucket(held)
            limit, size, held = min(2 * limit, bucket_bytes), 0, []
        held.append((name, tensor))
        size += own
    if held:
        yield _bucket(held)


def _bucket(held: Iterable[NamedTensor]) -> Bucket:
    names, tensors = zip(*held, strict=True)
    dtypes = tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
    shapes = tuple(tuple(tensor.shape) for tensor in tensors)
    data = tuple(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy() for tensor in tensors)
    return Bucket(names=names, dtypes=dtypes, shapes=shapes, data=data, checksums=_checksums(data, dtypes, shapes))


def bucket_tensors(bucket: Bucket) -> Iterator[NamedTensor]:
    """Yield the tensors of a bucket as views of its bytes, for reading only: other processes share them."""
    for name, dtype, shape, data in zip(bucket.names, bucket.dtypes, bucket.shapes, bucket.data, strict=True):
        yield name, _view(data).view(getattr(torch, dtype)).view(shape)


def _view(data: Bytes) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        # torch.frombuffer does not accept an empty buffer.
        return torch.frombuffer(data, dtype=torch.uint8) if data.size else torch.empty(0, dtype=torch.uint8)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReceivedBucket:
    """A bucket at a sampler, with the checksums of its tensors as received."""

    bucket: Bucket
    checksums: tuple[str, ...]

    @classmethod
    def of(cls, bucket: Bucket) -> ReceivedBucket:
        checksums = _checksums(bucket.data, bucket.dtypes, bucket.shapes)
        return cls(bucket=bucket, checksums=checksums)


class ReceivedTensors:
    """Yields the tensors that reached a sampler, and records their names and checksums in loading order."""

    def __init__(self, tied: Mapping[str, str]) -> None:
        """`tied` maps a sent name to the second name of its tensor. vLLM loads both: it packs the output head
        separately, and would keep the old one."""
        self.names: list[str] = []
        self.checksums: list[str] = []
        self._tied = tied

    def tensors(self, arrivals: Iterable[ReceivedBucket]) -> Iterator[NamedTensor]:
        """Yield every tensor with its name, tied ones under both names."""
        for arrival in arrivals:
            for (name, tensor), checksum in zip(bucket_tensors(arrival.bucket), arrival.checksums, strict=True):
                for loaded in (name, *([self._tied[name]] if name in self._tied else [])):
                    self.names.append(loaded)
                    self.checksums.append(checksum)
                    yield loaded, tensor


def _checksums(data: Iterable[Bytes], dtypes: Iterable[str], shapes: Iterable[tuple[int, ...]]) -> tuple[str, ...]:
    checksums = []
    for array, dtype, shape in zip(data, dtypes, shapes, strict=True):
        # Of equal bytes, another dtype or shape is another tensor.
        digest = xxhash.xxh3_128(f"{dtype}{shape}".encode())
        digest.update(array.data)
        checksums.append(digest.hexdigest())
    return tuple(checksums)
