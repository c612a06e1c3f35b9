"""Weight provider that reads checkpoints, for policies that no learner holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mappa_engine.arrays import Float32, Int32
from mappa_engine.checkpoint import VALUE_HEAD_PREFIX, WEIGHTS_FILE, SavedCounts, StoredTensors
from mappa_engine.cluster.sync.buckets import Bucket, NamedTensor
from mappa_engine.cluster.sync.sender import BucketSender
from mappa_engine.cluster.sync.transfer_records import SentWeights


class CheckpointWeights:
    """Reads policies from their folders in a checkpoint's layout. It cannot compute log-probabilities, so there is no
    probe. `put` returns a reference to a bucket that engines can fetch. Tensors are sent in `dtype`, those of
    `adapters` unchanged."""

    def __init__(
        self, folders: Mapping[str, Path], *, adapters: frozenset[str], dtype: str, put: Callable[[Bucket], Any]
    ) -> None:
        self._folders = dict(folders)
        self._adapters = adapters
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._put = put
        self._sending: dict[str, BucketSender] = {}

    async def weights(self, policy: str, version: int) -> AsyncIterator[Any]:
        """Yield references to the Buckets of a policy's weights."""
        sending = self._sending[policy] = BucketSender(policy, version, self._tensors(policy))
        while (bucket := sending.next_bucket()) is not None:
            yield self._put(bucket)

    async def sent_record(self, policy: str) -> SentWeights:
        """Return the record of what the last `weights` of the policy sent."""
        return self._sending[policy].sent_record()

    async def logprobs(self, policy: str, sequences: Sequence[Int32]) -> Sequence[Float32]:
        """Not supported: routes from checkpoints have no probe."""
        raise NotImplementedError("weights in files compute nothing")

    async def offload(self, *, keep_weights: bool = False) -> None:
        """Do nothing: the weights are on no GPU."""

    def _tensors(self, policy: str) -> Iterator[NamedTensor]:
        with StoredTensors(self._folders[policy] / WEIGHTS_FILE) as stored:
            for name in sorted(stored):  # layers together: vLLM keeps what it has of a layer until all is there
                if not name.startswith(VALUE_HEAD_PREFIX):
                    yield name, stored[name] if policy in self._adapters else stored[name].to(self._dtype)


def checkpoint_version(folder: Path) -> int:
    """Read the version of the policy in a checkpoint's folder. Raises RunError where there is none."""
    return SavedCounts.read(folder, folder.name).version
