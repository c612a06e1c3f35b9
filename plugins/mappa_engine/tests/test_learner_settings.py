"""What DeepSpeed is told, and what is refused before it starts."""

import pytest

from mappa_core import ConfigError
from mappa_core.engine import TrainSection
from mappa_engine.cluster.learners.deepspeed_config import deepspeed_config, resolve_dtype
from mappa_engine.cluster.placement.checks import check_deepspeed_options
from mappa_engine.options import PlacedOptions

TRAIN = TrainSection(learning_rate=2e-6, betas=(0.9, 0.99), weight_decay=0.1, grad_clip=0.5)


def settings(*, dtype="bfloat16", gpu=True, **options):
    return deepspeed_config(TRAIN, PlacedOptions(placement="separate", **options), dtype=dtype, gpu=gpu)


def test_deepspeed_config_has_the_recipes_clipping_and_optimiser():
    found = settings()
    assert found["gradient_clipping"] == 0.5
    chosen = {"lr": 2e-6, "betas": [0.9, 0.99], "weight_decay": 0.1}
    assert chosen.items() <= found["optimizer"]["params"].items()


def test_gradients_of_bfloat16_are_added_up_in_float32():
    assert settings()["data_types"] == {"grad_accum_dtype": "fp32"}
    assert "bf16" not in settings(dtype="float32")


@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize("offload", [False, True])
def test_optimiser_needs_no_compiler(gpu, offload):
    """DeepSpeed would compile its own AdamW at the first step; a wheel of torch for GPUs brings no compiler for it."""
    params = settings(gpu=gpu, offload_optimizer=offload)["optimizer"]["params"]
    assert params["torch_adam"] is True and params["fused"] is True


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_sharding_and_offload_settings(zero):
    found = settings(zero=zero, offload_optimizer=True)["zero_optimization"]
    assert found["stage"] == zero
    assert found["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    assert ("stage3_prefetch_bucket_size" in found) == (zero == 3)
    assert "offload_optimizer" not in settings(zero=zero)["zero_optimization"]


def test_deepspeed_counts_no_micro_batches():
    assert settings()["gradient_accumulation_steps"] == 1


@pytest.mark.parametrize(
    ("options", "dtype", "message"),
    [
        ({"zero": 0}, "bfloat16", "engine.options.zero=0 does not go with bfloat16"),
        ({"zero": 0, "offload_optimizer": True}, "float32", "needs engine.options.zero=1, 2 or 3"),
        ({"zero": 0}, "float32", "zero=0 in float32 cannot leave its GPUs"),
        ({"zero": 1}, "bfloat16", "zero=1 in bfloat16 cannot leave its GPUs"),
    ],
)
def test_unsupported_deepspeed_options_are_refused(options, dtype, message):
    with pytest.raises(ConfigError, match=message):
        check_deepspeed_options(PlacedOptions(**options), dtype=dtype, gpu=True)


def test_separate_learners_may_use_zero_1():
    for gpu, placement in ((True, "separate"), (False, "colocated")):
        check_deepspeed_options(PlacedOptions(zero=1, placement=placement), dtype="bfloat16", gpu=gpu)


def test_automatic_dtype_follows_the_device():
    assert resolve_dtype(PlacedOptions(), gpu=True) == "bfloat16"
    assert resolve_dtype(PlacedOptions(), gpu=False) == "float32"
    assert resolve_dtype(PlacedOptions(dtype="bfloat16"), gpu=False) == "bfloat16"
    with pytest.raises(ConfigError, match="float16"):
        resolve_dtype(PlacedOptions(dtype="float16"), gpu=True)
