"""Learner of full weights: DeepSpeed shards weights, gradients and optimiser state over the ranks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.utils import combine_grad_norm_groups
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum as State
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)
from torch import Tensor

from mappa_core.engine import EngineError
from mappa_engine.cluster.learners.presence import Presence
from mappa_engine.cluster.learners.process_group import all_reduce_sums
from mappa_engine.cluster.sync.sender import order_for_sending
from mappa_engine.learning.batching import MicroBatch
from mappa_engine.learning.logprob_model import LogprobModel, Predictions

_MOMENTS = ("exp_avg", "exp_avg_sq")
_GATHER_BYTES = 256 << 20
"""Bytes of weights that every rank gathers at a time while they are sent, under ZeRO-3."""
_AWAY = {
    Presence.NOTHING: frozenset(State),
    Presence.WEIGHTS: frozenset(State) - {State.lp_params},
    Presence.ALL: frozenset(),
}
"""What DeepSpeed moves to the host."""
_MASTERS = frozenset({State.hp_params, State.optim_states})


class DeepSpeedLearner:
    """One policy on one rank. All methods must be called on all ranks, in the same order."""

    def __init__(
        self, name: str, scorer: LogprobModel, settings: Mapping[str, Any], *, step_threads: int | None = None
    ) -> None:
        """`step_threads`: threads of a step, for an optimiser on the host; None: as many as elsewhere."""
        self.name = name
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.steps = 0
        self._presence = Presence.ALL
        self._step_threads = step_threads
        self._scorer = scorer
        self._stage: int = settings["zero_optimization"]["stage"]
        self._optimiser_stays = "offload_optimizer" in settings["zero_optimization"]
        self._engine, self._optimiser, _, _ = deepspeed.initialize(
            model=scorer,
            model_parameters=[parameter for parameter in scorer.parameters() if parameter.requires_grad],
            config=dict(settings),
            dist_init_required=False,
        )
        self.device: torch.device = self._engine.device

    def forward(self, batch: MicroBatch, *, entropy: bool = False) -> Predictions:
        """Run the model on a micro-batch."""
        self._require_weights()
        return Predictions(*self._engine(batch, entropy=entropy))

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Accumulate the gradient of the step, which is the sum over micro-batches and ranks."""
        self._engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed averages over ranks.
        self._engine.backward(loss * self.ranks, scale_wrt_gas=False)

    @torch.no_grad()
    def grad_norm(self) -> float:
        """Return the norm of the whole gradient before clipping; infinite where it is not finite."""
        optimiser = self._optimiser
        if self._stage == 0:
            grad_norm = torch.nn.utils.get_total_norm(
                [weight.grad for weight in self._trained_weights() if weight.grad is not None]
            )
        elif isinstance(optimiser, BF16_Optimizer):
            grad_norm = torch.nn.utils.get_total_norm(optimiser.get_grads_for_norm()[0])
        elif self._stage == 3:
            grad_norm = combine_grad_norm_groups(optimiser._get_norm_groups())
        else:
            grad_norm = optimiser.scaled_global_norm()
        return float(grad_norm)

    def step(self, learning_rate: float) -> None:
        """Clip the gradient, update the weights, reset the gradient."""
        self._take_step(learning_rate)
        self.steps += 1

    @torch.no_grad()
    def zero_grad(self) -> None:
        """Forget the gradient."""
        if self._stage == 0:
            self._engine.zero_grad()
        elif isinstance(self._optimiser, BF16_Optimizer):
            self._optimiser.zero_grad()
        else:
            # DeepSpeed drops a gradient that is not finite, with all its buffers: make it so.
            self._poison_gradient()
            self._engine.step()

    def all_reduce(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Sum each value over all ranks, by name."""
        return all_reduce_sums(sums)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights as the model computes with them, tied ones once, in sending order.

        A tensor is valid until the next one is requested: sharded ones are gathered some at a time.
        """
        self._require_weights()
        named = order_for_sending(self._scorer.weights().items(), lambda item: (item[0], _full_bytes(item[1])))
        if self._stage != 3:
            yield from ((name, weight.detach()) for name, weight in named)
            return
        for part in _gather_groups(named):
            with deepspeed.zero.GatheredParameters([weight for _, weight in part]):
                yield from ((name, weight.detach()) for name, weight in part)

    def masters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the whole float32 master weights of the optimiser, wherever they are."""
        for name, weight in self._scorer.weights().items():
            yield name, self._gather(weight)

    def moments(self) -> Iterator[tuple[str, Tensor]]:
        """Yield AdamW's whole state as `moment.parameter`, wherever it is; empty before the first step."""
        states = self._adam.state
        if not any("exp_avg" in state for state in states.values()):
            return
        count = torch.tensor(float(next(state["step"] for state in states.values() if "step" in state)))
        for name, weight in self._scorer.weights().items():
            for moment in _MOMENTS:
                yield f"{moment}.{name}", self._gather(weight, moment)
            yield f"step.{name}", count

    def restore(self, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor]) -> None:
        """Load what `masters` and `moments` returned, from any number of ranks and any sharding; with all of it on the
        device."""
        self._init_moments()
        count = max((float(moment) for name, moment in moments.items() if name.startswith("step.")), default=0.0)
        for state in self._adam.state.values():
            if "step" in state:
                state["step"] = torch.full_like(state["step"], count) if torch.is_tensor(state["step"]) else int(count)
        with torch.no_grad():
            for name, weight in self._scorer.weights().items():
                self._set(weight, None, weights[name])
                for moment in _MOMENTS:
                    given = moments.get(f"{moment}.{name}")
                    self._set(weight, moment, torch.zeros_like(weights[name]) if given is None else given)

    def move(self, presence: Presence) -> None:
        """Bring to the device what `presence` says, and the rest to the host."""
        to_host, to_device = _AWAY[presence] - _AWAY[self._presence], _AWAY[self._presence] - _AWAY[presence]
        if not to_host and not to_device:
            return
        # Under ZeRO-3 DeepSpeed moves masters and moments only for an optimiser that it compiled itself.
        by_hand = _MASTERS if self._stage == 3 else frozenset()
        if to_host:
            self._engine.offload_states(include=list(to_host - by_hand), pin_memory=self._on_gpu)
        if to_device:
            self._reload(to_device)
        if self._stage != 3:
            self._link_masters()
        elif _MASTERS & (to_host | to_device) and not self._optimiser_stays:
            self._move_masters(torch.device("cpu") if to_host else self.device)
        if to_host and self._on_gpu:
            # torch would keep the memory for itself, and a sampler in another process needs it.
            torch.cuda.empty_cache()
        self._presence = presence

    def _reload(self, states: frozenset[State]) -> None:
        """Bring back what DeepSpeed moved to the host of these states; it knows only how to bring back all."""
        away: set[State] = self._optimiser.offloaded_states
        # It brings back what it believes to be away, so what is to stay is hidden from it meanwhile.
        others = away - states
        away -= others
        if away:
            self._engine.reload_states()
        away |= others

    def _move_masters(self, device: torch.device) -> None:
        """Move the shards of master weights and moments, which DeepSpeed does under ZeRO-3 for an optimiser alone that
        it compiles itself."""
        for shard in self._optimiser.fp32_partitioned_groups_flat:
            shard.data = _moved(shard.data, device)
        for state in self._adam.state.values():
            for moment in _MOMENTS:
                if moment in state:
                    state[moment] = _moved(state[moment], device)

    def _link_masters(self) -> None:
        """Let every parameter know where its shards of master weight and moments are now. DeepSpeed forgets it when it
        moves them, and of moments for good."""
        self._optimiser._link_all_hp_params()
        if any("exp_avg" in state for state in self._adam.state.values()):
            self._optimiser._hp_optimizer_states_linked = False
            self._optimiser._lazy_init_hp_params_optimizer_state()

    def _gather(self, parameter: torch.nn.Parameter, moment: str | None = None) -> Tensor:
        """Gather the whole float32 master weight of a parameter, or one of its moments, on the device."""
        if self._stage == 0:
            own: Tensor = parameter if moment is None else self._adam.state[parameter][moment]
            return own.detach()
        if self._stage == 3:
            sharded: Tensor = (
                safe_get_full_fp32_param(parameter)
                if moment is None
                else safe_get_full_optimizer_state(parameter, moment)
            )
            return sharded
        # DeepSpeed's own gathers where the parameter is, and that may be the host, where ranks on GPUs cannot meet.
        whole = torch.zeros(parameter.shape, dtype=torch.float32, device=self.device)
        shard: Any = parameter._hp_mapping  # type: ignore[attr-defined]
        if shard is not None:
            place = shard.lp_fragment_address
            whole.view(-1).narrow(0, place.start, place.numel).copy_(shard.get_hp_fragment(moment))
        dist.all_reduce(whole, group=parameter._dp_group)  # type: ignore[attr-defined]
        return whole

    def _require_weights(self) -> None:
        if self._presence is Presence.NOTHING:
            raise EngineError(f"the weights of policy {self.name!r} are asked for while they are in the host's memory")

    @property
    def _on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def _take_step(self, learning_rate: float) -> None:
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        with _threads(self._step_threads):
            self._engine.step()

    @property
    def _adam(self) -> torch.optim.Optimizer:
        adam: torch.optim.Optimizer = self._optimiser if self._stage == 0 else self._optimiser.optimizer
        return adam

    def _trained_weights(self) -> Iterable[torch.nn.Parameter]:
        return self._scorer.weights().values()

    def _poison_gradient(self) -> None:
        """Set the gradient to NaN, on every rank that has a part of it."""
        if getattr(self._optimiser, "norm_for_param_grads", None):
            norms = self._optimiser.norm_for_param_grads
            for parameter in norms:
                norms[parameter] = torch.full((), torch.nan)
            return
        for gradients in self._optimiser.averaged_gradients.values():
            # The largest one starts with real gradient values; small ones may be padding only.
            max(gradients, key=Tensor.numel).view(-1)[0] = torch.nan

    def _init_moments(self) -> None:
        """Create AdamW's state, which DeepSpeed does in the first step: take one with learning rate 0."""
        pair = torch.zeros((1, 2), dtype=torch.int64, device=self.device)
        place = torch.zeros(1, dtype=torch.int64, device=self.device)
        batch = MicroBatch(
            ids=pair,
            positions=None,
            predicting=place,
            targets=place,
            temperature=None,
            source=np.zeros(0, dtype=np.int64),
            dummy=True,
        )
        logprobs, values, _ = self.forward(batch)
        self.backward(logprobs.sum() * 0.0 + (0.0 if values is None else values.sum() * 0.0), last=True)
        self._take_step(0.0)

    def _set(self, parameter: torch.nn.Parameter, moment: str | None, value: Tensor) -> None:
        """Set a parameter and its master weight (`moment` None), or one of its moments."""
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
        """Return this rank's part of a tensor under ZeRO-3, zero-padded where it does not divide."""
        size = parameter.ds_tensor.numel()  # type: ignore[attr-defined]
        padded = torch.nn.functional.pad(value.flatten(), (0, size * self.ranks - value.numel()))
        return padded.narrow(0, size * self.rank, size)


@contextmanager
def _threads(number: int | None) -> Iterator[None]:
    """Compute with so many threads inside the context; None: with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`; from a GPU it comes into pinned memory, which is fast."""
    if device.type == tensor.device.type:
        return tensor
    pinned = device.type == "cpu"
    return torch.empty_like(tensor, device=device, pin_memory=pinned).copy_(tensor)


def _full_bytes(parameter: torch.nn.Parameter) -> int:
    """Return the size of the whole parameter, also where this rank holds a part of it."""
    shape = getattr(parameter, "ds_shape", parameter.shape)
    return math.prod(shape) * parameter.element_size()


def _gather_groups(named: Iterable[tuple[str, torch.nn.Parameter]]) -> Iterator[list[tuple[str, torch.nn.Parameter]]]:
    """Split parameters, in order, into groups that are gathered together."""
    part: list[tuple[str, torch.nn.Parameter]] = []
    size = 0
    for name, weight in named:
        own = _full_bytes(weight)
        if part and size + own > _GATHER_BYTES:
            yield part
            part, size = [], 0
        part.append((name, weight))
        size += own
    if part:
        yield part
