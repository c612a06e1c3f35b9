"""Float32 on GPUs without TF32, which keeps 10 bits of a factor's mantissa: samplers and learners would then differ by
more than rounding does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType

import torch

FLOAT32_VARIABLES: Mapping[str, str] = MappingProxyType({"NVIDIA_TF32_OVERRIDE": "0", "TRITON_F32_DEFAULT": "ieee"})
"""Environment of a process that computes in float32: NVIDIA's libraries and Triton's kernels leave TF32 alone."""


def forbid_tf32() -> None:
    """Let this process multiply float32 in full precision. Call before the first use of a GPU."""
    os.environ |= FLOAT32_VARIABLES
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
