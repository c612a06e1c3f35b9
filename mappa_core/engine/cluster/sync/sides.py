"""The two sides of a publish, as the publisher sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from mappa_core.engine.cluster.sync.receipt import Received, Sent
from mappa_core.records import Float32, Int32


class Learners(Protocol):
    """Who has the new weights: the ranks of a group of learners, or a checkpoint."""

    def weights(self, policy: str, version: int) -> AsyncIterator[Any]:
        """References to the Buckets of the policy's weights, in the sampler's dtype and in the order of layers, as
        they are filled: what is sent is not fetched by the driver. Every rank takes part until the last one, so this
        is always heard to its end."""

    async def sent(self, policy: str) -> Sent:
        """What the last `weights` of the policy sent, once it is through."""

    async def offload(self) -> None:
        """Leave the GPUs to the samplers."""

    async def logprobs(self, policy: str, sequences: Sequence[Int32]) -> Sequence[Float32]:
        """By the weights as they are now: of each sequence (T,) the log-probability of every token after the first,
        (T - 1,), at temperature 1."""


class SamplerEngine(Protocol):
    """One engine that serves a policy. Calls may be repeated after a failure, from `pause` or `begin` on."""

    name: str

    async def pause(self) -> None:
        """Stop decoding; requests stay. Only full weights need it: adapters are added while others are in use."""

    async def begin(self, policy: str, version: int, adapter: Mapping[str, Any] | None) -> None:
        """Expect the buckets of this version, and forget those of a load that broke. `adapter` is the
        adapter_config.json of LoRA weights, None where they are full."""

    async def take(self, bucket: Any) -> None:
        """The next bucket, by reference. Returns as soon as there is room for another."""

    async def finish(self) -> Received:
        """Nothing more comes, in buckets or from GPU to GPU: load it, drop what older weights computed, and label
        tokens by the version."""

    async def wake(self, tag: str) -> None:
        """Take the GPU's memory again: `weights` before they are loaded, `kv_cache` before anything is computed."""

    async def logprobs(self, policy: str, version: int, sequences: Sequence[Int32]) -> Sequence[Float32]:
        """As the learners', by the weights of this version, also while paused."""

    async def admit(self, policy: str, version: int) -> None:
        """This version is verified: sample by it from now on. Ends a pause; older adapters go once they are idle."""


class Samplers(Protocol):
    """The engines that serve one policy, or the adapters of one base."""

    @property
    def engines(self) -> Sequence[SamplerEngine]: ...

    async def mend(self) -> None:
        """Start every engine again that is lost. It stays paused, with the weights of the model's folder."""
