"""Files of a policy in a checkpoint. Both engines write the same, so that either can resume from the other.

    weights.safetensors     by the model's own names; for a `lora` policy only the adapter, by peft's names, float32
    optimiser.safetensors   AdamW's exp_avg.NAME, exp_avg_sq.NAME and step.NAME, float32; absent if nothing was trained
    state.json              {"version": …, "steps": …}

    reference/              weights.safetensors of a reference that is not the model itself, in the dtype it computes in

A value head is stored among the weights as `value_head.weight` and `value_head.bias`. Larger policies are in shards
(weights-00000.safetensors, …) of whole tensors. Beside every file of tensors is its hash in the form of sha256sum.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mappa_core import RunError
from mappa_core.files import has_file, has_folder, read_text, write_file
from mappa_core.safe_json import parse_untrusted_json

WEIGHTS_FILE, OPTIMISER_FILE, STATE_FILE = "weights.safetensors", "optimiser.safetensors", "state.json"
REFERENCE_FOLDER = "reference"
VALUE_HEAD_PREFIX = "value_head."
SHARD_BYTES = 1 << 28
"""Size of a shard, of which the process that writes holds two in memory, and one of them twice, as tensors and as what
is written; a larger tensor is a shard of its own."""
_WRITE_BYTES = 16 << 20
MAX_STATE_BYTES = 1 << 16
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")
_STORED_DTYPES = {"F32", "BF16", "F16"}


def write_tensors(
    tensors: Iterable[tuple[str, Tensor]], file: Path, *, rank: int = 0, ranks: int = 1, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write tensors, each valid until the next one, to `file` or, beyond `shard_bytes`, to shards beside it. A thread
    hashes, writes and syncs a shard while the next one is filled.

    All ranks pass the same tensors in the same order, and each writes its share of the shards. A storage that fails
    raises OSError once all tensors were taken, as other ranks may wait for this one in a gather.
    """
    writes: list[Future[None]] = []
    held: dict[str, Tensor] = {}
    size = shards = 0
    with ThreadPoolExecutor(1, thread_name_prefix="mappa-checkpoint") as thread:
        for name, tensor in tensors:
            own = tensor.numel() * tensor.element_size()
            if size and size + own > shard_bytes:
                if shards % ranks == rank:
                    wait(writes)
                    writes.append(thread.submit(_write_shard, held, _shard(file, shards)))
                held, size, shards = {}, 0, shards + 1
            size += own
            if shards % ranks == rank:
                held[name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        if shards % ranks == rank:
            writes.append(thread.submit(_write_shard, held, _shard(file, shards) if shards else file))
    for write in writes:
        write.result()


def _shard(file: Path, number: int) -> Path:
    return file.with_stem(f"{file.stem}-{number:05d}")


def _write_shard(tensors: Mapping[str, Tensor], path: Path) -> None:
    digest, data = hashlib.sha256(), memoryview(save(dict(tensors)))
    with path.open("wb") as file:
        for start in range(0, len(data), _WRITE_BYTES):
            part = data[start : start + _WRITE_BYTES]
            digest.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    write_file(path.parent, f"{path.name}.sha256", f"{digest.hexdigest()}  {path.name}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCounts:
    """`version` counts publishes, `steps` optimiser steps."""

    version: int
    steps: int

    def write(self, folder: Path) -> None:
        """Write them into a policy's folder of a checkpoint."""
        write_file(folder, STATE_FILE, json.dumps({"version": self.version, "steps": self.steps}))

    @classmethod
    def read(cls, folder: Path, policy: str) -> SavedCounts:
        """Read them from the folder of `policy`. Raises RunError if there are none, or the file is damaged."""
        if not has_folder(folder.parent, folder.name) or not has_file(folder, STATE_FILE):
            raise RunError(f"{folder}: the checkpoint has no policy {policy!r}; were its policies others?")
        path = folder / STATE_FILE
        try:
            state = parse_untrusted_json(read_text(folder, STATE_FILE, max_bytes=MAX_STATE_BYTES))
            counts = [state["version"], state["steps"]]
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is damaged: {error}") from error
        if any(type(count) is not int or count < 0 for count in counts):
            raise RunError(f"{path} is damaged: version and steps count from 0, and are {counts}")
        return cls(version=counts[0], steps=counts[1])


def has_tensors(file: Path) -> bool:
    """Whether `write_tensors` wrote `file`, or shards of it."""
    return bool(_files(file))


def _files(file: Path) -> list[Path]:
    if has_file(file.parent, file.name):
        return [file]
    shards = sorted(file.parent.glob(f"{file.stem}-*{file.suffix}"))
    return [shard for shard in shards if has_file(shard.parent, shard.name)]


class StoredTensors(Mapping[str, Tensor]):
    """What `write_tensors` wrote, as float32 on the CPU. Each tensor is read when it is looked up, inside `with`.
    Raises RunError for a file that it did not write."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._opened = ExitStack()
        self._files: dict[str, Any] = {}
        try:
            for path in _files(file):
                self._open(path)
        except BaseException:
            self._opened.close()
            raise

    def _open(self, path: Path) -> None:
        with _damage_reported(path):
            opened = self._opened.enter_context(safe_open(path, framework="pt"))
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                dtype = opened.get_slice(name).get_dtype()
                if name in self._files or dtype not in _STORED_DTYPES:
                    what = "twice" if name in self._files else f"as {dtype}, which is no floating-point type of weights"
                    raise RunError(f"{path} is damaged: it holds {name!r} {what}")
                self._files[name] = opened

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, by name."""
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self._files.items()}

    def __getitem__(self, name: str) -> Tensor:
        with _damage_reported(self.file):
            tensor: Tensor = self._files[name].get_tensor(name)
        return tensor.float()

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __enter__(self) -> StoredTensors:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()


@contextmanager
def _damage_reported(path: Path) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        raise RunError(f"{path} is damaged: {error}") from error


def check_moments(moments: StoredTensors, weights: Mapping[str, tuple[int, ...]], *, steps: int) -> None:
    """Raise RunError unless `moments` are AdamW's state of `weights`, given by shape, after a number of steps."""
    found = moments.shapes
    for name, shape in found.items():
        moment, _, weight = name.partition(".")
        if moment not in _MOMENTS or weight not in weights:
            raise RunError(f"{moments.file} is not the state of an optimiser of these weights: it holds {name!r}")
        wanted = () if moment == "step" else weights[weight]
        if shape != wanted:
            raise RunError(f"{moments.file}: the shape of {name!r} is {shape}, and that of its weight {wanted}")
        # An update sets all of a weight's moments at once.
        lacking = [other for other in _MOMENTS if f"{other}.{weight}" not in found]
        if lacking:
            raise RunError(f"{moments.file} is damaged: it holds {name!r}, and no '{lacking[0]}.{weight}'")
    if steps and not found:
        raise RunError(f"{moments.file} is empty, and its policy was trained for {steps} steps")


def check_shapes(
    found: Mapping[str, tuple[int, ...]], expected: Mapping[str, Any], folder: Path, *, model_name: str
) -> None:
    """Raise RunError unless the shapes `found` in `folder` are the `expected` ones of a policy of `model_name`."""
    differing = sorted(expected.keys() ^ found.keys()) or [
        name for name, shape in expected.items() if tuple(shape) != found[name]
    ]
    if differing:
        raise RunError(
            f"{folder}: the weights are not those of {model_name}: {differing[0]} differs "
            f"({len(differing)} tensors in all). Use the model that the checkpoint was made from."
        )


def load_start_weights(folder: Path, shapes: Mapping[str, Any], *, model_name: str) -> dict[str, Tensor]:
    """Load the weights of another run's policy as initial weights for one of these `shapes`, float32, on the CPU.

    The value head is loaded only if both have one. Raises RunError if any other weight does not match `model_name`.
    """
    if not has_tensors(folder / WEIGHTS_FILE):
        raise RunError(
            f"{folder}: there are no weights ({WEIGHTS_FILE}) of a policy to start with. Name the folder of one in a "
            "checkpoint: RUN/checkpoints/N/policies/NAME."
        )
    with StoredTensors(folder / WEIGHTS_FILE) as stored:
        found = stored.shapes
        heads = {name for name in (*shapes, *found) if name.startswith(VALUE_HEAD_PREFIX)}
        wanted = {name: shape for name, shape in shapes.items() if name not in heads or name in found}
        check_shapes(
            {name: shape for name, shape in found.items() if name not in heads or name in shapes},
            wanted,
            folder,
            model_name=model_name,
        )
        return {name: stored[name] for name in wanted}


@torch.no_grad()
def copy_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    """Copy `weights` into the tensors of the same names."""
    for name, weight in weights.items():
        own[name].copy_(weight)
