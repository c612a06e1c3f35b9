"""The engine `local`: samplers and learners share their modules, so publishing copies nothing."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from mappa_core import ConfigError
from mappa_core.engine import (
    Advantages,
    Engine,
    EngineError,
    EnginePlan,
    Experience,
    Loss,
    Machine,
    PolicySpec,
    Process,
    Receipt,
    Sampler,
    TrainSection,
)
from mappa_engine.errors import ModelError
from mappa_engine.local.compute import ComputeSettings, choose_threads, emulates_bfloat16, tries_bfloat16
from mappa_engine.local.memory import check_memory, estimate_local_memory, expected_local_memory, memory_plan
from mappa_engine.local.worker import Worker
from mappa_engine.memory_estimate import BYTES_PER_NUMBER, MemoryParts, needs_reference_module
from mappa_engine.model_shape import ModelShape, is_large, read_shape
from mappa_engine.node import free_memory, swap_space, this_node
from mappa_engine.options import AUTO, LocalOptions
from mappa_engine.process_info import process_info
from mappa_engine.teacher_servers import TeacherServers

if TYPE_CHECKING:
    import torch

    from mappa_engine.learning.batching import BatchLayout
    from mappa_engine.learning.scoring import TokenScores
    from mappa_engine.local.continuous_batching import Decoder
    from mappa_engine.local.models import LoadedModel
    from mappa_engine.local.policy import Policy
    from mappa_engine.local.sampler import LocalSampler

log = structlog.get_logger()

_SLOW = (
    "this processor has no instructions for bfloat16, which takes many times as long as float32: "
    "engine.options.dtype=float32 is faster"
)

DEVICES = ("auto", "cpu", "cuda")


class LocalEngine(Engine):
    """All policies in this process. One thread computes, so the event loop is never blocked.

    torch is imported when the engine opens, as a plan needs none. Policies of one model share one frozen reference,
    unless they have one of their own (`PolicySpec.reference`); adapters also share its module. Threads and determinism
    are settings of the whole process; the engine opened last decides.
    """

    def __init__(self, options: LocalOptions) -> None:
        if options.dtype not in (AUTO, *BYTES_PER_NUMBER):
            raise ConfigError(
                f"engine.options.dtype is {options.dtype!r}; it can be {AUTO}, {' or '.join(BYTES_PER_NUMBER)}"
            )
        if options.device not in DEVICES:
            raise ConfigError(f"engine.options.device is {options.device!r}; it can be auto, cpu or cuda")
        for name in ("max_batch", "kv_cache_mb", "max_model_len", "prefill_tokens"):
            if getattr(options, name) is not None and getattr(options, name) < 1:
                raise ConfigError(f"engine.options.{name} is {getattr(options, name)}; it is at least 1")
        # The type allows any text, so a number may arrive as one.
        if options.threads != AUTO and (not str(options.threads).isdecimal() or int(options.threads) < 1):
            raise ConfigError(f"engine.options.threads is {options.threads!r}; it is {AUTO}, or a number from 1")
        self._options = options
        self._specs: Sequence[PolicySpec] = ()
        self._compute: ComputeSettings | None = None
        self._teachers = TeacherServers(options.teachers)
        self._worker = Worker()
        self._policies: dict[str, Policy] = {}
        self._decoders: dict[str, Decoder] = {}
        self._samplers: dict[str, LocalSampler] = {}
        self._compared: dict[str, Mapping[str, float]] = {}
        """Metrics of sampler against learner by policy, where not all rows were scored."""
        self._train: TrainSection | None = None
        self._seed = 0
        self._weights_lock = asyncio.Lock()
        """Held while weights are updated, loaded or saved."""

    @property
    def deterministic(self) -> bool:
        """Whether equal requests in equal waves give bit-equal completions."""
        return self._options.deterministic

    @property
    def processes(self) -> tuple[Process, ...]:
        """This process, and what it computes with once the engine is open."""
        role = "sampler and learner" if self._compute is None else f"sampler and learner, {self._compute}"
        return (process_info(role, "torch", "transformers", "peft"),)

    def plan(
        self, policies: Sequence[PolicySpec], train: TrainSection | None, *, rows: int, machines: Sequence[Machine]
    ) -> EnginePlan:
        """Estimate the memory of every policy."""
        policies = self._teachers.loaded_by_engine(policies)
        try:
            shapes = {model: read_shape(model) for model in dict.fromkeys(spec.model for spec in policies)}
        except ModelError as error:
            return EnginePlan(unknown=str(error), details={"problems": (str(error),)})
        memory, expected = self._estimate(policies, shapes, train, rows)
        plan = memory_plan(memory, self._options, this_node(), expected=expected)
        return replace(plan, lines=(*plan.lines, self._compute_line(shapes)))

    def _estimate(
        self, policies: Sequence[PolicySpec], shapes: Mapping[str, ModelShape], train: TrainSection | None, rows: int
    ) -> tuple[dict[str, MemoryParts], int | None]:
        """Estimate the memory by policy and part, and the peak that is expected, None where it is not known."""
        gpu = self._options.device != "cpu" and bool(this_node().gpus)
        memory = estimate_local_memory(policies, shapes, self._options, train=train, rows=rows, gpu=gpu)
        expected = expected_local_memory(memory, policies, shapes, self._options, train=train, rows=rows, gpu=gpu)
        return memory, expected

    def _check_memory(self, policies: Sequence[PolicySpec], train: TrainSection | None) -> None:
        """Refuse what this machine cannot hold, and warn of what may not fit beside what else runs on it."""
        try:
            shapes = {model: read_shape(model) for model in dict.fromkeys(spec.model for spec in policies)}
        except ModelError:
            return  # What cannot be planned may be loaded all the same; otherwise loading says why not.
        if not shapes:
            return
        memory, expected = self._estimate(policies, shapes, train, self._options.max_batch)
        warning = check_memory(
            memory, self._options, this_node(), expected=expected, free=free_memory(), swap=swap_space()
        )
        if warning is not None:
            log.warning(warning)

    def _compute_line(self, shapes: Mapping[str, ModelShape]) -> str:
        weights = max((shape.parameters for shape in shapes.values()), default=0)
        compute, more = ComputeSettings(threads=self._threads(weights), dtype=self._options.loaded_dtype), ""
        if self._tries_bfloat16(weights):
            more = ", or bfloat16 if a trial finds it faster and log-probabilities agree"
        elif self._emulates(compute, weights):
            more = f"; {_SLOW}"
        return f"computes with {compute}{more}"

    def export(self, policy: PolicySpec, weights: Path, out: Path, *, merged: bool, dtype: str | None) -> None:
        """Write a policy of a checkpoint for Hugging Face's libraries, without its value head."""
        from mappa_engine.export import export

        export(weights, out, model=policy.model, lora=policy.lora, merged=merged, dtype=dtype)

    async def open(self, policies: Sequence[PolicySpec], train: TrainSection | None, *, seed: int) -> None:
        """Load every policy. Raises ModelError if a model cannot be used, ConfigError if there is no such device, or if
        the policies are more than this machine can hold."""
        self._train, self._seed = train, seed
        self._check_memory(self._teachers.loaded_by_engine(policies), train)
        await self._teachers.open(policies, learning=train is not None)
        await self._worker.run(self._open, self._teachers.loaded_by_engine(policies))

    def _open(self, policies: Sequence[PolicySpec]) -> None:
        import torch

        from mappa_engine.float32 import forbid_tf32
        from mappa_engine.lean_imports import import_transformers

        import_transformers()
        self._specs = policies
        options, device = self._options, self._device
        # What loads is checked and tried on one thread, before its size is known.
        torch.set_num_threads(1 if options.threads == AUTO else int(options.threads))
        if options.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            # Some operations have no deterministic form on a GPU: there it only warns.
            torch.use_deterministic_algorithms(True, warn_only=device.type != "cpu")
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        dtype = options.loaded_dtype
        if dtype == "float32":
            forbid_tf32()
        bases = self._load_bases(dtype)
        compute = self._choose_compute(bases)
        self._build(bases if compute.dtype == dtype else self._load_bases(compute.dtype), compute)

    def _load_bases(self, dtype: str) -> dict[str, LoadedModel]:
        import torch

        from mappa_engine.local.models import load_model

        models = dict.fromkeys(spec.model for spec in self._specs)
        return {model: load_model(model, device=self._device, dtype=getattr(torch, dtype)) for model in models}

    def _choose_compute(self, bases: Mapping[str, LoadedModel]) -> ComputeSettings:
        """Choose what the loaded models are computed with; the largest decides."""
        from mappa_engine.local.bfloat16_trial import try_bfloat16

        largest = max(bases.values(), key=lambda base: base.weights, default=None)
        weights = 0 if largest is None else largest.weights
        dtype = self._options.loaded_dtype
        if largest is not None and self._tries_bfloat16(weights):
            trial = try_bfloat16(largest.model, largest.chat, largest.window)
            dtype = "bfloat16" if trial.passed else "float32"
            log.info("engine.bfloat16_tried", model=largest.model_name, result=str(trial), dtype=dtype)
        return ComputeSettings(threads=self._threads(weights), dtype=dtype)

    def _tries_bfloat16(self, weights: int) -> bool:
        return self._options.dtype == AUTO and self._on_cpu() and tries_bfloat16(weights)

    def _emulates(self, compute: ComputeSettings, weights: int) -> bool:
        return compute.dtype == "bfloat16" and self._on_cpu() and emulates_bfloat16(weights)

    def _on_cpu(self) -> bool:
        return self._options.device == "cpu" or (self._options.device == "auto" and not this_node().gpus)

    def _threads(self, weights: int) -> int:
        return choose_threads(weights) if self._options.threads == AUTO else int(self._options.threads)

    def _build(self, bases: Mapping[str, LoadedModel], compute: ComputeSettings) -> None:
        """Build policies and decoders anew; samplers that were handed out use these from now on."""
        import torch

        from mappa_engine.local.continuous_batching import Decoder
        from mappa_engine.local.policy import Policy
        from mappa_engine.local.sampler import LocalSampler

        options = self._options
        if self._emulates(compute, max((base.weights for base in bases.values()), default=0)):
            log.warning(_SLOW)
        torch.set_num_threads(compute.threads)
        self._compute = compute
        modules = self._modules(self._specs, bases)
        references = self._reference_modules(bases)
        for spec in self._specs:
            base = bases[spec.model]
            policy = Policy(
                spec,
                base,
                modules[spec.name],
                self._train,
                seed=self._seed,
                reference_model=references.get(spec.name),
            )
            kv_tokens, window = self._window(base)
            decoder = Decoder(
                policy,
                max_batch=options.max_batch,
                kv_tokens=kv_tokens,
                prefill_tokens=options.prefill_tokens,
                isolate_waves=options.deterministic,
            )
            self._policies[spec.name] = policy
            self._decoders[spec.name] = decoder
            if spec.name in self._samplers:
                self._samplers[spec.name].use(base, decoder, window=window)
            else:
                self._samplers[spec.name] = LocalSampler(
                    base, decoder, self._worker, spec.template_kwargs, window=window
                )
        self._worker.use(self._decoders.values())

    def _window(self, base: LoadedModel) -> tuple[int, int]:
        """Return how many tokens have room in the KV cache of a policy, and how many one request may have."""
        options = self._options
        kv_tokens, window = (
            (options.kv_cache_mb << 20) // base.kv_bytes,
            min(base.window, options.max_model_len or base.window),
        )
        if kv_tokens < (window if options.max_model_len else 1):
            raise ConfigError(
                f"engine.options.kv_cache_mb={options.kv_cache_mb} holds {kv_tokens} tokens of {base.model_name} "
                f"({base.kv_bytes / 1e6:.2f} MB each), and one request may have {window}: set it to at least "
                f"{-(-window * base.kv_bytes // (1 << 20))}, or engine.options.max_model_len to less"
            )
        return kv_tokens, min(window, kv_tokens)

    def _modules(self, policies: Sequence[PolicySpec], bases: Mapping[str, LoadedModel]) -> dict[str, Any]:
        """Return the module of each policy by name; modules are copied before adapters are added to them."""
        modules: dict[str, Any] = {}
        # Without learners, adapters and frozen policies no one else needs the base module: the first policy takes it.
        taken = {spec.model for spec in policies if self._train is not None or spec.kind != "full"}
        for spec in policies:
            own = spec.kind == "full" and spec.model in taken
            modules[spec.name] = copy.deepcopy(bases[spec.model].model) if own else bases[spec.model].model
            taken.add(spec.model)
        return modules

    def _reference_modules(self, bases: Mapping[str, LoadedModel]) -> dict[str, Any]:
        """Return the modules of references that are not their model, by policy; after policies have theirs."""
        if self._train is None:
            return {}
        own = [spec for spec in self._specs if needs_reference_module(spec)]
        # A base that nothing else needs becomes the first of them, so that one policy alone takes no more memory.
        taken = {spec.model for spec in self._specs if not needs_reference_module(spec)}
        modules: dict[str, Any] = {}
        for spec in own:
            base = bases[spec.model].model
            modules[spec.name] = copy.deepcopy(base) if spec.model in taken else base
            taken.add(spec.model)
        return modules

    def sampler(self, policy: str) -> Sampler:
        """Return the sampler of `policy`."""
        if policy in self._teachers:
            return self._teachers.sampler(policy)
        self._policy(policy)
        return self._samplers[policy]

    async def score(self, experience: Experience, *, reference: bool = True) -> Experience:
        """Fill in old_logprobs and, if `reference`, ref_logprobs of all rows, and values (NaN for policies without a
        value head); of a teacher on a server old_logprobs alone."""
        if self._teachers.teach(experience):
            return await self._teachers.score(experience)
        return await self._worker.run(self._score, experience, reference)

    def _score(self, experience: Experience, reference: bool) -> Experience:
        from mappa_engine.learning.scoring import merge_scores

        scores = [self._score_policy(self._policy(name), experience, reference) for name in experience.policies]
        return merge_scores(experience, scores)

    def _score_policy(self, policy: Policy, experience: Experience, reference: bool) -> TokenScores:
        from mappa_engine.learning.scoring import score_policy
        from mappa_engine.local.sampled_scores import may_reuse, reuse_sampled

        train = self._require_train()
        layout = self._layout(policy)
        learner = self._predicting(policy)
        frozen = policy.reference if reference else None
        self._compared.pop(policy.name, None)
        with policy.active():
            if frozen is None and may_reuse(policy, experience, train):
                sampled = reuse_sampled(policy, learner, experience, train, layout)
                if sampled is not None:
                    self._compared[policy.name] = sampled.metrics
                    return sampled.scores
                log.warning("engine.scored_again", policy=policy.name, reason="sampler and learner differ")
            return score_policy(policy.name, learner, frozen, experience, layout=layout, device=self._device)

    def _predicting(self, policy: Policy) -> Callable[..., Any]:
        """The `LogprobModel` of a policy, while the engine is open."""
        from mappa_engine.learning.logprob_model import LogprobModel

        return self._worker.until_closed(LogprobModel(policy.model, policy.value_head))

    def _layout(self, policy: Policy) -> BatchLayout:
        """Micro-batches of a policy. A layer that is computed again in the backward pass takes no keys and values."""
        from mappa_engine.learning.batching import BatchLayout

        shares = is_large(policy.base.weights) and not self._options.gradient_checkpointing
        return BatchLayout("padded", self._require_train().micro_tokens, shares_prefixes=shares)

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        """Take the optimiser steps of one iteration; return metrics per policy.

        `loss`, `grad_norm` are means over the steps, `lr` is the last step's; `kl` (k3, from the reference) and
        `entropy` (mean of -log p; `entropy_full` over the vocabulary with an entropy bonus) are nats per token;
        `ratio_mean`, `ratio_max` are of tokens, new over old; `mismatch_*`, `ess` and `correction_share` compare the
        sampler's log-probabilities with the learner's (`learning.importance_weights`), on a few rows where the former
        were taken for the latter (`local.sampled_scores`); `idle_rows`, of a large model, counts the rows
        without a gradient, which were not computed; `skipped` counts the steps whose loss or
        gradient was not finite: they update no weight.
        """
        async with self._weights_lock:
            return await self._worker.run(self._update, experience, advantages, loss, progress)

    def _update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> dict[str, dict[str, float]]:
        from mappa_engine.learning.activation_checkpointing import activation_checkpointing
        from mappa_engine.learning.update import PolicyUpdate
        from mappa_engine.local.learner import LocalLearner

        train, metrics = self._require_train(), {}
        for name in experience.policies:
            policy = self._policy(name)
            if policy.optimiser is None:
                raise EngineError(
                    f"policy {name!r} is frozen, yet there is experience to train it on: leave its rows out, or "
                    f"set policies.{name}.kind"
                )
            learner = LocalLearner(policy, policy.optimiser, self._predicting(policy))
            layout, large = self._layout(policy), is_large(policy.base.weights)
            update = PolicyUpdate(learner, experience, advantages, loss, train, layout=layout, skips_idle=large)
            recomputed = activation_checkpointing if self._options.gradient_checkpointing else nullcontext
            with policy.active(), recomputed(policy.model):
                metrics[name] = update.run(progress, seed=self._seed) | dict(self._compared.pop(name, {}))
        return metrics

    async def publish(self) -> Mapping[str, Receipt]:
        """Publish the current weights: give them a version number and a checksum."""
        return await self._worker.run(self._publish)

    def _publish(self) -> dict[str, Receipt]:
        receipts = {name: policy.publish() for name, policy in self._policies.items()}
        self._update_sampler_versions()
        return receipts

    def _update_sampler_versions(self) -> None:
        for name, decoder in self._decoders.items():
            decoder.version = self._policies[name].version

    def checkpoint_bytes(self, dtype: str) -> int | None:
        """Compute the size of what `save` writes."""
        import torch

        return sum(policy.checkpoint_bytes(getattr(torch, dtype)) for policy in self._policies.values())

    async def save(self, folder: Path, *, dtype: str = "float32") -> None:
        """Write weights and optimiser of every trained policy to a subfolder of its name, weights of full policies in
        `dtype`. Sampling goes on meanwhile; an update waits."""
        async with self._weights_lock:
            await asyncio.to_thread(self._save, folder, dtype)

    def _save(self, folder: Path, dtype: str) -> None:
        import torch

        for name, policy in self._policies.items():
            policy.save(folder / name, getattr(torch, dtype))
        if self._compute is not None:
            self._compute.write(folder)

    async def load(self, folder: Path) -> None:
        """Restore what `save` wrote. Raises RunError if it does not match the policies."""
        async with self._weights_lock:
            await self._worker.run(self._load, folder)

    def _load(self, folder: Path) -> None:
        self._take_again(ComputeSettings.read(folder))
        for name, policy in self._policies.items():
            policy.load(folder / name)
        self._update_sampler_versions()

    def _take_again(self, stored: ComputeSettings | None) -> None:
        """Compute with what a checkpoint was computed with, where the options leave it open."""
        import torch

        if stored is None or self._compute is None:
            return
        compute = ComputeSettings(
            threads=stored.threads if self._options.threads == AUTO else self._compute.threads,
            dtype=stored.dtype if self._options.dtype == AUTO else self._compute.dtype,
        )
        if compute.dtype != self._compute.dtype:
            self._build(self._load_bases(compute.dtype), compute)
        torch.set_num_threads(compute.threads)
        self._compute = compute

    async def close(self) -> None:
        """Stop the thread and release all weights."""
        await self._teachers.close()
        await self._worker.close()
        for mapping in (self._policies, self._decoders, self._samplers):
            mapping.clear()

    @property
    def _device(self) -> torch.device:
        import torch

        name = self._options.device
        if name == "cuda" and not torch.cuda.is_available():
            raise ConfigError("engine.options.device is cuda, and torch sees no GPU; use auto or cpu")
        return torch.device("cuda" if name == "auto" and torch.cuda.is_available() else name.replace("auto", "cpu"))

    def _policy(self, name: str) -> Policy:
        if name not in self._policies:
            raise EngineError(f"the engine was not opened with a policy {name!r}, only with {sorted(self._policies)}")
        return self._policies[name]

    def _require_train(self) -> TrainSection:
        if self._train is None:
            raise EngineError("the engine was opened for sampling only: to learn, open it with a train section")
        return self._train
