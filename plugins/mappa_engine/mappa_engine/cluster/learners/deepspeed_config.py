"""DeepSpeed configuration of a learner; does not import DeepSpeed."""

from __future__ import annotations

from typing import Any

from mappa_core import ConfigError
from mappa_core.engine import TrainSection
from mappa_engine.cluster.placement.checks import check_deepspeed_options
from mappa_engine.options import PlacedOptions

_DTYPES = ("float32", "bfloat16")
_BUCKET = 50_000_000
"""Elements that are reduced or gathered at a time: 100 MB in bfloat16, where DeepSpeed's default takes 1 GB."""
_NEVER = 1_000_000_000


def deepspeed_config(train: TrainSection, options: PlacedOptions, *, dtype: str, gpu: bool) -> dict[str, Any]:
    """Build the configuration of one learner's DeepSpeed engine.

    The learner counts micro-batches itself: DeepSpeed sees one per step, and the learner marks the last. Gradients
    accumulate in float32 whatever the dtype of the weights, so that the split into micro-batches changes nothing.
    """
    check_deepspeed_options(options, dtype=dtype, gpu=gpu)
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": train.grad_clip,
        "steps_per_print": _NEVER,
        "zero_allow_untested_optimizer": True,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": train.learning_rate,
                "betas": list(train.betas),
                "weight_decay": train.weight_decay,
                # DeepSpeed's own would be compiled at the first step, which needs a compiler of CUDA.
                "torch_adam": True,
                "fused": True,
            },
        },
        "zero_optimization": _sharding(options, gpu),
    }
    if dtype == "bfloat16":
        settings["bf16"] = {"enabled": True}
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return settings


def _sharding(options: PlacedOptions, gpu: bool) -> dict[str, Any]:
    sharding: dict[str, Any] = {
        "stage": options.zero,
        "reduce_bucket_size": _BUCKET,
        "allgather_bucket_size": _BUCKET,
    }
    if options.zero == 3:
        sharding["stage3_prefetch_bucket_size"] = _BUCKET
    if options.offload_optimizer:
        sharding["offload_optimizer"] = {"device": "cpu", "pin_memory": gpu}
    return sharding


def resolve_dtype(options: PlacedOptions, *, gpu: bool) -> str:
    """Resolve the dtype of learners and samplers: float32 or bfloat16."""
    if options.dtype == "auto":
        return "bfloat16" if gpu else "float32"
    if options.dtype not in _DTYPES:
        raise ConfigError(f"engine.options.dtype is {options.dtype!r}; it can be auto, {' or '.join(_DTYPES)}")
    return options.dtype
