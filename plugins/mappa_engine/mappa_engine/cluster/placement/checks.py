"""Checks of options and models before a placement is searched."""

from __future__ import annotations

from collections.abc import Sequence

from mappa_core import ConfigError
from mappa_engine.cluster.placement.candidates import PolicyUnit
from mappa_engine.cluster.placement.memory import MemoryInputs
from mappa_engine.memory_estimate import BYTES_PER_NUMBER
from mappa_engine.options import ClusterOptions

_CHOICES = {
    "placement": ("colocated", "separate"),
    "zero": (0, 1, 2, 3),
    "dtype": ("auto", *BYTES_PER_NUMBER),
    "transport": ("auto", "store", "nccl", "ipc"),
}
_COUNTS = ("learner_ranks", "samplers", "tensor_parallel", "kv_cache_mb", "packed_tokens", "max_model_len")
MB = 1 << 20


def check_options(options: ClusterOptions) -> None:
    """Raise ConfigError for an invalid option of placement or memory."""
    for name, known in _CHOICES.items():
        if getattr(options, name) not in known:
            listed = ", ".join(map(str, known))
            raise ConfigError(f"engine.options.{name} is {getattr(options, name)!r}; it can be {listed}")
    for name in _COUNTS:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ConfigError(f"engine.options.{name} is {value}; it is at least 1")


def check_windows(inputs: MemoryInputs, pools: Sequence[PolicyUnit]) -> None:
    """Raise ConfigError where an engine could not hold one request, or cannot be split by tensor parallelism."""
    options = inputs.options
    for pool in pools:
        shape = inputs.shapes[pool.model]
        window, pieces = inputs.window(shape), options.tensor_parallel
        if window > shape.window:
            raise ConfigError(
                f"engine.options.max_model_len={window} is longer than the window of {pool.model}, "
                f"{shape.window} tokens"
            )
        if shape.heads % pieces:
            raise ConfigError(
                f"engine.options.tensor_parallel={pieces} does not divide the {shape.heads} attention heads of "
                f"{pool.model}"
            )
        per_token = BYTES_PER_NUMBER[inputs.dtype] * shape.kv_per_token
        held = options.kv_cache_mb * MB * min(pieces, shape.kv_heads) // per_token
        if held < window:
            needed = -(-window * per_token // (MB * min(pieces, shape.kv_heads)))
            raise ConfigError(
                f"engine.options.kv_cache_mb={options.kv_cache_mb} holds keys and values of {held:,} tokens of "
                f"{pool.model} ({per_token:,} bytes each), and one request may have {window:,} (its window). Set "
                f"engine.options.kv_cache_mb to {needed} or more, which is one such request at a time, or "
                f"engine.options.max_model_len to {held} or less."
            )
