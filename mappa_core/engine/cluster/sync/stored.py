"""Weights of a checkpoint on their way to samplers, where there are no learners that hold them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from mappa_core.engine.checkpoint import STATE, VALUE_HEAD, WEIGHTS
from mappa_core.engine.cluster.sync.buckets import Bucket, Named
from mappa_core.engine.cluster.sync.receipt import Sent
from mappa_core.engine.cluster.sync.sending import Sending
from mappa_core.errors import RunError
from mappa_core.records import Float32, Int32


class StoredWeights:
    """Policies by the folders that hold them, in a checkpoint's layout. Nobody computes with them but the samplers, so
    they answer no probe. `put` gives a reference to a bucket that engines can fetch; tensors go as `dtype`, those of
    `adapters` as they are."""

    def __init__(
        self, folders: Mapping[str, Path], *, adapters: frozenset[str], dtype: str, put: Callable[[Bucket], Any]
    ) -> None:
        self._folders = dict(folders)
        self._adapters = adapters
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._put = put
        self._sending: dict[str, Sending] = {}

    async def weights(self, policy: str, version: int) -> AsyncIterator[Any]:
        """References to the Buckets of a policy's weights."""
        sending = self._sending[policy] = Sending(policy, version, self._tensors(policy))
        while (bucket := sending.take()) is not None:
            yield self._put(bucket)

    async def sent(self, policy: str) -> Sent:
        """What the last `weights` of the policy sent."""
        return self._sending[policy].sent()

    async def logprobs(self, policy: str, sequences: Sequence[Int32]) -> Sequence[Float32]:
        """There are none: routes from stored weights have no limit for a probe."""
        raise NotImplementedError("weights in files compute nothing")

    async def offload(self) -> None:
        """They are on no GPU."""

    def _tensors(self, policy: str) -> Iterator[Named]:
        with safe_open(self._folders[policy] / WEIGHTS, framework="pt") as file:
            for name in sorted(file.keys()):
                if not name.startswith(VALUE_HEAD):
                    tensor = file.get_tensor(name)
                    yield name, tensor if policy in self._adapters else tensor.to(self._dtype)


def stored_version(folder: Path) -> int:
    """The version of the policy in a checkpoint's folder. Raises RunError where there is none."""
    if not (folder / STATE).is_file():
        raise RunError(f"{folder}: there is no policy of that name in the checkpoint; were its policies others?")
    version: int = json.loads((folder / STATE).read_text())["version"]
    return version
