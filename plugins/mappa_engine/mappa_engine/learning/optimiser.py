"""AdamW on float32 master weights, whatever the model's dtype."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from mappa_core.engine import TrainSection

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


class Optimiser:
    """The optimiser of one policy. Float32 parameters are their own master weights; others get a float32 copy."""

    def __init__(self, parameters: Iterable[tuple[str, Tensor]], train: TrainSection) -> None:
        self._parameters = dict(parameters)
        self._masters = {name: _master(parameter) for name, parameter in self._parameters.items()}
        self._grad_clip = train.grad_clip
        self._norm: Tensor | None = None
        self._adam = torch.optim.AdamW(
            list(self._masters.values()),
            lr=train.learning_rate,
            betas=train.betas,
            weight_decay=train.weight_decay,
            fused=True,
        )

    def accumulate(self) -> None:
        """Add the gradients of one backward pass to those of the master weights, in float32."""
        for name, parameter in self._parameters.items():
            master = self._masters[name]
            if master is not parameter and parameter.grad is not None:
                # Added up in bfloat16, a small micro-batch's gradient would vanish beside the sum of the others.
                gradient = parameter.grad.float()
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    def grad_norm(self) -> float:
        """Return the norm of the gradient before clipping."""
        gradients = [master.grad for master in self._masters.values() if master.grad is not None]
        self._norm = torch.nn.utils.get_total_norm(gradients)
        return float(self._norm)

    def step(self, learning_rate: float) -> None:
        """Clip the gradient, update the weights and clear the gradient. Call `grad_norm` before."""
        if self._norm is None:
            raise ValueError("the norm of a gradient is looked at before a step is taken")
        torch.nn.utils.clip_grads_with_norm_(list(self._masters.values()), self._grad_clip, self._norm)
        for group in self._adam.param_groups:
            group["lr"] = learning_rate
        self._adam.step()
        self.zero_grad()
        self._copy_to_parameters()

    def zero_grad(self) -> None:
        """Clear the gradient."""
        self._norm = None
        self._adam.zero_grad(set_to_none=True)
        for parameter in self._parameters.values():
            parameter.grad = None

    def weights(self) -> dict[str, Tensor]:
        """Return the master weights by name."""
        return {name: master.detach() for name, master in self._masters.items()}

    def moments(self) -> dict[str, Tensor]:
        """Return AdamW's state as `moment.parameter`; parameters that were never updated have none."""
        return {
            f"{moment}.{name}": self._adam.state[master][moment]
            for name, master in self._masters.items()
            for moment in _MOMENTS
            if moment in self._adam.state[master]
        }

    @torch.no_grad()
    def restore(self, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        """Restore what `weights` and `moments` returned."""
        self.zero_grad()
        for name, master in self._masters.items():
            master.copy_(weights[name])
            # AdamW keeps the step count in a tensor, which fused kernels need on the parameter's device.
            self._adam.state[master] = {
                moment: moments[f"{moment}.{name}"].to(master.device, copy=True)
                for moment in _MOMENTS
                if f"{moment}.{name}" in moments
            }
        self._copy_to_parameters()

    @torch.no_grad()
    def _copy_to_parameters(self) -> None:
        for name, parameter in self._parameters.items():
            # The copy rounds: masters keep updates that are too small to change a bfloat16 weight.
            if self._masters[name] is not parameter:
                parameter.copy_(self._masters[name])


def _master(parameter: Tensor) -> Tensor:
    if parameter.dtype == torch.float32:
        return parameter
    return parameter.detach().float().clone().requires_grad_()
