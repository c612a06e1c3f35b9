"""Files of a policy in a checkpoint. Both engines write the same, so that either can resume from the other.

    weights.safetensors     by the model's own names; for a `lora` policy only the adapter, by peft's names, float32
    optimiser.safetensors   AdamW's exp_avg.NAME, exp_avg_sq.NAME and step.NAME, float32; absent if nothing was trained
    state.json              {"version": …, "steps": …}

A value head is stored among the weights as `value_head.weight` and `value_head.bias`. Larger policies are in shards
(weights-00000.safetensors, …) of whole tensors. Beside every file of tensors is its hash in the form of sha256sum.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from mappa_core import RunError

WEIGHTS_FILE, OPTIMISER_FILE, STATE_FILE = "weights.safetensors", "optimiser.safetensors", "state.json"
VALUE_HEAD_PREFIX = "value_head."
SHARD_BYTES = 1 << 30
"""Size of a shard, of which the process that writes holds two in memory; a larger tensor is a shard of its own."""
_WRITE_BYTES = 16 << 20


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
    path.with_name(f"{path.name}.sha256").write_text(f"{digest.hexdigest()}  {path.name}\n")


def has_tensors(file: Path) -> bool:
    """Whether `write_tensors` wrote `file`, or shards of it."""
    return bool(_files(file))


def _files(file: Path) -> list[Path]:
    return [file] if file.is_file() else sorted(file.parent.glob(f"{file.stem}-*{file.suffix}"))


class StoredTensors(Mapping[str, Tensor]):
    """What `write_tensors` wrote, as float32 on the CPU. Each tensor is read when it is looked up, inside `with`."""

    def __init__(self, file: Path) -> None:
        self._opened = ExitStack()
        self._files: dict[str, Any] = {}
        for path in _files(file):
            opened = self._opened.enter_context(safe_open(path, framework="pt"))
            self._files |= dict.fromkeys(opened.keys(), opened)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor, by name."""
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self._files.items()}

    def __getitem__(self, name: str) -> Tensor:
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
