"""What this engine adds to vLLM's workers, whichever runner they have and whichever process they are in."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vllm.model_executor.model_loader.reload import layerwise


class WorkerExtension:
    """Methods that vLLM mixes into its worker class; `VllmEngine` calls them by name in all workers."""

    model_runner: Any
    weight_transfer_engine: Any
    _weight_update_active: bool

    def keep_untruncated_logprobs(self) -> bool:
        """Let samplers return log-probabilities from before top_k and top_p truncation, as learners compute them;
        returns whether this version of vLLM allows it."""
        return keep_untruncated_logprobs(self.model_runner.sampler)

    def discard_weight_update(self) -> None:
        """Discard what an update that broke off left: vLLM would refuse to start the next one, or count and load the
        old tensors with the new ones. Does nothing where none broke off."""
        discard_partial_reload(self.model_runner.get_model())
        if getattr(self, "weight_transfer_engine", None) is not None:
            self._weight_update_active = False
            self.weight_transfer_engine.reset_weight_update_target()


def keep_untruncated_logprobs(sampler: Any) -> bool:
    """Change a sampler of either of vLLM's model runners: `topk_topp_sampler` is the part of the first one that
    truncates, `_sample_random` the method of the second."""
    if hasattr(sampler, "topk_topp_sampler"):
        sampler.topk_topp_sampler = _UntruncatedLogprobs(sampler.topk_topp_sampler)
        return True
    if hasattr(sampler, "_sample_random"):
        sampler._sample_random = _UntruncatedSampling(sampler._sample_random)
        return True
    return False


class _UntruncatedLogprobs(nn.Module):
    """Samples as the first runner does, and returns log-probabilities from before truncation."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        inner.logprobs_mode = "raw_logprobs"  # its own log-probabilities are not used
        self.inner = inner

    def forward(self, logits: Tensor, generators: Any, k: Any, p: Any) -> tuple[Tensor, Tensor]:
        logprobs = logits.log_softmax(dim=-1, dtype=torch.float32)
        tokens, _ = self.inner(logits, generators, k, p)
        return tokens, logprobs


class _UntruncatedSampling:
    """Samples as the second runner does, and returns the logits from before truncation, of which it computes
    log-probabilities."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __call__(
        self, logits: Tensor, requests: Any, requests_np: Any, positions: Any, k: Any, p: Any, fused: bool
    ) -> tuple[Tensor, Tensor]:
        # vLLM truncates in place.
        own = logits if k is None and p is None else logits.clone()
        tokens, _ = self._inner(own, requests, requests_np, positions, k, p, fused)
        return tokens, logits


def discard_partial_reload(model: nn.Module) -> None:
    """Put the tensors back that a load which broke off had taken out of a model's layers."""
    for layer in model.modules():
        loading = layerwise.get_layerwise_info(layer)
        if loading.can_load():
            layerwise._place_kernel_tensors(layer, loading)
            loading.reset()
    layerwise.LOADING_LAYERS.clear()
