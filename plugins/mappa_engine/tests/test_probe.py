"""The limit of a probe: it lets bfloat16 pass, and no tensor that is missing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from mappa_engine.cluster.errors import SyncError
from mappa_engine.cluster.sync import probe

SPREAD = 0.3
LIMIT = probe.MAX_MEAN_NATS["bfloat16"]


def config() -> Qwen3Config:
    return Qwen3Config(
        vocab_size=2048, hidden_size=64, intermediate_size=192, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=128, tie_word_embeddings=True, initializer_range=SPREAD,
    )  # fmt: skip


@torch.inference_mode()
def logprobs(model, sequences) -> list[np.ndarray]:
    found = []
    for sequence in sequences:
        ids = torch.tensor(sequence.astype(np.int64))
        scores = model(input_ids=ids[None]).logits[0, :-1].float().log_softmax(-1)
        found.append(scores.gather(1, ids[1:, None])[:, 0].numpy())
    return found


@pytest.fixture(scope="module")
def weights():
    torch.manual_seed(0)
    return Qwen3ForCausalLM(config()).state_dict()


@pytest.fixture(scope="module")
def sequences():
    """Tokens that nobody sampled: what the first probe has, and where rounding shows most."""
    return probe.sequences_from_seed(0, vocabulary=2048, window=256)


def model_of(weights, dtype=torch.float32):
    model = Qwen3ForCausalLM(config()).to(dtype).eval()
    model.load_state_dict(weights)
    return model


@pytest.fixture(scope="module")
def exact(weights, sequences):
    return logprobs(model_of(weights), sequences)


def test_rounding_of_bfloat16_passes(weights, sequences, exact):
    rounded = probe.compare_logprobs(exact, logprobs(model_of(weights, torch.bfloat16), sequences))
    assert rounded.mean_diff > 0.03, "a limit of 0.03 nats ended sound runs"
    probe.check_probe(rounded, LIMIT, policy="solver", version=0, engine="e0")


def test_every_missing_matrix_is_found(weights, sequences, exact):
    matrices = [name for name, weight in weights.items() if weight.ndim > 1 and name != "lm_head.weight"]
    assert len(matrices) == 1 + 4 * 7
    for name in matrices:
        kept = torch.nn.init.normal_(torch.empty_like(weights[name]), std=SPREAD)
        without = model_of({**weights, name: kept, **({"lm_head.weight": kept} if "embed" in name else {})})
        found = probe.compare_logprobs(exact, logprobs(without, sequences))
        with pytest.raises(SyncError, match="nats in the mean"):
            probe.check_probe(found, LIMIT, policy="solver", version=0, engine="e0")
