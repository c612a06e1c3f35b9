"""Log-probabilities of sampled tokens, with gradients, by one forward pass over a micro-batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from mappa_core.engine.learning.layout import Batch

LOGITS_AT_ONCE = 1 << 25
"""Logits that exist at a time: 128 MiB in float32. More tokens go through the head in chunks."""


class Scorer(torch.nn.Module):
    """A causal language model and, where it has one, its value head: what is asked of a learner's weights.

    Sizes come from the config: where weights are sharded over ranks, the tensors of a module are empty between passes.
    """

    def __init__(self, model: Any, value_head: torch.nn.Linear | None = None) -> None:
        super().__init__()
        self.model = model
        self.value_head = value_head

    def weights(self) -> dict[str, torch.nn.Parameter]:
        """All parameters by the names that checkpoints give them, tied ones once."""
        named: dict[str, torch.nn.Parameter] = dict(self.model.named_parameters())
        if self.value_head is not None:
            named |= {f"value_head.{name}": one for name, one in self.value_head.named_parameters()}
        return named

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities (n,) in nats of the sampled tokens at their temperature, and values (n,), both float32.

        Only hidden states that predict a sampled token go through the head.
        """
        # Sequences that lie end to end are told apart by their positions only without a mask and without a cache.
        hidden = self.model.base_model(
            input_ids=batch.ids, position_ids=batch.positions, attention_mask=None, use_cache=False
        ).last_hidden_state
        hidden = hidden.flatten(0, 1).index_select(0, batch.predicting)
        values = None
        if self.value_head is not None:
            values = self.value_head(hidden.to(self.value_head.weight.dtype))[:, 0].float()
        return self._logprobs(hidden, batch), values

    def _logprobs(self, hidden: Tensor, batch: Batch) -> Tensor:
        head = self.model.get_output_embeddings()
        size = max(1, LOGITS_AT_ONCE // self.model.config.get_text_config(decoder=True).vocab_size)
        if len(hidden) <= size:
            return _head_logprobs(head, hidden, batch.targets, batch.temperature)
        chunks = []
        for start in range(0, len(hidden), size):
            part = slice(start, start + size)
            temperature = None if batch.temperature is None else batch.temperature[part]
            # The logits of a chunk are computed again in the backward pass rather than kept.
            chunks.append(
                checkpoint(_head_logprobs, head, hidden[part], batch.targets[part], temperature, use_reentrant=False)
            )
        return torch.cat(chunks)


def _head_logprobs(head: torch.nn.Module, hidden: Tensor, targets: Tensor, temperature: Tensor | None) -> Tensor:
    logits = head(hidden).float()
    if temperature is not None:
        logits = logits / temperature
    return -cross_entropy(logits, targets, reduction="none")
