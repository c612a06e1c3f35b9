"""A learner whose weights, gradients and optimiser DeepSpeed keeps and shards over the ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.utils import combine_grad_norm_groups
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch import Tensor

from mappa_core.engine.cluster.learners.joining import summed
from mappa_core.engine.cluster.sync.sending import in_sending_order
from mappa_core.engine.learning.forward import Predictions, Scorer
from mappa_core.engine.learning.layout import Batch

_MOMENTS = ("exp_avg", "exp_avg_sq")
_GATHER_BYTES = 256 << 20
"""Weights that every rank holds whole at a time while they are handed on, under ZeRO-3."""


class ZeroLearner:
    """One policy on one rank. Every method but the plain properties is called on all ranks, in the same order."""

    def __init__(self, name: str, scorer: Scorer, settings: Mapping[str, Any]) -> None:
        self.name = name
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.steps = 0
        self._away = False
        self._scorer = scorer
        self._stage: int = settings["zero_optimization"]["stage"]
        self._engine, self._optimiser, _, _ = deepspeed.initialize(
            model=scorer,
            model_parameters=[one for one in scorer.parameters() if one.requires_grad],
            config=dict(settings),
            dist_init_required=False,
        )
        self.device: torch.device = self._engine.device

    def forward(self, batch: Batch, *, entropy: bool = False) -> Predictions:
        """What the weights say of a micro-batch."""
        return Predictions(*self._engine(batch, entropy=entropy))

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add to the gradient of the step, which is the sum over micro-batches and ranks."""
        self._engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed takes the mean over ranks.
        self._engine.backward(loss * self.ranks, scale_wrt_gas=False)

    @torch.no_grad()
    def norm(self) -> float:
        """Of the whole gradient before it is clipped; infinite where it is not finite."""
        optimiser = self._optimiser
        if self._stage == 0:
            norm = torch.nn.utils.get_total_norm([one.grad for one in self._moving() if one.grad is not None])
        elif isinstance(optimiser, BF16_Optimizer):
            norm = torch.nn.utils.get_total_norm(optimiser.get_grads_for_norm()[0])
        elif self._stage == 3:
            norm = combine_grad_norm_groups(optimiser._get_norm_groups())
        else:
            norm = optimiser.scaled_global_norm()
        return float(norm)

    def step(self, learning_rate: float) -> None:
        """Clip, move the weights, forget the gradient."""
        self._move(learning_rate)
        self.steps += 1

    @torch.no_grad()
    def discard(self) -> None:
        """Forget the gradient."""
        if self._stage == 0:
            self._engine.zero_grad()
        elif isinstance(self._optimiser, BF16_Optimizer):
            self._optimiser.zero_grad()
        else:
            # DeepSpeed forgets a gradient by itself where one is not finite, and cleans up after it.
            self._spoil()
            self._engine.step()

    def summed(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Over all ranks, by name."""
        return summed(sums)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights as the model computes with them, tied ones once: in the order of sending.

        A tensor holds until the next is asked for: sharded ones are gathered some at a time.
        """
        named = in_sending_order(self._scorer.weights().items(), lambda one: _bytes(one[1]))
        if self._stage != 3:
            yield from ((name, one.detach()) for name, one in named)
            return
        for part in _parts(named):
            with deepspeed.zero.GatheredParameters([one for _, one in part]):
                yield from ((name, one.detach()) for name, one in part)

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """The float32 weights that the optimiser moves, whole."""
        for name, one in self._scorer.weights().items():
            yield name, one.detach() if self._stage == 0 else safe_get_full_fp32_param(one)

    def moments(self) -> Iterator[tuple[str, Tensor]]:
        """AdamW's state as `moment.parameter`, whole; none before the first step."""
        states = self._adam.state
        if not any("exp_avg" in state for state in states.values()):
            return
        count = torch.tensor(float(next(state["step"] for state in states.values() if "step" in state)))
        for name, one in self._scorer.weights().items():
            for moment in _MOMENTS:
                whole = states[one][moment] if self._stage == 0 else safe_get_full_optimizer_state(one, moment)
                yield f"{moment}.{name}", whole
            yield f"step.{name}", count

    def restore(self, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        """Take over what `masters` and `moments` gave, of whatever ranks and sharding."""
        self._make_moments()
        count = max((float(one) for name, one in moments.items() if name.startswith("step.")), default=0.0)
        for state in self._adam.state.values():
            if "step" in state:
                state["step"] = torch.full_like(state["step"], count) if torch.is_tensor(state["step"]) else int(count)
        with torch.no_grad():
            for name, one in self._scorer.weights().items():
                self._set(one, None, weights[name])
                for moment in _MOMENTS:
                    given = moments.get(f"{moment}.{name}")
                    self._set(one, moment, torch.zeros_like(weights[name]) if given is None else given)

    def offload(self) -> None:
        """Move everything to the host, so that samplers have the GPU. Untried: on a CPU there is nothing to do."""
        if self.device.type != "cpu" and not self._away:
            self._engine.offload_states()
            torch.cuda.empty_cache()
            self._away = True

    def reload(self) -> None:
        """Undo `offload`. Untried."""
        if self._away:
            self._engine.reload_states()
            self._away = False

    def _move(self, learning_rate: float) -> None:
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        self._engine.step()

    @property
    def _adam(self) -> torch.optim.Optimizer:
        adam: torch.optim.Optimizer = self._optimiser if self._stage == 0 else self._optimiser.optimizer
        return adam

    def _moving(self) -> Iterable[torch.nn.Parameter]:
        return self._scorer.weights().values()

    def _spoil(self) -> None:
        """Make the gradient not finite, on every rank that has a part of it."""
        if getattr(self._optimiser, "norm_for_param_grads", None):
            norms = self._optimiser.norm_for_param_grads
            for one in norms:
                norms[one] = torch.full((), torch.nan)
            return
        for gradients in self._optimiser.averaged_gradients.values():
            # The largest one begins with a real gradient; small ones may be nothing but padding.
            max(gradients, key=Tensor.numel).view(-1)[0] = torch.nan

    def _make_moments(self) -> None:
        """DeepSpeed makes AdamW's state in the first step: take one that moves nothing."""
        pair = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        place = torch.zeros(1, dtype=torch.int64, device=self.device)
        batch = Batch(
            ids=pair,
            positions=None,
            predicting=place,
            targets=place,
            temperature=None,
            source=np.zeros(0, dtype=np.int64),
            weightless=True,
        )
        logprobs, values, _ = self.forward(batch)
        self.backward(logprobs.sum() * 0.0 + (0.0 if values is None else values.sum() * 0.0), last=True)
        self._move(0.0)

    def _set(self, parameter: torch.nn.Parameter, moment: str | None, value: Tensor) -> None:
        """A parameter with its master (`moment` None), or one of its moments."""
        value = value.to(self.device)
        if self._stage == 3:
            part = self._shard(parameter, value)
            if moment is None:
                safe_set_local_fp32_param(parameter, part)
                with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):
                    parameter.copy_(value)
            else:
                safe_set_local_optimizer_state(parameter, part, moment)
        elif moment is None:
            if self._stage:
                safe_set_full_fp32_param(parameter, value)
            parameter.copy_(value)
        elif self._stage:
            safe_set_full_optimizer_state(parameter, value, moment)
        else:
            self._adam.state[parameter][moment].copy_(value)

    def _shard(self, parameter: torch.nn.Parameter, value: Tensor) -> Tensor:
        """This rank's part of a tensor under ZeRO-3, filled up with zeros where it does not divide."""
        size = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
        padded = torch.nn.functional.pad(value.flatten(), (0, size * self.ranks - value.numel()))
        return padded.narrow(0, size * self.rank, size)


def _bytes(parameter: torch.nn.Parameter) -> int:
    """Of the whole parameter, also where this rank holds a part of it."""
    shape = getattr(parameter, "ds_shape", parameter.shape)
    return math.prod(shape) * parameter.element_size()


def _parts(named: Iterable[tuple[str, torch.nn.Parameter]]) -> Iterator[list[tuple[str, torch.nn.Parameter]]]:
    """Parameters in order, as many together as are gathered at a time."""
    part: list[tuple[str, torch.nn.Parameter]] = []
    size = 0
    for name, one in named:
        own = _bytes(one)
        if part and size + own > _GATHER_BYTES:
            yield part
            part, size = [], 0
        part.append((name, one))
        size += own
    if part:
        yield part
