"""Checks that reject models whose log-probabilities `LogprobModel` would compute wrongly."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mappa_engine.errors import ModelError
from mappa_engine.learning.batching import BatchLayout
from mappa_engine.learning.output_head import OutputHead

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 2.0}
"""Largest rounding difference between two computations of a log-probability, in nats; real errors are far larger. A
small trained model was seen to round by 1.2 in bfloat16."""


@torch.no_grad()
def check_model(model: Any, layout: BatchLayout, *, model_name: str) -> None:
    """Raise ModelError if `LogprobModel` and the model's own forward pass disagree.

    `LogprobModel` skips whatever the model does after its output head, such as scaling or capping logits. With
    packed sequences it relies on the model's attention to keep them apart; otherwise they mix without an error.
    """
    config = model.config.get_text_config(decoder=True)
    if config.tie_word_embeddings and model.get_output_embeddings().weight is not model.get_input_embeddings().weight:
        raise ModelError(
            f"{model_name}: its config.json ties the output head to the embedding, and its files hold two that differ. "
            "Set tie_word_embeddings to false there if the head is its own; otherwise remove lm_head.weight."
        )
    vocabulary = config.vocab_size
    # Spread over the vocabulary by a prime, so that they are different tokens in two different rows.
    ids = (torch.arange(12, device=model.device).view(2, 6) * 7919 + 13) % vocabulary
    expected = model(input_ids=ids, use_cache=False).logits
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    check_hidden(model, hidden, expected, model_name=model_name, fault="changes logits after its output head")
    if layout.kind == "packed":
        positions = torch.arange(6, device=model.device).repeat(2)[None]
        hidden = model.base_model(
            input_ids=ids.view(1, -1), position_ids=positions, attention_mask=None, use_cache=False
        ).last_hidden_state.view(2, 6, -1)
        check_hidden(
            model, hidden, expected, model_name=model_name, fault="does not keep sequences apart that lie end to end"
        )


def check_hidden(model: Any, hidden: Tensor, expected: Tensor, *, model_name: str, fault: str) -> None:
    """Raise ModelError if the head maps hidden states (…, d) to other log-probabilities than the logits `expected`
    (…, V)."""
    found = torch.log_softmax(OutputHead(model.get_output_embeddings()).logits(hidden), dim=-1)
    gap = (found - torch.log_softmax(expected.float(), dim=-1)).abs().max().item()
    if not gap <= TOLERANCE[model.dtype]:
        kind = model.config.model_type
        raise ModelError(f"{model_name}: this {kind} model {fault} ({gap:.2g} nats); no engine of Mappa can use it so")
