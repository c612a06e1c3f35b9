"""Options of core's engines and losses; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LocalOptions:
    """The engine `local`: every policy in this process, on the CPU or one GPU."""

    device: str = "auto"
    """auto | cpu | cuda; auto takes the GPU where there is one."""
    dtype: str = "float32"
    """float32 | bfloat16, of sampling and learning alike. Learners of bfloat16 keep float32 master weights."""
    deterministic: bool = False
    """Equal requests in equal waves give bit-equal completions and weights (on the CPU): each wave is decoded apart."""
    threads: int = 1
    """Threads that torch computes one operation with."""
    max_batch: int = 256
    """Requests of one policy that are decoded together; further ones wait."""
    prefill_tokens: int = 16384
    """Prompt tokens, padding included, of one forward pass of a sampler."""


@dataclass
class PPOOptions:
    """The loss `ppo`."""

    clip_low: float = 0.2
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio is clipped above at 1 + clip_high."""
    kl: str = "none"
    """none | k1 | k3: estimate of the divergence from the reference that is added to the loss."""
    kl_coef: float = 0.0
    """Weight of that estimate."""
