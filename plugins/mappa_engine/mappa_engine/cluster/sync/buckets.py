"""Buckets: buffers that carry many tensors from a learner to samplers, each tensor with a checksum."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

NamedTensor = tuple[str, Tensor]
BUCKET_BYTES = 30 << 20
"""Small enough that the allocator reuses the memory of one bucket for the next (malloc does below 32 MB), which avoids
repeated page faults; large enough that the overhead per bucket does not matter."""
FIRST_BYTES = 4 << 20
"""Size of the first bucket: small, so that engines start to load while the next one is filled."""
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bucket:
    """Whole tensors in loading order: `data` holds their bytes, the other fields their layout."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    """Torch dtype names: float32, bfloat16."""
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    """Byte offset of each tensor; multiples of 64."""
    data: NDArray[np.uint8]
    checksums: tuple[str, ...]
    """Checksum of each tensor's bytes, dtype and shape when it was copied in."""


def fill_buckets(tensors: Iterable[NamedTensor], bucket_bytes: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """Copy tensors, in order, into buckets of at most `bucket_bytes`, the first of `FIRST_BYTES`; a larger tensor gets
    a bucket of its own.

    Every tensor is copied before the next is requested, so that gathered ones can be freed in between.
    """
    builder = _BucketBuilder(min(FIRST_BYTES, bucket_bytes))
    for name, tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if builder.names and builder.end + size > builder.size:
            yield builder.bucket()
            builder = _BucketBuilder(bucket_bytes)
        builder.add(name, tensor, size)
    if builder.names:
        yield builder.bucket()


class _BucketBuilder:
    """Collects the tensors of one bucket."""

    def __init__(self, size: int) -> None:
        self.names: list[str] = []
        self.end = 0
        self.size = size
        self._data = np.empty(0, dtype=np.uint8)
        self._layout: list[tuple[str, tuple[int, ...], int]] = []
        self._checksums: list[str] = []

    def add(self, name: str, tensor: Tensor, size: int) -> None:
        if not self.names:
            self._data = np.empty(max(self.size, size), dtype=np.uint8)
        dtype, shape, offset = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), self.end
        place = torch.from_numpy(self._data[offset : offset + size])
        place.view(tensor.dtype).view(shape).copy_(tensor.detach())
        self.names.append(name)
        self._layout.append((dtype, shape, offset))
        self._checksums.append(_checksum(self._data[offset : offset + size], dtype, shape))
        self.end = -(-(offset + size) // _ALIGNMENT) * _ALIGNMENT

    def bucket(self) -> Bucket:
        dtypes, shapes, offsets = zip(*self._layout, strict=True)
        return Bucket(
            names=tuple(self.names),
            dtypes=dtypes,
            shapes=shapes,
            offsets=offsets,
            data=self._data[: self.end],
            checksums=tuple(self._checksums),
        )


def bucket_tensors(bucket: Bucket) -> Iterator[NamedTensor]:
    """Yield the tensors of a bucket as views of its buffer, for reading only: other processes share it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        # torch.frombuffer does not accept an empty buffer.
        whole = torch.frombuffer(bucket.data, dtype=torch.uint8) if bucket.data.size else torch.empty(0).byte()
    for name, dtype, shape, place in _tensor_slices(bucket):
        yield name, whole[place].view(getattr(torch, dtype)).view(shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReceivedBucket:
    """A bucket at a sampler, with the checksums of its tensors as received."""

    bucket: Bucket
    checksums: tuple[str, ...]

    @classmethod
    def of(cls, bucket: Bucket) -> ReceivedBucket:
        checksums = tuple(
            _checksum(bucket.data[place], dtype, shape) for _, dtype, shape, place in _tensor_slices(bucket)
        )
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
                for one in (name, *([self._tied[name]] if name in self._tied else [])):
                    self.names.append(one)
                    self.checksums.append(checksum)
                    yield one, tensor


def _tensor_slices(bucket: Bucket) -> Iterator[tuple[str, str, tuple[int, ...], slice]]:
    for name, dtype, shape, offset in zip(bucket.names, bucket.dtypes, bucket.shapes, bucket.offsets, strict=True):
        yield name, dtype, shape, slice(offset, offset + math.prod(shape) * getattr(torch, dtype).itemsize)


def _checksum(data: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> str:
    digest = xxhash.xxh3_128(f"{dtype}{shape}".encode())
    digest.update(data.data)
    return digest.hexdigest()
