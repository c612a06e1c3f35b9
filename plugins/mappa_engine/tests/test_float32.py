"""Float32 means float32: no library of a GPU may round factors to TF32."""

import os

import pytest
import torch

from mappa_engine.cluster.samplers.remote_engine import vllm_environment
from mappa_engine.float32 import FLOAT32_VARIABLES, forbid_tf32


@pytest.fixture(autouse=True)
def allowed(monkeypatch):
    """A process in which something allowed TF32 before."""
    for name in FLOAT32_VARIABLES:
        monkeypatch.setenv(name, "1")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    yield
    torch.set_float32_matmul_precision("highest")


def assert_exact() -> None:
    assert torch.get_float32_matmul_precision() == "highest" and not torch.backends.cudnn.allow_tf32
    assert FLOAT32_VARIABLES.items() <= os.environ.items()


def test_float32_products_are_exact():
    forbid_tf32()
    assert_exact()


async def test_the_local_engine_computes_float32_exactly(qwen3, opened):
    await opened(qwen3)
    assert_exact()


async def test_the_local_engine_leaves_bfloat16_alone(qwen3, opened):
    await opened(qwen3, dtype="bfloat16")
    assert torch.get_float32_matmul_precision() == "high"


def test_samplers_compute_float32_exactly():
    assert FLOAT32_VARIABLES.items() <= vllm_environment("cuda", "float32").items()
    assert not FLOAT32_VARIABLES.keys() & vllm_environment("cuda", "bfloat16").keys()
