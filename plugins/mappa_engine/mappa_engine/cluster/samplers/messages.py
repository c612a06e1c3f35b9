"""Messages between the driver and sampler engines; imports only numpy and the standard library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mappa_core.engine import Finish, Sampling, VersionSpan
from mappa_engine.arrays import Float32, Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerConfig:
    """Configuration of one engine: the weights of one model, and capacity for adapters.

    `adapter_policies` are the policies whose weights are an adapter; all others use the model itself.
    """

    model: str
    device: str
    dtype: str
    window: int
    kv_cache_bytes: int
    max_batch: int
    threads: int = 1
    memory_share: float = 1.0
    """Share of a GPU's memory that must be free for the engine when it starts: what it will take itself."""
    prefix_caching: bool = True
    tensor_parallel: int = 1
    isolate_waves: bool = False
    """Each wave is decoded alone, to its end, from an empty prefix cache: its completions depend on nothing else."""
    adapter_policies: tuple[str, ...] = ()
    lora_rank: int = 0
    """Maximum rank of an adapter."""
    max_adapters: int = 0
    """Maximum number of adapters in one batch; requests of further ones wait."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Tied tensors: name of a sent tensor to the second name under which it is loaded."""
    serve_base_without_adapter: bool = False
    """Without training, a policy that has no adapter yet uses the base model, which equals a new adapter."""
    sleep_mode: bool = False
    """Whether the engine frees its GPU memory between rollouts (vLLM's sleep mode)."""
    transport: str = "store"
    """Transport of full weights: store (in buckets) | nccl | ipc (from GPU to GPU)."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationRequest:
    """Request to sample one action."""

    id: str
    policy: str
    prompt: Int32
    sampling: Sampling
    stops: frozenset[int]


RequestWave = tuple[GenerationRequest, ...]
"""Requests that are submitted together, in order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """The sampled action of a request. Log-probabilities are in nats, of the temperature-scaled distribution that top_p
    and top_k left; for greedy decoding of temperature 1."""

    tokens: Int32  # (T,), with the stop token if one was sampled
    logprobs: Float32  # (T,)
    finish: Finish
    versions: tuple[VersionSpan, ...]
    seconds: float
    mask_tokens: Int32 | None = None  # (K,) sampling mask, token after token; None if nothing was cut
    mask_sizes: Int32 | None = None  # (T,)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestResult:
    """Result of a request: its generation, or the error with which the engine refused it."""

    id: str
    generation: Generation | None = None
    error: str = ""
