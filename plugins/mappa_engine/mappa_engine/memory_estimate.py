"""Memory of models and their training, in bytes, computed from shapes for both engines.

Weights, gradients and optimiser states are counted. So is what autograd saves for the backward pass: tests compare it
with the tensors that it does save. What CUDA and the libraries take by themselves are estimates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from mappa_core.engine import Lora, PolicySpec, TrainSection
from mappa_engine.model_shape import ModelShape

MemoryPart = Literal[
    "weights",
    "gradients",
    "optimiser",
    "reference",
    "activations",
    "buffers",
    "allocator",
    "kv cache",
    "workspace",
    "graphs",
    "context",
]
"""Purpose of memory. `optimiser` is AdamW's moments and, for a bfloat16 model, its float32 master weights; `allocator`
is what torch on a GPU, or the C library, keeps of freed memory that no tensor of another size fits into; `context` is
what a process takes beside its tensors."""
MemoryParts = dict[MemoryPart, int]
SavedActivations = Literal["all", "inputs", "nothing"]

BYTES_PER_NUMBER: Mapping[str, int] = {"float32": 4, "bfloat16": 2}
"""Bytes per number, by dtype."""
FLOAT32_BYTES = 4
ADAM_MOMENT_BYTES = 2 * FLOAT32_BYTES
"""Bytes of AdamW's two moments per parameter."""
MAX_LOGITS = 1 << 25
"""Logits that are computed at once, in chunks: 128 MiB in float32, or those of `HEAD_ROWS` where these are more."""
HEAD_ROWS = 1024
"""Tokens that go through the head at once, whatever the vocabulary: every chunk reads all of the head's weights."""
SCORED_LOGIT_COPIES = 2
"""Float32 copies of a chunk's logits at once without a backward pass: they and their log-softmax."""
TRAINED_LOGIT_COPIES = 3
"""The same with one: the log-softmax, its gradient and that of the logits."""
ENTROPY_LOGIT_COPIES = 6
"""The same where the loss has the entropy: logits, softmax and log-softmax are kept, and three gradients on top."""


def full_training_memory(shape: ModelShape, dtype: str, *, zero: int = 0, ranks: int = 1) -> MemoryParts:
    """Compute the memory per rank of training all weights of a model, sharded over `ranks` by DeepSpeed's stage `zero`.

    Gradients are accumulated in float32. A float32 model is its own master copy, but DeepSpeed's sharded stages still
    hold a copy of each rank's shard.
    """
    number, width = shape.parameters, BYTES_PER_NUMBER[dtype]
    masters = FLOAT32_BYTES if width < FLOAT32_BYTES or zero >= 1 else 0
    own_gradients = width if width < FLOAT32_BYTES and zero == 1 else 0
    return {
        "weights": _ceil_divide(width * number, ranks if zero == 3 else 1),
        "gradients": own_gradients * number + _ceil_divide(FLOAT32_BYTES * number, ranks if zero >= 2 else 1),
        "optimiser": _ceil_divide((ADAM_MOMENT_BYTES + masters) * number, ranks if zero >= 1 else 1),
    }


def adapter_memory(parameters: int, *, own_reference: bool) -> MemoryParts:
    """Compute the memory per rank of training an adapter, which is float32 whatever the dtype of its base; and of its
    frozen copy, where the reference is not the base itself."""
    trained: MemoryParts = {
        "weights": FLOAT32_BYTES * parameters,
        "gradients": FLOAT32_BYTES * parameters,
        "optimiser": ADAM_MOMENT_BYTES * parameters,
    }
    return {**trained, "reference": FLOAT32_BYTES * parameters} if own_reference else trained


def checkpoint_bytes(policy: PolicySpec, shape: ModelShape, dtype: str, *, computed: str) -> int:
    """Compute the size of a trained policy in a checkpoint: its weights, those of an adapter always in float32, AdamW's
    moments, and a reference of its own, in the dtype that it is `computed` in."""
    adapted = policy.lora is not None
    parameters = shape.parameters if policy.lora is None else shape.adapter(policy.lora)
    weights = FLOAT32_BYTES if adapted else BYTES_PER_NUMBER[dtype]
    reference = 0
    if policy.reference is not None:
        reference = FLOAT32_BYTES if adapted else BYTES_PER_NUMBER[computed]
    return parameters * (weights + ADAM_MOMENT_BYTES + reference)


def weight_bytes(shape: ModelShape, dtype: str, *, pieces: int = 1) -> int:
    """Compute the size of the weights of a frozen model, or of one of its `pieces`."""
    return _ceil_divide(BYTES_PER_NUMBER[dtype] * shape.parameters, pieces)


def needs_reference_module(policy: PolicySpec) -> bool:
    """Whether a policy in training has a reference that shares no weights with its model."""
    return policy.kind == "full" and policy.reference is not None


def reference_bytes(policies: Iterable[PolicySpec], shapes: Mapping[str, ModelShape], dtype: str) -> int:
    """Compute the size of the frozen modules that the policies compare with or, if they are no `full` ones, share: one
    for each model, and for each policy with a reference of its own."""
    kept = {(policy.model, policy.name if needs_reference_module(policy) else None) for policy in policies}
    return sum(weight_bytes(shapes[model], dtype) for model, _ in kept)


def kv_cache_bytes(shape: ModelShape, dtype: str, tokens: int) -> int:
    """Compute the size of the KV cache of so many tokens."""
    return BYTES_PER_NUMBER[dtype] * shape.kv_per_token * tokens


def activation_bytes(
    shape: ModelShape,
    dtype: str,
    tokens: int,
    *,
    saved: SavedActivations = "all",
    mask: bool = False,
    lora: Lora | None = None,
) -> int:
    """Compute the size of the activations of a pass over `tokens`, without logits.

    `saved`: what each layer saves for the backward pass; only its `inputs` with gradient checkpointing, `nothing`
    without a backward pass. With `mask`, attention is given a mask of tokens by tokens. `lora`: the adapter that is
    trained instead of the weights.
    """
    layer = layer_bytes(shape, dtype, tokens, mask=mask, lora=lora)
    inputs = tokens * shape.hidden * BYTES_PER_NUMBER[dtype]
    layers = {"all": shape.layers * layer, "inputs": shape.layers * inputs + layer, "nothing": layer}[saved]
    # The mask is made once, of booleans; what attention makes of it belongs to the layer.
    return layers + (tokens * tokens if mask else 0)


def layer_bytes(shape: ModelShape, dtype: str, tokens: int, *, mask: bool = False, lora: Lora | None = None) -> int:
    """Compute the size of what autograd saves in one layer of a decoder as transformers has it: RMS norms, grouped
    attention by `scaled_dot_product_attention`, a gated MLP."""
    width = BYTES_PER_NUMBER[dtype]
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    normed = queries + keys if shape.query_norm else 0
    # A norm computes in float32, whatever it is given.
    each = FLOAT32_BYTES * (2 * shape.hidden + normed)
    # Queries, output, keys and values. With a mask transformers repeats these for every head of queries.
    each += width * (2 * queries + 2 * (queries if mask else keys))
    # The gate, its SiLU, and what that is multiplied with.
    each += width * 3 * shape.intermediate
    if lora is None:
        # For gradients of weights: what a norm scales, and what every linear layer is given.
        each += width * (4 * shape.hidden + normed + shape.intermediate)
    else:
        inputs = {"o_proj": queries, "down_proj": shape.intermediate}
        adapted = [name for name in dict(shape.linears) if lora.targets is None or name in lora.targets]
        if width < FLOAT32_BYTES:
            # peft casts what a layer is given to float32, once for every adapter on it.
            each += FLOAT32_BYTES * sum(inputs.get(name, shape.hidden) for name in adapted)
        else:
            # Nothing is cast: layers that are given the same tensor share it, and attention's output is counted above.
            given = {"o_proj": "", "down_proj": "product", "gate_proj": "second norm", "up_proj": "second norm"}
            tensors = {given.get(name, "first norm"): inputs.get(name, shape.hidden) for name in adapted}
            tensors.pop("", None)
            each += width * (sum(tensors.values()) + lora.rank * len(adapted))
    # torch makes numbers of the boolean mask in every layer, and keeps them for its backward pass.
    return tokens * each + (tokens * tokens * width if mask else 0)


def logit_bytes(shape: ModelShape, tokens: int, copies: int) -> int:
    """Compute the size of so many float32 copies of the logits of one chunk of a learner's head."""
    return copies * FLOAT32_BYTES * min(tokens, head_rows(shape.vocabulary)) * shape.vocabulary


def trained_logit_copies(train: TrainSection) -> int:
    """Return the float32 copies of logits that an update of this recipe holds at once."""
    return ENTROPY_LOGIT_COPIES if train.entropy_coef > 0.0 else TRAINED_LOGIT_COPIES


def head_rows(vocabulary: int) -> int:
    """Return how many tokens go through an output head of this vocabulary at once."""
    return max(HEAD_ROWS, MAX_LOGITS // vocabulary)


def total_bytes(parts: Mapping[MemoryPart, int]) -> int:
    """Return the sum of all parts."""
    return sum(parts.values())


def add_parts(*several: Mapping[MemoryPart, int]) -> MemoryParts:
    """Add up parts of the same name."""
    sums: MemoryParts = {}
    for parts in several:
        for name, size in parts.items():
            sums[name] = sums[name] + size if name in sums else size
    return sums


def format_bytes(size: float) -> str:
    """Format a size in GB (10^9 bytes), or in MB below 1 GB."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _ceil_divide(size: int, ranks: int) -> int:
    return -(-size // ranks)
