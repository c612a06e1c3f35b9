"""Weights on their way from a learner to samplers: many tensors in one buffer, each with a checksum."""

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

Named = tuple[str, Tensor]
BUCKET_BYTES = 30 << 20
"""Small enough that the allocator gives the memory of one bucket to the next (malloc does below 32 MB), so that no page
is touched for the first time again and again; large enough that what a bucket costs beside its bytes does not count."""
FIRST_BYTES = 4 << 20
"""The first bucket is small, so that engines begin to load while the next is filled."""
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bucket:
    """Some tensors, whole, in the order in which they are loaded. `data` holds their bytes; the rest says where."""

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    """As torch names them: float32, bfloat16."""
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    """In bytes, where each tensor begins; multiples of 64."""
    data: NDArray[np.uint8]
    checksums: tuple[str, ...]
    """Of each tensor as it was filled in: its bytes, dtype and shape."""


def fill(tensors: Iterable[Named], bucket_bytes: int = BUCKET_BYTES) -> Iterator[Bucket]:
    """Copy tensors, in order, into buckets of at most `bucket_bytes`, the first of `FIRST_BYTES`; a tensor that is
    larger has one of its own.

    Every tensor is copied before the next is asked for, so that one gathered for this alone may be let go of.
    """
    filling = _Filling(min(FIRST_BYTES, bucket_bytes))
    for name, tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if filling.names and filling.end + size > filling.size:
            yield filling.bucket()
            filling = _Filling(bucket_bytes)
        filling.add(name, tensor, size)
    if filling.names:
        yield filling.bucket()


class _Filling:
    """A bucket under way."""

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


def tensors(bucket: Bucket) -> Iterator[Named]:
    """The tensors of a bucket as views of its buffer, to be read and never written: other processes share it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        # torch makes no tensor of an empty buffer.
        whole = torch.frombuffer(bucket.data, dtype=torch.uint8) if bucket.data.size else torch.empty(0).byte()
    for name, dtype, shape, place in _places(bucket):
        yield name, whole[place].view(getattr(torch, dtype)).view(shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arrival:
    """A bucket at a sampler, with the checksums of its tensors as they lie here."""

    bucket: Bucket
    checksums: tuple[str, ...]

    @classmethod
    def of(cls, bucket: Bucket) -> Arrival:
        found = tuple(_checksum(bucket.data[place], dtype, shape) for _, dtype, shape, place in _places(bucket))
        return cls(bucket=bucket, checksums=found)


class Arrivals:
    """What reached a sampler: gives the tensors, and remembers names and checksums in the order of loading."""

    def __init__(self, tied: Mapping[str, str]) -> None:
        """`tied`: a name that shares the tensor of another, by that other's name. vLLM is sent both: it packs the
        head apart, and would keep the old one."""
        self.names: list[str] = []
        self.checksums: list[str] = []
        self._tied = tied

    def tensors(self, arrivals: Iterable[Arrival]) -> Iterator[Named]:
        """Every tensor with its name, a tied one twice."""
        for arrival in arrivals:
            for (name, tensor), checksum in zip(tensors(arrival.bucket), arrival.checksums, strict=True):
                for one in (name, *([self._tied[name]] if name in self._tied else [])):
                    self.names.append(one)
                    self.checksums.append(checksum)
                    yield one, tensor


def _places(bucket: Bucket) -> Iterator[tuple[str, str, tuple[int, ...], slice]]:
    for name, dtype, shape, offset in zip(bucket.names, bucket.dtypes, bucket.shapes, bucket.offsets, strict=True):
        yield name, dtype, shape, slice(offset, offset + math.prod(shape) * getattr(torch, dtype).itemsize)


def _checksum(data: NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> str:
    digest = xxhash.xxh3_128(f"{dtype}{shape}".encode())
    digest.update(data.data)
    return digest.hexdigest()
