"""What models and their training take of memory, in bytes: arithmetic on shapes, for both engines.

Weights, gradients and the optimiser are counted exactly. Activations, buffers and what CUDA takes by itself are
estimates that no GPU has checked yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from mappa_core.engine.shapes import ModelShape

Part = Literal[
    "weights", "gradients", "optimiser", "reference", "activations", "buffers", "kv cache", "workspace", "context"
]
"""What memory is for. `optimiser` holds AdamW's moments and, of a model in bfloat16, its float32 masters."""
Parts = dict[Part, int]
Kept = Literal["all", "inputs", "nothing"]

WIDTH: Mapping[str, int] = {"float32": 4, "bfloat16": 2}
"""Bytes of a number."""
FLOAT32 = 4
MOMENTS = 2 * FLOAT32
"""AdamW's two means of a number."""
LOGITS_AT_ONCE = 1 << 25
"""Logits that exist at a time; more tokens go through the head in chunks."""
_LOGIT_COPIES = 3
"""Logits, their softmax and their gradient."""


def full(shape: ModelShape, dtype: str, *, zero: int = 0, ranks: int = 1) -> Parts:
    """A model that is trained whole, on one of `ranks` ranks that share it by DeepSpeed's stage `zero`.

    Gradients are added up in float32. A model in float32 is its own master; DeepSpeed's sharded stages hold a copy of
    each rank's share all the same.
    """
    number, width = shape.parameters, WIDTH[dtype]
    masters = FLOAT32 if width < FLOAT32 or zero >= 1 else 0
    own_gradients = width if width < FLOAT32 and zero == 1 else 0
    return {
        "weights": _shared(width * number, ranks if zero == 3 else 1),
        "gradients": own_gradients * number + _shared(FLOAT32 * number, ranks if zero >= 2 else 1),
        "optimiser": _shared((MOMENTS + masters) * number, ranks if zero >= 1 else 1),
    }


def adapter(parameters: int) -> Parts:
    """An adapter that is trained, on every rank: it is in float32 whatever its base is in."""
    return {
        "weights": FLOAT32 * parameters,
        "gradients": FLOAT32 * parameters,
        "optimiser": MOMENTS * parameters,
    }


def weights(shape: ModelShape, dtype: str, *, pieces: int = 1) -> int:
    """A model that is not trained, one of `pieces` of it."""
    return _shared(WIDTH[dtype] * shape.parameters, pieces)


def kv_cache(shape: ModelShape, dtype: str, tokens: int) -> int:
    """Keys and values of so many tokens."""
    return WIDTH[dtype] * shape.kv_per_token * tokens


def activations(shape: ModelShape, dtype: str, tokens: int, *, kept: Kept = "all", mask: bool = False) -> int:
    """What a pass over `tokens` holds beside weights: what its backward pass needs, and the logits of a chunk.

    `kept`: what stays of every layer, its inputs alone where the rest is computed again, nothing where there is no
    backward pass. With `mask` attention makes a mask of tokens by tokens.
    """
    width = WIDTH[dtype]
    attention = 3 * (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    layer = tokens * (10 * shape.hidden + attention + 4 * shape.intermediate) * width
    inputs = tokens * shape.hidden * width
    stays = {"all": shape.layers * layer, "inputs": shape.layers * inputs + layer, "nothing": layer}[kept]
    logits = _LOGIT_COPIES * FLOAT32 * min(tokens * shape.vocabulary, max(LOGITS_AT_ONCE, shape.vocabulary))
    return stays + logits + (tokens * tokens * width if mask else 0)


def total(parts: Mapping[Part, int]) -> int:
    """All parts together."""
    return sum(parts.values())


def added(*several: Mapping[Part, int]) -> Parts:
    """Parts of the same name together."""
    sums: Parts = {}
    for parts in several:
        for name, size in parts.items():
            sums[name] = sums[name] + size if name in sums else size
    return sums


def gigabytes(size: float) -> str:
    """Bytes in GB (10^9), or MB where that says more."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _shared(size: int, ranks: int) -> int:
    return -(-size // ranks)
