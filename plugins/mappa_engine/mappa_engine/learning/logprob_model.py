"""Log-probabilities of sampled tokens, with gradients, by one forward pass over a micro-batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from mappa_engine.learning.batching import MicroBatch
from mappa_engine.memory_estimate import MAX_LOGITS


class Predictions(NamedTuple):
    """Predictions for the n sampled tokens of a micro-batch, float32; a tuple, so that module hooks see tensors."""

    logprobs: Tensor
    """(n,) nats, at the sampling temperature."""
    values: Tensor | None = None
    """(n,), if there is a value head."""
    entropy: Tensor | None = None
    """(n,) nats, of the full distribution of each token before top-p and top-k, if requested."""


class LogprobModel(torch.nn.Module):
    """A causal language model with an optional value head, which computes log-probabilities of sampled tokens.

    Sizes come from the config: with weights sharded over ranks, a module's tensors are empty between passes.
    """

    def __init__(self, model: Any, value_head: torch.nn.Linear | None = None) -> None:
        super().__init__()
        self.model = model
        self.value_head = value_head

    def weights(self) -> dict[str, torch.nn.Parameter]:
        """Return all parameters by their names in checkpoints, tied ones once."""
        named: dict[str, torch.nn.Parameter] = dict(self.model.named_parameters())
        if self.value_head is not None:
            named |= {f"value_head.{name}": one for name, one in self.value_head.named_parameters()}
        return named

    def forward(self, batch: MicroBatch, *, entropy: bool = False) -> Predictions:
        """Compute log-probabilities, values if there is a value head, and entropies if requested.

        Only hidden states that predict a sampled token go through the output head.
        """
        # Packed sequences are separated by their positions only if there is no mask and no cache.
        hidden = self.model.base_model(
            input_ids=batch.ids, position_ids=batch.positions, attention_mask=None, use_cache=False
        ).last_hidden_state
        hidden = hidden.flatten(0, 1).index_select(0, batch.predicting)
        values = None
        if self.value_head is not None:
            values = self.value_head(hidden.to(self.value_head.weight.dtype))[:, 0].float()
        logprobs, entropies = self._head(hidden, batch, entropy)
        return Predictions(logprobs, values, entropies)

    def _head(self, hidden: Tensor, batch: MicroBatch, entropy: bool) -> tuple[Tensor, Tensor | None]:
        head = self.model.get_output_embeddings()
        size = max(1, MAX_LOGITS // self.model.config.get_text_config(decoder=True).vocab_size)
        if len(hidden) <= size:
            return _head_pass(head, hidden, batch.targets, batch.temperature, entropy)
        chunks = []
        for start in range(0, len(hidden), size):
            part = slice(start, start + size)
            given = (hidden[part], batch.targets[part], None if batch.temperature is None else batch.temperature[part])
            # The logits of a chunk are recomputed in the backward pass to save memory.
            chunks.append(checkpoint(_head_pass, head, *given, entropy, use_reentrant=False))
        logprobs, entropies = zip(*chunks, strict=True)
        return torch.cat(logprobs), torch.cat(entropies) if entropy else None


def _head_pass(
    head: torch.nn.Module, hidden: Tensor, targets: Tensor, temperature: Tensor | None, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Compute log-probabilities of the targets and, if requested, H = logsumexp(z) - sum(softmax(z) z) of logits z."""
    logits = head(hidden).float()
    if temperature is not None:
        logits = logits / temperature
    logprobs = -cross_entropy(logits, targets, reduction="none")
    if not entropy:
        return logprobs, None
    return logprobs, torch.logsumexp(logits, -1) - (torch.softmax(logits, -1) * logits).sum(-1)
