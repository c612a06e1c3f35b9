"""Log-probabilities of sampled tokens, with gradients, by one forward pass over a micro-batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from mappa_engine.learning.batching import MicroBatch
from mappa_engine.learning.output_head import OutputHead


class Predictions(NamedTuple):
    """Predictions for the n sampled tokens of a micro-batch, float32; a tuple, so that module hooks see tensors."""

    logprobs: Tensor
    """(n,) nats, at the sampling temperature, of what top_p and top_k left."""
    values: Tensor | None = None
    """(n,), if there is a value head."""
    entropy: Tensor | None = None
    """(n,) nats, of the distribution that each token was drawn from, if requested."""


class LogprobModel(torch.nn.Module):
    """A causal language model with an optional value head, which computes log-probabilities of sampled tokens.

    Every module is called equally often whatever the batch: with weights sharded over ranks each call is a collective.
    """

    def __init__(self, model: Any, value_head: torch.nn.Linear | None = None) -> None:
        super().__init__()
        self.model = model
        self.output_head = OutputHead(model.get_output_embeddings())
        self.value_head = value_head

    def weights(self) -> dict[str, torch.nn.Parameter]:
        """Return all parameters by their names in checkpoints, tied ones once."""
        named: dict[str, torch.nn.Parameter] = dict(self.model.named_parameters())
        if self.value_head is not None:
            named |= {f"value_head.{name}": parameter for name, parameter in self.value_head.named_parameters()}
        return named

    def forward(self, batch: MicroBatch, *, entropy: bool = False) -> Predictions:
        """Compute log-probabilities, values if there is a value head, and entropies if requested.

        Only hidden states that predict a sampled token go through the output head.
        """
        hidden = self._hidden_after_prefix(batch) if batch.prefix else self._hidden(batch)
        values = None
        if self.value_head is not None:
            # The head stays float32 where adapters are cast.
            with torch.autocast(hidden.device.type, enabled=False):
                values = self.value_head(hidden.to(self.value_head.weight.dtype))[:, 0].float()
        logprobs, entropies = self.output_head(hidden, batch.targets, batch.temperature, batch.mask, entropy)
        return Predictions(logprobs, values, entropies)

    def _hidden(self, batch: MicroBatch) -> Tensor:
        """Compute the hidden states (n, d) that predict a sampled token."""
        # Packed sequences are separated by their positions only if there is no mask and no cache.
        states = self.model.base_model(
            input_ids=batch.ids, position_ids=batch.positions, attention_mask=None, use_cache=False
        ).last_hidden_state
        predicting: Tensor = states.flatten(0, 1).index_select(0, batch.predicting)
        return predicting

    def _hidden_after_prefix(self, batch: MicroBatch) -> Tensor:
        """Compute the same with the keys and values of the shared prefix from one row; their gradients are summed over
        all rows that attend to them."""
        width = batch.ids.shape[1]
        cache = DynamicCache(config=self.model.config)
        self.model.base_model(input_ids=batch.ids[:1, : batch.prefix], past_key_values=cache, use_cache=True)
        cache.batch_repeat_interleave(len(batch.ids))
        states = self.model.base_model(
            input_ids=batch.ids[:, batch.prefix :], past_key_values=cache, use_cache=True
        ).last_hidden_state
        # Every row up to the predicting one lacks its prefix.
        index = batch.predicting - batch.prefix * (batch.predicting // width + 1)
        predicting: Tensor = states.flatten(0, 1).index_select(0, index)
        return predicting
