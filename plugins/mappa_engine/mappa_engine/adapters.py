"""LoRA adapters: several on one base model, and their folders on disk.

Tensors are named as peft names them in an adapter's folder, without the adapter's own name:
`base_model.model.NAME_OF_THE_LAYER.lora_A.weight`, and `lora_B` likewise.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mappa_core.engine import Lora
from mappa_engine.errors import ModelError

PEFT_PREFIX = "base_model.model."
"""Prefix that peft puts before the names of a model's layers."""
ADAPTER_FILE = "adapter_model.safetensors"
LORA_MATRICES = ("lora_A", "lora_B")
"""The two matrices whose product is the adapter of a layer."""
_BASE = ".base_layer."
_REFERENCE = " (reference)"


class Adapters:
    """The adapters of one causal language model; at most one is active at a time.

    Adapters are float32 whatever dtype the base computes in, so they are their own master weights. The base is frozen.
    Not thread-safe: one thread may use the model at a time. `autocast`: adapters of a bfloat16 base compute in
    bfloat16, too, rounded anew in every pass; peft would compute them in float32, which takes longer than the base.
    """

    def __init__(self, model: Any, *, model_name: str, autocast: bool = False) -> None:
        self._model = model
        self._model_name = model_name
        self._keys: dict[str, str] = {}  # peft has no dots in the names of adapters
        self._frozen: set[str] = set()
        self._layers: dict[str, Any] = {}
        self._linear = _linear_layers(model)
        self._active: str | None = None
        self._autocast = autocast and model.dtype == torch.bfloat16

    def add(self, name: str, lora: Lora, *, seed: int) -> None:
        """Add an adapter `name` to the base, inactive. Its initial weights depend on `seed` and `name` alone.

        Raises ModelError where the model has no layer of a name in `lora.targets`.
        """
        from peft import inject_adapter_in_model
        from peft.tuners.lora import LoraLayer

        config = lora_config(lora, self._targets(lora), base=self._model_name)
        key = self._keys[name] = f"adapter{len(self._keys)}"
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # The warning is about a second adapter on one model, which is intended here.
            warnings.filterwarnings("ignore", message="Already found a `peft_config` attribute")
            inject_adapter_in_model(config, self._model, key)
        self._layers = {path: module for path, module in self._model.named_modules() if isinstance(module, LoraLayer)}
        for layer in self._layers.values():
            layer.cast_input_dtype_enabled = not self._autocast
        self._initialise(key, _generator(seed, name))
        self._model.requires_grad_(False)
        for trained in (known for known in self._keys if known not in self._frozen):
            for parameter in self.parameters(trained).values():
                parameter.requires_grad_(True)
        self._switch(None)

    @torch.no_grad()
    def add_reference(self, name: str, lora: Lora, weights: Mapping[str, Tensor]) -> str:
        """Add a frozen adapter with these `weights`, by peft's names: the reference of the adapter `name`. Returns the
        name that it has here."""
        reference = f"{name}{_REFERENCE}"
        self._frozen.add(reference)
        self.add(reference, lora, seed=0)
        for key, parameter in self.parameters(reference).items():
            parameter.copy_(weights[key])
        return reference

    @contextmanager
    def active(self, name: str | None) -> Iterator[None]:
        """Activate the adapter `name` inside the context; None: no adapter, so the model is the base. Backward passes
        that recompute activations must run inside, too."""
        before = self._active
        self._switch(name)
        # Without its cache, which would outlive an optimiser's step.
        cast = torch.autocast(
            self._model.device.type,
            torch.bfloat16,
            enabled=self._autocast and name is not None,
            cache_enabled=False,
        )
        try:
            with cast:
                yield
        finally:
            self._switch(before)

    def parameters(self, name: str) -> dict[str, nn.Parameter]:
        """Return the weights of an adapter by peft's names, in the order of the layers."""
        key = self._keys[name]
        return {
            f"{PEFT_PREFIX}{path}.{side}.weight": getattr(layer, side)[key].weight
            for path, layer in self._layers.items()
            for side in LORA_MATRICES
            if key in getattr(layer, side)
        }

    def base(self) -> dict[str, Tensor]:
        """Return the weights of the base by its own names, tied ones once."""
        return base_weights(self._model.named_parameters())

    def merge(self, name: str) -> dict[str, Tensor]:
        """Return the weights of the base with an adapter merged into them, by the base's own names."""
        key = self._keys[name]
        added = {
            f"{path}.weight": layer.get_delta_weight(key) for path, layer in self._layers.items() if key in layer.lora_A
        }
        return {
            path: weight + added[path].to(weight.dtype) if path in added else weight
            for path, weight in self.base().items()
        }

    def _targets(self, lora: Lora) -> tuple[str, ...]:
        known = sorted({path.rpartition(".")[2] for path in self._linear})
        unknown = sorted(set(lora.targets or ()) - set(known))
        if unknown:
            raise ModelError(
                f"{self._model_name}: lora.targets names {', '.join(unknown)}, and the model has no such layer that "
                f"can have an adapter; it has {', '.join(known)}"
            )
        return tuple(known) if lora.targets is None else lora.targets

    @torch.no_grad()
    def _initialise(self, key: str, random: torch.Generator) -> None:
        for layer in self._layers.values():
            if key not in layer.lora_A:
                continue
            for side in LORA_MATRICES:
                linear = getattr(layer, side)[key]
                linear.weight.data = linear.weight.data.float()
            down, up = layer.lora_A[key].weight, layer.lora_B[key].weight
            # Drawn on the CPU, so that every device and every rank starts with the same values.
            drawn = torch.empty(down.shape).uniform_(-1.0, 1.0, generator=random)
            down.copy_(drawn / down.shape[1] ** 0.5)
            up.zero_()

    def _switch(self, name: str | None) -> None:
        # peft's own switch also toggles requires_grad of each parameter: too slow between two tokens, and unsafe
        # where ranks share parameters.
        key = None if name is None else self._keys[name]
        for layer in self._layers.values():
            layer._disable_adapters = key is None
            if key is not None:
                layer._active_adapter = [key]
        self._active = name


def lora_config(lora: Lora, targets: tuple[str, ...], *, base: str) -> Any:
    """Build peft's configuration of an adapter."""
    from peft import LoraConfig

    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        target_modules=list(targets),
        use_rslora=lora.rslora,
        bias="none",
        task_type="CAUSAL_LM",
        base_model_name_or_path=base,
    )


def adapter_config(lora: Lora, targets: tuple[str, ...], *, base: str) -> dict[str, Any]:
    """Return the adapter_config.json of an adapter, as JSON values."""
    config = lora_config(lora, targets, base=base)
    config.inference_mode = True
    return {name: sorted(value) if isinstance(value, set) else value for name, value in config.to_dict().items()}


def save_adapter(tensors: Mapping[str, Tensor], lora: Lora, folder: Path, *, base: str) -> None:
    """Write an adapter as peft and vLLM load it. `tensors` are by peft's names; `base` names its model."""
    targets = {name.rpartition(".lora_")[0].rpartition(".")[2] for name in tensors}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, folder / ADAPTER_FILE)
    config = lora_config(lora, tuple(sorted(targets)), base=base)
    config.inference_mode = True
    config.save_pretrained(str(folder))


def base_weights(named: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return a model's tensors by its own names, without those of adapters."""
    return {
        name.replace(_BASE, "."): tensor
        for name, tensor in named
        if not any(f".{side}." in name for side in LORA_MATRICES)
    }


def _linear_layers(model: Any) -> tuple[str, ...]:
    """Return the paths of all linear layers except the output head."""
    head = model.get_output_embeddings()
    return tuple(path for path, module in model.named_modules() if isinstance(module, nn.Linear) and module is not head)


def _generator(seed: int, name: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
