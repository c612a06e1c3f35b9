"""Models that our way of computing log-probabilities would get wrong, refused before anything is learned from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mappa_core.engine.learning.layout import Layout
from mappa_core.errors import ModelError

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.5}
"""Nats by which two ways to the same log-probability may differ; a wrong way is off by far more."""


@torch.no_grad()
def check_model(model: Any, layout: Layout, *, where: str) -> None:
    """Raise ModelError where `learning.forward` does not give what the model's own forward gives.

    It leaves out the model's own last part, which may scale or cap logits after the head. Where sequences lie end to
    end, it relies on the model's attention to keep them apart; one that does not mixes them without an error.
    """
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    ids = (torch.arange(12, device=model.device).view(2, 6) * 7919 + 13) % vocabulary
    expected = model(input_ids=ids, use_cache=False).logits
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    check_hidden(model, hidden, expected, where=where, fault="changes logits after its output head")
    if layout.kind == "packed":
        positions = torch.arange(6, device=model.device).repeat(2)[None]
        hidden = model.base_model(
            input_ids=ids.view(1, -1), position_ids=positions, attention_mask=None, use_cache=False
        ).last_hidden_state.view(2, 6, -1)
        check_hidden(model, hidden, expected, where=where, fault="does not keep sequences apart that lie end to end")


def check_hidden(model: Any, hidden: Tensor, expected: Tensor, *, where: str, fault: str) -> None:
    """Raise ModelError where the head makes other log-probabilities of hidden states (…, d) than `expected` (…, V),
    which are logits."""
    found = torch.log_softmax(model.get_output_embeddings()(hidden).float(), dim=-1)
    gap = (found - torch.log_softmax(expected.float(), dim=-1)).abs().max().item()
    if not gap <= TOLERANCE[model.dtype]:
        kind = model.config.model_type
        raise ModelError(f"{where}: this {kind} model {fault} ({gap:.2g} nats); no engine of Mappa can use it so")
