"""The memory arithmetic: sums by hand, and what autograd, as an independent count, saves for a backward pass."""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from mappa_core.engine import Lora, Machine, PolicySpec, TrainSection
from mappa_engine import memory_estimate
from mappa_engine.adapters import Adapters
from mappa_engine.cluster.placement import ModelShape, Resources, find_placement, read_shape
from mappa_engine.cluster.placement.memory import MemoryInputs, _step_buffers
from mappa_engine.learning.activation_checkpointing import enable_activation_checkpointing
from mappa_engine.learning.batching import MicroBatch
from mappa_engine.learning.logprob_model import LogprobModel
from mappa_engine.local.memory import expected_local_memory
from mappa_engine.model_shape import parse_shape
from mappa_engine.options import ClusterOptions, LocalOptions, PlacedOptions

ROOT = Path(__file__).parents[3]
GB = 10**9
TOKENS = 512
SIZES = {
    "vocab_size": 64, "hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": TOKENS, "tie_word_embeddings": True,
}  # fmt: skip
LORA = Lora(rank=1, alpha=1.0)


def build_model(config: type, layers: int, dtype: str) -> torch.nn.Module:
    sizes = config(**SIZES, num_hidden_layers=layers)
    model = AutoModelForCausalLM.from_config(sizes, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    return model.eval()


def shape_of(model: torch.nn.Module) -> ModelShape:
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    return parse_shape("built", model.config.to_dict(), shapes)


def saved_bytes(model: torch.nn.Module, sequences: int) -> int:
    """Bytes of the storages that autograd saves in a forward pass over a packed row, without those of weights."""
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    storages: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in weights:
            storages[place] = tensor  # held, so that no other tensor gets its place
        return tensor

    ids = torch.arange(TOKENS)[None] % SIZES["vocab_size"]
    positions = torch.cat([torch.arange(TOKENS // sequences)] * sequences)[None]
    row = MicroBatch(
        ids=ids, positions=positions, predicting=torch.arange(TOKENS - 1), targets=ids[0, 1:], temperature=None,
        source=np.zeros(0, np.int64),
    )  # fmt: skip
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        predictions = LogprobModel(model)(row)
    assert predictions.logprobs.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


@pytest.mark.parametrize("sequences", [1, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config", [Qwen3Config, LlamaConfig])
def test_activations_of_a_layer_are_what_autograd_saves(config, dtype, sequences):
    one, three = (build_model(config, layers, dtype) for layers in (1, 3))
    counted = (saved_bytes(three, sequences) - saved_bytes(one, sequences)) / 2
    planned = memory_estimate.layer_bytes(shape_of(one), dtype, TOKENS, mask=sequences > 1)
    assert counted == pytest.approx(planned, rel=0.02)


@pytest.mark.parametrize("config", [Qwen3Config, LlamaConfig])
def test_activations_with_an_adapter_are_what_autograd_saves(config):
    saved = []
    for layers in (1, 3):
        model = build_model(config, layers, "bfloat16").requires_grad_(False)
        shape = shape_of(model)
        adapters = Adapters(model, model_name="built")
        adapters.add("policy", LORA, seed=0)
        with adapters.active("policy"):
            saved.append(saved_bytes(model, 4))
    planned = memory_estimate.layer_bytes(shape, "bfloat16", TOKENS, mask=True, lora=LORA)
    assert (saved[1] - saved[0]) / 2 == pytest.approx(planned, rel=0.03)


def test_with_gradient_checkpointing_a_layer_saves_its_input():
    saved = []
    for layers in (1, 3):
        model = build_model(Qwen3Config, layers, "bfloat16")
        enable_activation_checkpointing(model)
        saved.append(saved_bytes(model, 4))
    assert (saved[1] - saved[0]) / 2 == TOKENS * SIZES["hidden_size"] * 2


def test_shape_knows_whether_queries_are_normed():
    assert shape_of(build_model(Qwen3Config, 1, "float32")).query_norm
    assert not shape_of(build_model(LlamaConfig, 1, "float32")).query_norm


def test_layer_bytes_by_hand():
    shape = shape_of(build_model(Qwen3Config, 1, "bfloat16"))
    # Per token: two norms of 256 (4 + 2 + 2 bytes); queries (256) and keys (128) normed, 4 + 2; queries, repeated keys
    # and values, and output, 2 each; gate, its SiLU, up and product of 768, 2 each. The mask: 2 per pair of tokens.
    token = 2 * 256 * 8 + 384 * 6 + 4 * 256 * 2 + 4 * 768 * 2
    assert memory_estimate.layer_bytes(shape, "bfloat16", 100, mask=True) == 100 * token + 100 * 100 * 2


def test_logit_bytes_by_hand():
    shape = shape_of(build_model(Qwen3Config, 1, "bfloat16"))
    rows = memory_estimate.head_rows(64)
    assert memory_estimate.logit_bytes(shape, 100, 3) == 3 * 4 * 100 * 64
    assert memory_estimate.logit_bytes(shape, 10 * rows, 2) == 2 * 4 * rows * 64


@pytest.mark.parametrize(
    ("entropy_coef", "copies"),
    [(0.0, memory_estimate.TRAINED_LOGIT_COPIES), (0.01, memory_estimate.ENTROPY_LOGIT_COPIES)],
)
def test_entropy_takes_more_copies_of_logits(entropy_coef, copies):
    assert memory_estimate.trained_logit_copies(TrainSection(entropy_coef=entropy_coef)) == copies


# --- one GPU, term by term --------------------------------------------------------------------------------------------

LAYERS, HIDDEN, INNER, HEADS, VOCABULARY, PARAMETERS = 28, 1024, 3072, 16, 151_936, 507_904_000
"""The shape of Qwen3-0.6B with heads of 64, which a GPU trained (docs/engines.md)."""
TRIED = ModelShape(
    model="tried", parameters=PARAMETERS, layers=LAYERS, hidden=HIDDEN, intermediate=INNER, heads=HEADS, kv_heads=8,
    head_dim=64, vocabulary=VOCABULARY, window=40_960, tied=True, largest=VOCABULARY * HIDDEN, query_norm=True,
    linears=(("q_proj", 2048),),
)  # fmt: skip
H200 = Resources(nodes=(Machine(host="n", cpus=16, gpus=1, gpu_bytes=141 * GB),))
OPTIONS = ClusterOptions(max_model_len=1024, kv_cache_mb=1024)


def tried_placement():
    policies = [PolicySpec(name="writer", model="tried")]
    return find_placement(policies, {"tried": TRIED}, H200, OPTIONS, train=TrainSection(micro_tokens=16_384))


def test_memory_of_a_learner_on_a_gpu_by_hand():
    learner, _ = tried_placement().loads_on(0)
    tokens = 4096
    token = 2 * HIDDEN * 8 + (HEADS + 8) * 64 * 6 + 4 * HEADS * 64 * 2 + 4 * INNER * 2
    layer = tokens * token + tokens * tokens * 2
    logits = 3 * 4 * 1024 * VOCABULARY
    parts = {
        "weights": 2 * PARAMETERS,
        "gradients": 4 * PARAMETERS,
        "optimiser": 12 * PARAMETERS,
        "activations": LAYERS * layer + tokens * tokens + logits,
        # Two buckets of 50 M gradients, and twice the gradient of the head.
        "buffers": 2 * (2 * 50_000_000 + 2 * VOCABULARY * HIDDEN),
        "context": 750_000_000,
    }
    parts["allocator"] = int(0.3 * (parts["activations"] + parts["buffers"] + parts["gradients"]))
    assert learner.by_phase["learning"] == parts


@pytest.mark.parametrize(
    ("zero", "dtype", "numbers"),
    [
        # A bucket of 50 M gradients in bfloat16, and the largest tensor in float64.
        (2, "bfloat16", 2 * 50_000_000 + 8 * VOCABULARY * HIDDEN),
        # All gradients once more in float32, and the largest one twice.
        (2, "float32", 4 * 50_000_000 + 4 * PARAMETERS + 2 * 4 * VOCABULARY * HIDDEN),
        (3, "bfloat16", 2 * 50_000_000 + 4 * PARAMETERS),
        # 500 M gradients are summed over the ranks at a time; here the largest tensor in float64 is more.
        (1, "bfloat16", 8 * VOCABULARY * HIDDEN),
    ],
)
def test_buffers_of_a_step_by_hand(zero, dtype, numbers):
    inputs = MemoryInputs(
        policies={}, shapes={}, device="gpu", train=TrainSection(),
        options=PlacedOptions(zero=zero, dtype=dtype, placement="separate"),
    )  # fmt: skip
    assert _step_buffers(TRIED, 1, inputs) == numbers


def test_memory_of_a_sampler_on_a_gpu_by_hand():
    _, sampler = tried_placement().loads_on(0)
    token = 2 * HIDDEN * 8 + (HEADS + 8) * 64 * 6 + 2 * (HEADS + 8) * 64 * 2 + 4 * INNER * 2
    parts = {
        "weights": 2 * PARAMETERS,
        "kv cache": 1024 << 20,
        # One layer of 2,048 tokens; logits of 256 requests, with two copies in float32.
        "activations": 2048 * token + 256 * VOCABULARY * (2 + 4 + 4),
        "context": 750_000_000,
        "graphs": LAYERS * 40_000_000,
        "workspace": 256 * VOCABULARY * 4,
    }
    assert sampler.by_phase["sampling"] == parts
    assert sampler.by_phase["learning"] == {name: parts[name] for name in ("context", "graphs", "workspace")}


def measured_plans():
    """Two at once took 28.5 GB of an H200: the shape above, and adapters on the tiny model of MathChat."""
    tiny = "package:mappa_engine/models/tiny"
    lora = Lora(rank=8, alpha=16.0)
    team = [PolicySpec(name=name, model=tiny, kind="lora", lora=lora) for name in ("solver", "coder", "verifier")]
    options, train = ClusterOptions(kv_cache_mb=1024), TrainSection(micro_tokens=2048)
    return tried_placement(), find_placement(team, {tiny: read_shape(tiny)}, H200, options, train=train)


def test_plans_of_the_measured_trainings_are_a_near_upper_bound():
    planned = sum(placement.peak(0)[0] for placement in measured_plans())
    assert 28.5 * GB <= planned <= 1.1 * 28.5 * GB


def test_engines_page_has_the_plans_of_the_measured_trainings():
    planned = sum(placement.peak(0)[0] for placement in measured_plans())
    learning = [load.by_phase["learning"] for placement in measured_plans() for load in placement.loads_on(0)]
    explained = planned - sum(parts.get("allocator", 0) for parts in learning)
    page = " ".join((ROOT / "docs" / "engines.md").read_text().split())
    assert f"Their plans add up to {planned / GB:.1f} GB; all terms but the last to {explained / GB:.1f}." in page


# --- the process that computes ----------------------------------------------------------------------------------------


def status_bytes(name: str) -> int:
    line = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return 1024 * int(line[1])


def forget_peak() -> None:
    """Give back what the C library keeps, and begin to count the peak from here."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="this kernel does not count peaks anew")
def test_passes_of_an_update_take_what_the_local_engine_expects():
    config = LlamaConfig(**{**SIZES, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()
    rows, length = 8, 200
    ids = torch.arange(rows * length).view(rows, length) % SIZES["vocab_size"]
    predicting = torch.arange(rows * length).view(rows, length)[:, 100:-1].flatten()
    batch = MicroBatch(
        ids=ids, positions=None, predicting=predicting, targets=ids.flatten()[predicting + 1], temperature=None,
        source=np.zeros(0, np.int64),
    )  # fmt: skip
    shape = shape_of(model)
    forget_peak()
    before = status_bytes("VmRSS")
    for _ in range(2):
        LogprobModel(model)(batch).logprobs.sum().backward()
    measured = status_bytes("VmHWM") - before
    policy = PolicySpec(name="a", model="built", actions=((100, 100),))
    expected = expected_local_memory(
        {}, [policy], {"built": shape}, LocalOptions(), train=TrainSection(prompts=4, samples=2), rows=8, gpu=False
    )
    planned = expected + 4 * shape.parameters  # and the gradients, which are among what is held
    assert measured <= planned <= 1.3 * measured
