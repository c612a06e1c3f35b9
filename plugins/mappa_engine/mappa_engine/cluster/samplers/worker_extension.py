"""What this engine adds to vLLM's workers, whichever runner they have and whichever process they are in."""

from __future__ import annotations

from typing import Any

from torch import nn
from vllm.model_executor.model_loader.reload import layerwise


class WorkerExtension:
    """Methods that vLLM mixes into its worker class; `VllmEngine` calls them by name in all workers."""

    model_runner: Any
    weight_transfer_engine: Any
    _weight_update_active: bool

    def discard_weight_update(self) -> None:
        """Discard what an update that broke off left: vLLM would refuse to start the next one, or count and load the
        old tensors with the new ones. Does nothing where none broke off."""
        discard_partial_reload(self.model_runner.get_model())
        if getattr(self, "weight_transfer_engine", None) is not None:
            self._weight_update_active = False
            self.weight_transfer_engine.reset_weight_update_target()


def discard_partial_reload(model: nn.Module) -> None:
    """Put the tensors back that a load which broke off had taken out of a model's layers.

    It brings back no weights: layers that were complete have the new ones (and vLLM 0.33 writes most layers in place,
    as they arrive), so the engine must not compute until a load is complete.
    """
    for layer in model.modules():
        loading = layerwise.get_layerwise_info(layer)
        if loading.kernel_tensors is not None:
            layerwise._place_kernel_tensors(layer, loading)
            loading.reset()
    layerwise.LOADING_LAYERS.clear()
