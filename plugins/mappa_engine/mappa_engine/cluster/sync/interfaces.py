"""Interfaces of the publisher: weight providers and sampler engines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from mappa_engine.arrays import Float32, Int32
from mappa_engine.cluster.sync.transfer_records import ReceivedWeights, SentWeights


class WeightProvider(Protocol):
    """Holder of new weights: the ranks of a learner group, or a checkpoint."""

    def weights(self, policy: str, version: int) -> AsyncIterator[Any]:
        """Yield references to the Buckets of the policy's weights, in the sampler's dtype and in the order of layers,
        as they are filled: the driver does not fetch them. Every rank takes part until the last one, so callers must
        consume it to its end."""

    async def sent_record(self, policy: str) -> SentWeights:
        """Return the record of what the last `weights` of the policy sent, once it has ended."""

    async def offload(self, *, keep_weights: bool = False) -> None:
        """Free the GPUs for samplers, with `keep_weights` of all but the weights themselves."""

    async def logprobs(self, policy: str, sequences: Sequence[Int32]) -> Sequence[Float32]:
        """Compute with the current weights, for each sequence (T,), the log-probabilities (T - 1,) of every token after
        the first, at temperature 1."""


class SamplerEngine(Protocol):
    """One engine that serves a policy. After a failure calls are repeated, from `pause` or `begin_load` on."""

    name: str

    async def pause(self) -> None:
        """Stop decoding; requests are kept. Only full weights need it: adapters are added while others are in use."""

    async def begin_load(self, policy: str, version: int, adapter: Mapping[str, Any] | None) -> None:
        """Start to load a version from buckets, and discard a load that broke off. `adapter` is the
        adapter_config.json of LoRA weights, None for full weights."""

    async def load_bucket(self, bucket: Any) -> None:
        """Load the next bucket, given by reference. Returns as soon as there is room for another."""

    async def finish_load(self) -> ReceivedWeights:
        """Complete the load, from buckets or from GPU to GPU: drop cached results of older weights, and label tokens
        with the version."""

    async def sleep(self) -> None:
        """Free the GPU's memory, after `pause`; does nothing where it is free already."""

    async def wake(self, tag: str) -> None:
        """Allocate GPU memory again: `weights` before a load, `kv_cache` before any computation."""

    async def logprobs(self, policy: str, version: int, sequences: Sequence[Int32]) -> Sequence[Float32]:
        """Compute log-probabilities like the learners, with the weights of this version, also while paused."""

    async def activate(self, policy: str, version: int) -> None:
        """Sample with this verified version from now on. Ends a pause; older adapters are removed once unused."""


class EnginePool(Protocol):
    """Pool of engines that serve one policy, or the adapters of one base model."""

    @property
    def engines(self) -> Sequence[SamplerEngine]: ...

    async def restart_lost(self) -> None:
        """Restart every lost engine. It stays paused, with the weights of the model's folder."""
