"""Checks of options and models before anything is placed."""

from __future__ import annotations

from collections.abc import Sequence

from mappa_core import ConfigError
from mappa_core.engine import PolicySpec
from mappa_engine.cluster.placement.layouts import ServedModel
from mappa_engine.cluster.placement.memory import MemoryInputs
from mappa_engine.memory_estimate import BYTES_PER_NUMBER
from mappa_engine.model_shape import ModelShape
from mappa_engine.options import AUTO, ClusterOptions, PlacedOptions

_CHOICES = {
    "placement": ("colocated", "separate"),
    "zero": (AUTO, 0, 1, 2, 3),
    "gradient_checkpointing": (AUTO, False, True),
    "dtype": (AUTO, *BYTES_PER_NUMBER),
    "transport": (AUTO, "store", "nccl", "ipc"),
}
_COUNTS = ("learner_ranks", "samplers", "tensor_parallel", "kv_cache_mb", "packed_tokens", "max_model_len", "max_batch")
_AUTOMATIC_COUNTS = ("samplers", "kv_cache_mb", "packed_tokens")
_ABOVE_ZERO = ("probe_limit", "start_s", "call_s", "sync_s")
_PLACEMENT_OF = {"ipc": "colocated", "nccl": "separate"}
"""The placement that each transport between GPUs needs."""
MB = 1 << 20
BLOCK_TOKENS = 128
"""Tokens of vLLM's largest block of keys and values (the one of CPUs); a request takes whole blocks."""


def check_options(options: ClusterOptions) -> None:
    """Raise ConfigError for an invalid option of placement or memory, or a limit that nothing could keep."""
    for name, known in _CHOICES.items():
        if getattr(options, name) not in known:
            listed = ", ".join(map(str, known))
            raise ConfigError(f"engine.options.{name} is {getattr(options, name)!r}; it can be {listed}")
    for name in _COUNTS:
        value = getattr(options, name)
        if value is None or (value == AUTO and name in _AUTOMATIC_COUNTS):
            continue
        if isinstance(value, str):
            raise ConfigError(f"engine.options.{name} is {value!r}; it can be auto or a number")
        if value < 1:
            raise ConfigError(f"engine.options.{name} is {value}; it is at least 1")
    for name in _ABOVE_ZERO:
        limit = getattr(options, name)
        if limit is not None and not limit > 0.0:
            raise ConfigError(f"engine.options.{name} is {limit:g}; it is above 0")


def check_deepspeed_options(options: PlacedOptions, *, dtype: str, gpu: bool) -> None:
    """Raise ConfigError for options that DeepSpeed does not support, or would apply differently."""
    if options.zero == 0 and dtype == "bfloat16":
        raise ConfigError(
            "engine.options.zero=0 does not go with bfloat16: DeepSpeed then adds gradients up in bfloat16. Use "
            "engine.options.zero=1, which computes the same with float32 masters, or engine.options.dtype=float32."
        )
    if options.zero == 0 and options.offload_optimizer:
        raise ConfigError("engine.options.offload_optimizer needs engine.options.zero=1, 2 or 3")
    moves = options.zero >= (2 if dtype == "bfloat16" else 1)
    if gpu and options.placement == "colocated" and not moves:
        raise ConfigError(
            f"engine.options.zero={options.zero} in {dtype} cannot leave its GPUs to samplers. Use "
            "engine.options.zero=2 or 3, or engine.options.placement=separate."
        )


def check_transport(policies: Sequence[PolicySpec], options: ClusterOptions, *, gpu: bool, learning: bool) -> None:
    """Raise ConfigError where full weights would not reach an engine; adapters and frozen models are read as files."""
    if not any(policy.kind == "full" for policy in policies):
        return
    pieces, chosen = f"engine.options.tensor_parallel={options.tensor_parallel}", options.transport
    if options.tensor_parallel > 1 and not learning:
        raise ConfigError(
            f"{pieces}: without learners nothing sends weights to the pieces of an engine; set "
            "engine.options.tensor_parallel=1, or write the policies as models (mappa export), and name these with "
            "kind frozen"
        )
    if options.tensor_parallel > 1 and (chosen == "store" or not gpu):
        raise ConfigError(
            f"{pieces}: weights reach the pieces of an engine from GPU to GPU alone (engine.options.transport nccl or "
            "ipc)"
        )
    if not learning or chosen not in _PLACEMENT_OF:
        return
    if not gpu:
        raise ConfigError(f"engine.options.transport={chosen} is between GPUs, and there are none; set it to auto")
    if options.placement != _PLACEMENT_OF[chosen]:
        raise ConfigError(
            f"engine.options.transport={chosen} needs engine.options.placement={_PLACEMENT_OF[chosen]}: ipc is within "
            "a GPU, nccl from one to another; auto takes the one that goes"
        )


def check_windows(inputs: MemoryInputs, pools: Sequence[ServedModel]) -> None:
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
            raise ConfigError(
                f"engine.options.kv_cache_mb={options.kv_cache_mb} holds keys and values of {held:,} tokens of "
                f"{pool.model} ({per_token:,} bytes each), and one request may have {window:,} (its window). Set "
                f"engine.options.kv_cache_mb to {_cache_mb(inputs, shape, window)} or more, which is one such request "
                f"at a time, to auto, or engine.options.max_model_len to {held} or less."
            )


def window_cache_mb(inputs: MemoryInputs, pools: Sequence[ServedModel]) -> int:
    """Return the MB of keys and values that one request of full length takes, of the model that takes most."""
    shapes = [inputs.shapes[pool.model] for pool in pools]
    return max(_cache_mb(inputs, shape, inputs.window(shape)) for shape in shapes)


def max_cache_mb(inputs: MemoryInputs, pools: Sequence[ServedModel]) -> int:
    """Return the MB of keys and values beyond which an engine has no use for more: all requests at full length."""
    return inputs.options.max_batch * window_cache_mb(inputs, pools)


def _cache_mb(inputs: MemoryInputs, shape: ModelShape, tokens: int) -> int:
    """Return the MB that the keys and values of a request take on one GPU of an engine."""
    blocks = -(-tokens // BLOCK_TOKENS)
    size = blocks * BLOCK_TOKENS * BYTES_PER_NUMBER[inputs.dtype] * shape.kv_per_token
    return -(-size // (MB * min(inputs.options.tensor_parallel, shape.kv_heads)))
