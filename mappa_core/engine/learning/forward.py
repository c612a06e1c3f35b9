"""Log-probabilities of sampled tokens, with gradients, by one forward pass over a micro-batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from mappa_core.engine.learning.layout import Batch

LOGITS_AT_ONCE = 1 << 25
"""Logits that exist at a time: 128 MiB in float32. More tokens go through the head in chunks."""


class Predictions(NamedTuple):
    """What is said of the n sampled tokens of a micro-batch, float32; a tuple, so that hooks on modules see tensors."""

    logprobs: Tensor
    """(n,) nats, at the temperature they were sampled with."""
    values: Tensor | None = None
    """(n,), with a value head."""
    entropy: Tensor | None = None
    """(n,) nats, of the whole distribution that each token was drawn from before any cut (top-p, top-k); where asked
    for."""


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

    def forward(self, batch: Batch, *, entropy: bool = False) -> Predictions:
        """Log-probabilities, and values where there is a head for them; entropies where they are asked for.

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
        logprobs, entropies = self._head(hidden, batch, entropy)
        return Predictions(logprobs, values, entropies)

    def _head(self, hidden: Tensor, batch: Batch, entropy: bool) -> tuple[Tensor, Tensor | None]:
        head = self.model.get_output_embeddings()
        size = max(1, LOGITS_AT_ONCE // self.model.config.get_text_config(decoder=True).vocab_size)
        if len(hidden) <= size:
            return _head_pass(head, hidden, batch.targets, batch.temperature, entropy)
        chunks = []
        for start in range(0, len(hidden), size):
            part = slice(start, start + size)
            given = (hidden[part], batch.targets[part], None if batch.temperature is None else batch.temperature[part])
            # The logits of a chunk are computed again in the backward pass rather than kept.
            chunks.append(checkpoint(_head_pass, head, *given, entropy, use_reentrant=False))
        logprobs, entropies = zip(*chunks, strict=True)
        return torch.cat(logprobs), torch.cat(entropies) if entropy else None


def _head_pass(
    head: torch.nn.Module, hidden: Tensor, targets: Tensor, temperature: Tensor | None, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities of the targets and, if asked for, H = logsumexp(z) - sum(softmax(z) z) of the logits z."""
    logits = head(hidden).float()
    if temperature is not None:
        logits = logits / temperature
    logprobs = -cross_entropy(logits, targets, reduction="none")
    if not entropy:
        return logprobs, None
    return logprobs, torch.logsumexp(logits, -1) - (torch.softmax(logits, -1) * logits).sum(-1)
