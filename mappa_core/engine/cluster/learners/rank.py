"""One rank of a group of learners: the process that scores, learns, and hands weights on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mappa_core.config.schema import TrainSection
from mappa_core.engine.checkpoint import VALUE_HEAD, start_weights
from mappa_core.engine.cluster.learners import stored
from mappa_core.engine.cluster.learners.adapter import AdapterLearner
from mappa_core.engine.cluster.learners.bases import Base, checkpoint_activations, new_value_head
from mappa_core.engine.cluster.learners.joining import Meeting, join, leave, meeting
from mappa_core.engine.cluster.learners.settings import deepspeed_settings
from mappa_core.engine.cluster.sync import gpu
from mappa_core.engine.cluster.sync.buckets import Bucket
from mappa_core.engine.cluster.sync.receipt import Sent
from mappa_core.engine.cluster.sync.sending import Sending, in_sending_order
from mappa_core.engine.learning.forward import Scorer
from mappa_core.engine.learning.layout import Batch, Layout, pad
from mappa_core.engine.learning.scoring import Scores, score
from mappa_core.engine.learning.update import Update
from mappa_core.engine.options import ClusterOptions
from mappa_core.errors import EngineError
from mappa_core.experience import Advantages, Experience
from mappa_core.protocols import Loss, PolicySpec
from mappa_core.records import Float32, Int32


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all ranks of a group are to do. `specs` are of trained policies; `dtype` is float32 or bfloat16."""

    specs: tuple[PolicySpec, ...]
    train: TrainSection
    options: ClusterOptions
    dtype: str
    gpu: bool
    seed: int


class LearnerRank:
    """The share of one rank in the weights of all policies of its group.

    All ranks are called alike and in the same order: they wait for each other.
    """

    def __init__(self, task: Task, *, rank: int, ranks: int) -> None:
        self._task = task
        self._rank, self._ranks = rank, ranks
        self._device = torch.device("cuda" if task.gpu else "cpu")
        self._layout = Layout("packed", min(task.train.micro_tokens, task.options.packed_tokens))
        self._bases: dict[str, Base] = {}
        self._specs = {spec.name: spec for spec in task.specs}
        self._learners: dict[str, Any] = {}
        self._shapes: dict[str, Mapping[str, Any]] = {}
        self._sending: Sending | None = None
        self._senders: dict[str, gpu.Sender] = {}

    def meeting(self) -> Meeting:
        """Where the others can meet this rank."""
        return meeting()

    def open(self, place: Meeting) -> None:
        """Meet the other ranks at `place` and load every policy. Raises ModelError or RunError where one cannot be."""
        task = self._task
        join(place, rank=self._rank, ranks=self._ranks, gpu=task.gpu, patience_s=task.options.call_s)
        if task.options.deterministic:
            # Some operations have no bit-equal form on a GPU; the promise is the CPU's.
            torch.use_deterministic_algorithms(True, warn_only=task.gpu)
        for model in dict.fromkeys(spec.model for spec in task.specs):
            dtype = getattr(torch, task.dtype)
            self._bases[model] = Base(model, dtype=dtype, device=self._device, layout=self._layout)
        for spec in sorted(task.specs, key=lambda one: one.kind == "lora"):  # copies before there are adapters
            self._learners[spec.name] = self._adapter(spec) if spec.lora is not None else self._full(spec)

    def _full(self, spec: PolicySpec) -> Any:
        # DeepSpeed is imported once it is known what it is to run on.
        from mappa_core.engine.cluster.learners.zero import ZeroLearner

        task = self._task
        model = self._bases[spec.model].copied()
        scorer = Scorer(model, new_value_head(model) if spec.value_head else None)
        self._start(spec, scorer.weights())
        if task.options.gradient_checkpointing:
            checkpoint_activations(model)
        settings = deepspeed_settings(task.train, task.options, dtype=task.dtype, gpu=task.gpu)
        return ZeroLearner(spec.name, scorer, settings)

    def _adapter(self, spec: PolicySpec) -> AdapterLearner:
        base = self._bases[spec.model]
        assert spec.lora is not None
        base.adapters.add(spec.name, spec.lora, seed=self._task.seed)
        if self._task.options.gradient_checkpointing:
            checkpoint_activations(base.model)
        base.reside()
        head = new_value_head(base.model).to(self._device) if spec.value_head else None
        learner = AdapterLearner(spec.name, base, head, self._task.train)
        self._start(spec, dict(learner.weights()))
        return learner

    @torch.no_grad()
    def _start(self, spec: PolicySpec, own: Mapping[str, Tensor]) -> None:
        """Remember what a policy's tensors are, and let it start where another run's ended, if it is to."""
        self._shapes[spec.name] = {name: tuple(one.shape) for name, one in own.items()}
        if spec.start is not None:
            for name, one in start_weights(spec.start, self._shapes[spec.name], where=spec.model).items():
                own[name].copy_(one)

    def score(self, experience: Experience) -> list[Scores]:
        """This rank's share of what the learners of the group and their references say of the experience."""
        return [self._score(name, experience) for name in experience.policies if name in self._learners]

    def _score(self, name: str, experience: Experience) -> Scores:
        learner = self._learners[name]
        base = self._bases[self._specs[name].model]
        with self._active(name), base.lent():
            return score(
                name,
                learner.forward,
                base.reference,
                experience,
                layout=self._layout,
                device=self._device,
                rank=self._rank,
                ranks=self._ranks,
            )

    def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> dict[str, dict[str, float]]:
        """Take the optimiser steps of one iteration; metrics by policy, of all ranks together."""
        metrics = {}
        for name in (one for one in experience.policies if one in self._learners):
            update = Update(self._learners[name], experience, advantages, loss, self._task.train, layout=self._layout)
            with self._active(name):
                metrics[name] = update.run(progress, seed=self._task.seed)
        return metrics

    @torch.no_grad()
    def logprobs(self, policy: str, sequences: Sequence[Int32]) -> list[Float32]:
        """By the weights as they are now: of each sequence (T,) the log-probability of every token after the first,
        (T - 1,), at temperature 1. Every rank gives all."""
        found: list[Float32] = []
        learner = self._learner(policy)
        with self._active(policy), self._bases[self._specs[policy].model].lent():
            for group in self._layout_of(sequences):
                batch = _every_token([sequences[one] for one in group], self._device)
                logprobs = learner.forward(batch).logprobs.float().cpu().numpy()
                found += np.split(logprobs, np.cumsum([len(sequences[one]) - 1 for one in group])[:-1])
        return found

    def _layout_of(self, sequences: Sequence[Int32]) -> list[list[int]]:
        """Sequences in their order, as many together as a micro-batch takes."""
        most = max(1, self._layout.tokens // max(len(one) for one in sequences))
        return [list(range(start, min(start + most, len(sequences)))) for start in range(0, len(sequences), most)]

    def begin(self, policy: str, version: int) -> None:
        """Get ready to hand on a policy's weights: rank 0 is then asked for buckets until there is none, while the
        others `follow`."""
        self._sending = Sending(policy, version, self._weights(policy))

    def bucket(self) -> Bucket | None:
        """The next ones of the weights, without a value head; None: there are no more."""
        return self._sent_by().take()

    def bucket_reference(self) -> tuple[Any] | None:
        """`bucket` in Ray's object store, from where samplers fetch it without a detour. Ray gives what a reference
        stands for unless it is inside of something."""
        import ray

        bucket = self.bucket()
        return None if bucket is None else (ray.put(bucket),)

    def follow(self, policy: str) -> None:
        """Take part until rank 0 has handed on all."""
        for _ in self._weights(policy):
            pass

    def sent(self) -> Sent:
        """What was handed on, once it is through."""
        return self._sent_by().sent()

    def connect(self, policy: str, transport: gpu.Transport, place: gpu.Meeting, engines: Sequence[Any]) -> None:
        """Meet the engines of a policy, given by handles of Ray, to send weights from GPU to GPU. Untried."""
        dtype = getattr(torch, self._task.dtype)
        shapes = self._shapes[policy].items()
        metas = [gpu.Meta(name, dtype, shape) for name, shape in shapes if not name.startswith(VALUE_HEAD)]
        metas = in_sending_order(metas, lambda one: one.bytes)
        self._senders[policy] = gpu.Sender(
            transport,
            policy,
            rank=self._rank,
            source=gpu.Source(metas, lambda: self._weights(policy)),
            call=gpu.caller(engines, self._task.options.sync_s),
            meeting=place,
        )

    def transfer(self, policy: str, version: int) -> Sent:
        """Send a policy's weights to the engines that were met. Untried."""
        return self._senders[policy].send(version)

    def save(self, folder: Path, versions: Mapping[str, int]) -> None:
        """Write every policy to a subfolder of its name; rank 0 writes, to a folder that all ranks must see."""
        for name, learner in self._learners.items():
            stored.save(learner, folder / name, version=versions[name], writes=self._rank == 0)

    def load(self, folder: Path) -> dict[str, int]:
        """Take over what any engine saved, on any number of ranks; the versions of policies."""
        return {
            name: stored.load(
                learner, folder / name, self._shapes[name], policy=name, where=self._specs[name].model
            ).version
            for name, learner in self._learners.items()
        }

    def offload(self) -> None:
        """Move everything to the host while samplers have the GPU. On a CPU nothing is moved."""
        for learner in self._learners.values():
            learner.offload()
        for base in self._bases.values():
            base.leave()

    def reload(self) -> None:
        """Undo `offload`."""
        for spec in self._specs.values():
            if spec.lora is not None:
                self._bases[spec.model].reside()
        for learner in self._learners.values():
            learner.reload()

    def close(self) -> None:
        """Leave the other ranks, and let go of all weights."""
        self._learners.clear()
        self._bases.clear()
        leave()

    def _learner(self, policy: str) -> Any:
        if policy not in self._learners:
            raise EngineError(f"the learners have no policy {policy!r}, only {sorted(self._learners)}")
        learner = self._learners[policy]
        learner.reload()  # it may have made room for samplers
        return learner

    def _active(self, policy: str) -> AbstractContextManager[None]:
        """Let the base of an adapter compute with it; a model of its own needs nothing."""
        spec = self._specs[policy]
        return self._bases[spec.model].adapters.active(policy) if spec.lora is not None else nullcontext()

    def _weights(self, policy: str) -> Iterator[tuple[str, Tensor]]:
        return (item for item in self._learner(policy).weights() if not item[0].startswith(VALUE_HEAD))

    def _sent_by(self) -> Sending:
        if self._sending is None:
            raise EngineError("no weights are being handed on")
        return self._sending


def _every_token(sequences: Sequence[Int32], device: torch.device) -> Batch:
    """A micro-batch that predicts every token after the first of each sequence."""
    ids = pad(sequences, device)
    places = [torch.arange(len(one) - 1, device=device) + row * ids.shape[1] for row, one in enumerate(sequences)]
    predicting = torch.cat(places)
    return Batch(
        ids=ids,
        positions=None,
        predicting=predicting,
        targets=ids.flatten()[predicting + 1],
        temperature=None,
        source=np.zeros(0, dtype=np.int64),
    )
