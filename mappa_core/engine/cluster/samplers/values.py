"""What travels between the driver and the engines that sample; numpy and the standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mappa_core.records import Finish, Float32, Int32, Sampling, VersionSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How one engine is opened: the weights of one model, and room for adapters on it.

    `policies` names those whose weights are an adapter; every other request is answered by the model itself.
    """

    model: str
    device: str
    dtype: str
    window: int
    kv_cache_bytes: int
    max_batch: int
    prefix_caching: bool = True
    tensor_parallel: int = 1
    apart: bool = False
    """Each wave is decoded alone, to its end, from an empty prefix cache: its completions hang on nothing else."""
    policies: tuple[str, ...] = ()
    lora_rank: int = 0
    """The largest rank of an adapter."""
    adapters: int = 0
    """Adapters that one batch may use; of further ones the requests wait."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Names of tensors that share another one's memory, by that other's name."""
    bare: bool = False
    """Nothing is trained: a policy that has no adapter yet is the model itself, as with a new adapter."""
    sleeps: bool = False
    """Whether the engine gives its memory on the GPU away between rollouts."""
    transport: str = "store"
    """How full weights reach it: store (in buckets) | nccl | ipc (from GPU to GPU)."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """One action to be sampled."""

    id: str
    policy: str
    prompt: Int32
    sampling: Sampling
    stops: frozenset[int]


Wave = tuple[Request, ...]
"""Requests that were submitted together, in order."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Drawn:
    """What was sampled for a request. Log-probabilities are nats of the temperature-scaled distribution, before any cut
    to top_p or top_k; where the likeliest token was taken, of temperature 1."""

    tokens: Int32  # (T,), with the stop token if one was sampled
    logprobs: Float32  # (T,)
    finish: Finish
    versions: tuple[VersionSpan, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """The end of a request: what was drawn, or why the engine refused it."""

    id: str
    drawn: Drawn | None = None
    refused: str = ""
