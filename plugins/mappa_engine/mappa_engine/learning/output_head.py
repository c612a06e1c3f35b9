"""The output head of a language model, as log-probabilities and entropies of sampled tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

from mappa_engine.learning.batching import SamplingMask
from mappa_engine.memory_estimate import head_rows


class OutputHead(torch.nn.Module):
    """Computes log-probabilities of sampled tokens from hidden states, some rows of logits at a time.

    It is one module call whatever the number of tokens: sharded learners gather the weights of a module at every call,
    all ranks together, so a call per chunk would leave a rank of many tokens waiting for one of few. It shares the
    parameters of the model's own head, so that they are gathered for this call.
    """

    def __init__(self, head: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = head.weight, head.bias
        # Between passes a sharded weight is empty.
        self._vocabulary = head.weight.shape[0]

    def forward(
        self, hidden: Tensor, targets: Tensor, temperature: Tensor | None, mask: SamplingMask | None, entropy: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return log-probabilities (n,) in nats of the `targets` (n,) after hidden states (n, d) and, if requested, the
        entropies (n,) of their distributions. `temperature` is (n, 1); None: all 1. `mask` None: nothing is cut."""
        weight, bias, size = self.weight, self.bias, head_rows(self._vocabulary)
        if len(hidden) <= size:
            return _head_pass(weight, bias, hidden, targets, temperature, mask, entropy)
        chunks = []
        for start in range(0, len(hidden), size):
            part = slice(start, start + size)
            given = (
                hidden[part],
                targets[part],
                None if temperature is None else temperature[part],
                None if mask is None else mask.select(start, min(start + size, len(hidden))),
            )
            # The logits of a chunk are recomputed in the backward pass to save memory.
            chunks.append(checkpoint(_head_pass, weight, bias, *given, entropy, use_reentrant=False))
        logprobs, entropies = zip(*chunks, strict=True)
        return torch.cat(logprobs), torch.cat(entropies) if entropy else None

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the float32 logits (…, V) of hidden states (…, d)."""
        return linear(hidden, self.weight, self.bias).float()


def _head_pass(
    weight: Tensor,
    bias: Tensor | None,
    hidden: Tensor,
    targets: Tensor,
    temperature: Tensor | None,
    mask: SamplingMask | None,
    entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute log-probabilities of the targets and, if requested, H = logsumexp(z) - sum(softmax(z) z) of logits z."""
    logits = linear(hidden, weight, bias).float()
    if temperature is not None:
        logits = logits / temperature
    if mask is not None:
        logits = mask.cut(logits)
    logprobs = -cross_entropy(logits, targets, reduction="none")
    if not entropy:
        return logprobs, None
    return logprobs, torch.logsumexp(logits, -1) - (torch.softmax(logits, -1) * logits).sum(-1)
