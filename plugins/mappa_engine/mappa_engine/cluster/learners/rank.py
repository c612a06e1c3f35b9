"""One rank of a learner group: the process that scores, trains, and sends weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from mappa_core.engine import Advantages, EngineError, Experience, Loss, PolicySpec, TrainSection
from mappa_engine.adapters import base_weights
from mappa_engine.arrays import Float32, Int32
from mappa_engine.checkpoint import VALUE_HEAD_PREFIX, copy_weights, load_start_weights
from mappa_engine.cluster.learners import checkpoint_io
from mappa_engine.cluster.learners.adapter_learner import AdapterLearner
from mappa_engine.cluster.learners.deepspeed_config import deepspeed_config
from mappa_engine.cluster.learners.frozen_model import FrozenModel, new_value_head
from mappa_engine.cluster.learners.presence import Presence
from mappa_engine.cluster.learners.process_group import (
    Rendezvous,
    destroy_process_group,
    free_address,
    init_process_group,
    open_store,
    threads_per_rank,
)
from mappa_engine.cluster.sync import vllm_transfer
from mappa_engine.cluster.sync.buckets import Bucket
from mappa_engine.cluster.sync.sender import BucketSender, order_for_sending
from mappa_engine.cluster.sync.transfer_records import SentWeights
from mappa_engine.float32 import forbid_tf32
from mappa_engine.learning.activation_checkpointing import enable_activation_checkpointing
from mappa_engine.learning.batching import BatchLayout, MicroBatch, pad_right
from mappa_engine.learning.logprob_model import LogprobModel
from mappa_engine.learning.scoring import TokenScores, score_policy
from mappa_engine.learning.update import PolicyUpdate
from mappa_engine.memory_estimate import needs_reference_module
from mappa_engine.model_shape import is_large
from mappa_engine.options import PlacedOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """Configuration of a learner group. `specs` are of trained policies; `dtype` is float32 or bfloat16."""

    specs: tuple[PolicySpec, ...]
    train: TrainSection
    options: PlacedOptions
    dtype: str
    gpu: bool
    seed: int
    threads: int = 1
    """Threads that each rank computes with."""


class LearnerRank:
    """One rank's part of the weights of all policies of its group.

    All ranks get the same calls in the same order: they wait for each other.
    """

    def __init__(self, config: LearnerConfig, *, rank: int, ranks: int) -> None:
        self._config = config
        self._rank, self._ranks = rank, ranks
        self._store: TCPStore | None = None
        self._device = torch.device("cuda" if config.gpu else "cpu")
        kind: Literal["padded", "packed"] = "padded" if config.options.packed_tokens is None else "packed"
        self._layout = BatchLayout(kind, min(config.train.micro_tokens, config.options.pass_tokens))
        self._bases: dict[str, FrozenModel] = {}
        self._references: dict[str, FrozenModel] = {}
        """The model of each policy's reference, by policy."""
        self._reference_adapters: dict[str, str] = {}
        self._specs = {spec.name: spec for spec in config.specs}
        self._learners: dict[str, Any] = {}
        self._presence = Presence.ALL
        self._shapes: dict[str, Mapping[str, Any]] = {}
        self._sender: BucketSender | None = None
        self._gpu_senders: dict[str, vllm_transfer.GpuSender] = {}

    def open_store(self) -> Rendezvous:
        """Open the store at which all ranks meet, and return where it is."""
        rendezvous, self._store = open_store(self._ranks, self._config.options.call_s)
        return rendezvous

    def free_address(self) -> Rendezvous:
        """Return an address of this rank's machine that nothing listens at."""
        return free_address()

    def open(self, rendezvous: Rendezvous) -> None:
        """Join the other ranks at `rendezvous` and load every policy. Raises ModelError or RunError."""
        config = self._config
        if config.dtype == "float32":
            forbid_tf32()
        init_process_group(
            rendezvous, self._store, rank=self._rank, ranks=self._ranks, gpu=config.gpu, timeout_s=config.options.call_s
        )
        if config.options.deterministic:
            # Some operations have no deterministic GPU implementation; only CPUs guarantee it.
            torch.use_deterministic_algorithms(True, warn_only=config.gpu)
        for model in dict.fromkeys(spec.model for spec in config.specs):
            dtype = getattr(torch, config.dtype)
            self._bases[model] = FrozenModel(model, dtype=dtype, device=self._device, layout=self._layout)
        # Copies of a base come before its adapters, and before it becomes a reference with other weights.
        for spec in (spec for spec in config.specs if spec.lora is None):
            self._learners[spec.name] = self._new_full_learner(spec)
        self._open_references()
        for spec in (spec for spec in config.specs if spec.lora is not None):
            self._learners[spec.name] = self._new_adapter_learner(spec)

    def _new_full_learner(self, spec: PolicySpec) -> Any:
        # DeepSpeed is imported after its device is known.
        from mappa_engine.cluster.learners.deepspeed_learner import DeepSpeedLearner

        config = self._config
        model = self._bases[spec.model].trainable_copy()
        scorer = LogprobModel(model, new_value_head(model) if spec.value_head else None)
        self._load_start_weights(spec, scorer.weights())
        if config.options.gradient_checkpointing:
            enable_activation_checkpointing(model)
        settings = deepspeed_config(config.train, config.options, dtype=config.dtype, gpu=config.gpu)
        threads = threads_per_rank() if config.options.offload_optimizer else None
        return DeepSpeedLearner(spec.name, scorer, settings, step_threads=threads)

    def _open_references(self) -> None:
        # A base that nothing else needs becomes the first of them, so that one policy alone takes no more memory.
        taken = {spec.model for spec in self._config.specs if not needs_reference_module(spec)}
        for spec in self._config.specs:
            base = self._bases[spec.model]
            if not needs_reference_module(spec):
                self._references[spec.name] = base
                continue
            assert spec.reference is not None
            reference = self._references[spec.name] = base.copy() if spec.model in taken else base
            taken.add(spec.model)
            own = base_weights(reference.model.named_parameters())
            copy_weights(own, _load_reference(spec, own))

    def _new_adapter_learner(self, spec: PolicySpec) -> AdapterLearner:
        base = self._bases[spec.model]
        assert spec.lora is not None
        base.adapters.add(spec.name, spec.lora, seed=self._config.seed)
        if self._config.options.gradient_checkpointing:
            enable_activation_checkpointing(base.model)
        base.keep_on_device()
        head = new_value_head(base.model).to(self._device) if spec.value_head else None
        learner = AdapterLearner(spec.name, base, head, self._config.train)
        self._load_start_weights(spec, dict(learner.weights()))
        if spec.reference is not None:
            weights = _load_reference(spec, base.adapters.parameters(spec.name))
            self._reference_adapters[spec.name] = base.adapters.add_reference(spec.name, spec.lora, weights)
        return learner

    def _load_start_weights(self, spec: PolicySpec, own: Mapping[str, Tensor]) -> None:
        """Record the shapes of a policy's tensors, and load its start weights if it has any."""
        self._shapes[spec.name] = {name: tuple(weight.shape) for name, weight in own.items()}
        if spec.start is not None:
            copy_weights(own, load_start_weights(spec.start, self._shapes[spec.name], model_name=spec.model))

    def score(self, experience: Experience, reference: bool = True) -> list[TokenScores]:
        """Score this rank's part of the experience with the group's learners and, if `reference`, their references."""
        by_reference: dict[int, list[str]] = {}
        for name in (name for name in experience.policies if name in self._learners):
            by_reference.setdefault(id(self._references[name]), []).append(name)
        scores = []
        for names in by_reference.values():
            # A reference goes to the device once for all its policies, and leaves it before the next comes.
            with self._references[names[0]].on_device() if reference else nullcontext():
                scores += [self._score(name, experience, reference) for name in names]
        return scores

    def _score(self, name: str, experience: Experience, reference: bool) -> TokenScores:
        predict = partial(self._references[name].predict_reference, adapter=self._reference_adapters.get(name))
        with self._computing(name, Presence.WEIGHTS) as learner:
            return score_policy(
                name,
                learner.forward,
                predict if reference else None,
                experience,
                layout=self._layout_of(name),
                device=self._device,
                rank=self._rank,
                ranks=self._ranks,
            )

    def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> dict[str, dict[str, float]]:
        """Take the optimiser steps of one iteration; returns metrics by policy, over all ranks."""
        metrics = {}
        for name in (name for name in experience.policies if name in self._learners):
            with self._computing(name, Presence.ALL) as learner:
                # Ranks agree on the rows that are left out: each finds them in the whole experience.
                large, layout = self._is_large(name), self._layout_of(name)
                train = self._config.train
                update = PolicyUpdate(learner, experience, advantages, loss, train, layout=layout, skips_idle=large)
                metrics[name] = update.run(progress, seed=self._config.seed)
        return metrics

    def _layout_of(self, policy: str) -> BatchLayout:
        """Return the layout of a policy's micro-batches. Prefixes are shared by one rank alone, and by layers that are
        neither computed again in the backward pass nor sharded: these are called equally often by every batch."""
        options = self._config.options
        whole = self._ranks == 1 and options.zero < 3 and not options.gradient_checkpointing
        shares = whole and self._layout.kind == "padded" and self._is_large(policy)
        return replace(self._layout, shares_prefixes=shares)

    def _is_large(self, policy: str) -> bool:
        return is_large(self._bases[self._specs[policy].model].weights)

    @torch.no_grad()
    def logprobs(self, policy: str, sequences: Sequence[Int32]) -> list[Float32]:
        """Compute with the current weights, for each sequence (T,), the log-probabilities (T - 1,) of every token after
        the first, at temperature 1. Every rank returns all."""
        results: list[Float32] = []
        with self._computing(policy, Presence.WEIGHTS) as learner:
            for group in self._probe_batches(sequences):
                batch = _all_tokens_batch([sequences[index] for index in group], self._device)
                logprobs = learner.forward(batch).logprobs.float().cpu().numpy()
                results += np.split(logprobs, np.cumsum([len(sequences[index]) - 1 for index in group])[:-1])
        return results

    def _probe_batches(self, sequences: Sequence[Int32]) -> list[list[int]]:
        """Split sequences, in order, into micro-batches; returns their indices."""
        max_sequences = max(1, self._layout.tokens // max(len(sequence) for sequence in sequences))
        return [
            list(range(start, min(start + max_sequences, len(sequences))))
            for start in range(0, len(sequences), max_sequences)
        ]

    def begin_send(self, policy: str, version: int) -> None:
        """Start to send a policy's weights: the caller then takes buckets from rank 0 until there is none, while the
        other ranks run `follow_send`."""
        # The generator of a send that broke off holds the learner's weights on the device until it is dropped.
        self._sender = None
        self._sender = BucketSender(policy, version, self._weights(policy))

    def next_bucket(self) -> Bucket | None:
        """Return the next bucket of weights, without the value head; None after the last."""
        return self._current_sender().next_bucket()

    def next_bucket_reference(self) -> tuple[Any] | None:
        """Put `next_bucket` into Ray's object store, from which samplers fetch it directly. Ray would resolve a bare
        reference, so it is returned in a tuple."""
        import ray

        bucket = self.next_bucket()
        return None if bucket is None else (ray.put(bucket),)

    def follow_send(self, policy: str) -> None:
        """Take part in the gathers until rank 0 has sent everything."""
        for _ in self._weights(policy):
            pass

    def sent_record(self) -> SentWeights:
        """Return the record of what was sent, once sending has ended."""
        return self._current_sender().sent_record()

    def connect(
        self,
        policy: str,
        transport: vllm_transfer.GpuTransport,
        rendezvous: vllm_transfer.TransferRendezvous,
        engines: Sequence[Any],
    ) -> None:
        """Connect to the engines of a policy, given as Ray handles, for transfers from GPU to GPU."""
        dtype = getattr(torch, self._config.dtype)
        shapes = self._shapes[policy].items()
        metas = [
            vllm_transfer.TensorMeta(name, dtype, shape)
            for name, shape in shapes
            if not name.startswith(VALUE_HEAD_PREFIX)
        ]
        metas = order_for_sending(metas, lambda meta: (meta.name, meta.bytes))
        self._gpu_senders[policy] = vllm_transfer.GpuSender(
            transport,
            policy,
            rank=self._rank,
            source=vllm_transfer.WeightSource(metas, lambda: self._weights(policy)),
            call=vllm_transfer.make_engine_caller(engines, self._config.options.sync_s),
            rendezvous=rendezvous,
        )

    def transfer(self, policy: str, version: int) -> SentWeights:
        """Send a policy's weights to the connected engines."""
        return self._gpu_senders[policy].send(version)

    def save(self, folder: Path, versions: Mapping[str, int], dtype: str = "float32") -> None:
        """Write every policy to a subfolder of its name, wherever its states are; weights of full policies in `dtype`.
        All ranks must see the folder: each writes its share."""
        for name, learner in self._learners.items():
            checkpoint_io.save_policy(
                learner,
                folder / name,
                version=versions[name],
                rank=self._rank,
                ranks=self._ranks,
                dtype=torch.float32 if self._specs[name].lora is not None else getattr(torch, dtype),
            )
            if self._specs[name].reference is not None:
                checkpoint_io.save_reference(
                    self._reference_weights(name), folder / name, rank=self._rank, ranks=self._ranks
                )
        if self._config.gpu:
            # torch would keep what the gathers took, and a sampler that starts again measures what is free.
            torch.cuda.empty_cache()

    def _reference_weights(self, name: str) -> Mapping[str, Tensor]:
        """Return the weights of a policy's own reference."""
        reference = self._references[name]
        if name in self._reference_adapters:
            return reference.adapters.parameters(self._reference_adapters[name])
        return base_weights(reference.model.named_parameters())

    def load(self, folder: Path) -> dict[str, int]:
        """Load what any engine saved, on any number of ranks; returns the versions of policies."""
        versions = {}
        for name, spec in self._specs.items():
            with self._present(name, Presence.ALL) as learner:
                versions[name] = checkpoint_io.load_policy(
                    learner, folder / name, self._shapes[name], policy=name, model_name=spec.model
                ).version
        return versions

    def move(self, presence: Presence) -> None:
        """Bring of all policies to the device what `presence` says, and the rest to the host."""
        self._presence = presence
        for learner in self._learners.values():
            learner.move(presence)
        for model in {spec.model for spec in self._specs.values() if spec.lora is not None}:
            if presence is Presence.NOTHING:
                self._bases[model].move_to_host()
            else:
                self._bases[model].keep_on_device()

    def close(self) -> None:
        """Release all weights and leave the process group."""
        self._learners.clear()
        self._bases.clear()
        self._references.clear()
        destroy_process_group()
        self._store = None

    @contextmanager
    def _present(self, policy: str, presence: Presence) -> Iterator[Any]:
        """Yield the learner of a policy with at least that of it on the device. This is the one way to a learner: what
        is away comes, and goes again, so nothing is read of weights that are elsewhere."""
        if policy not in self._learners:
            raise EngineError(f"the learners have no policy {policy!r}, only {sorted(self._learners)}")
        learner = self._learners[policy]
        # Never less than the group has on the device: another call would bring it back.
        learner.move(max(presence, self._presence))
        try:
            yield learner
        finally:
            learner.move(self._presence)

    @contextmanager
    def _computing(self, policy: str, presence: Presence) -> Iterator[Any]:
        """Yield the present learner of a policy, ready for passes: an adapter is active, and its base on the device."""
        with self._present(policy, presence) as learner:
            spec = self._specs[policy]
            if spec.lora is None:
                yield learner
                return
            base = self._bases[spec.model]
            with base.on_device(), base.adapters.active(policy):
                yield learner

    def _weights(self, policy: str) -> Iterator[tuple[str, Tensor]]:
        """Yield a policy's weights without its value head; the learner is present until the last."""
        with self._present(policy, Presence.WEIGHTS) as learner:
            yield from (item for item in learner.weights() if not item[0].startswith(VALUE_HEAD_PREFIX))

    def _current_sender(self) -> BucketSender:
        if self._sender is None:
            raise EngineError("no weights are being handed on")
        return self._sender


def _load_reference(spec: PolicySpec, own: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    assert spec.reference is not None
    shapes = {name: tuple(weight.shape) for name, weight in own.items()}
    return load_start_weights(spec.reference, shapes, model_name=spec.model)


def _all_tokens_batch(sequences: Sequence[Int32], device: torch.device) -> MicroBatch:
    """Build a micro-batch that predicts every token after the first of each sequence."""
    ids = pad_right(sequences, device)
    places = [
        torch.arange(len(sequence) - 1, device=device) + row * ids.shape[1] for row, sequence in enumerate(sequences)
    ]
    predicting = torch.cat(places)
    return MicroBatch(
        ids=ids,
        positions=None,
        predicting=predicting,
        targets=ids.flatten()[predicting + 1],
        temperature=None,
        source=np.zeros(0, dtype=np.int64),
    )
