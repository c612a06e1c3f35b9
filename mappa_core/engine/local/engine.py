"""The engine `local`: samplers and learners share their modules, so publishing copies nothing."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from mappa_core.config.schema import TrainSection
from mappa_core.engine.local.decoder import Decoder
from mappa_core.engine.local.learner import Scores, Update, score
from mappa_core.engine.local.models import Source, load_source
from mappa_core.engine.local.policy import Policy
from mappa_core.engine.local.sampler import LocalSampler
from mappa_core.engine.local.worker import Worker
from mappa_core.engine.options import LocalOptions
from mappa_core.engine.schedule import check_schedule
from mappa_core.errors import ConfigError, EngineError
from mappa_core.experience import Advantages, Experience, Receipt
from mappa_core.protocols import Loss, PolicySpec

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class LocalEngine:
    """All policies in this process. One thread computes; the event loop is never blocked.

    Policies of one source start equal and share one frozen reference. Threads and determinism are settings of the whole
    process; the engine that was opened last decides.
    """

    def __init__(self, options: LocalOptions) -> None:
        if options.dtype not in _DTYPES:
            raise ConfigError(f"engine.options.dtype is {options.dtype!r}; it can be {' or '.join(_DTYPES)}")
        for name in ("threads", "max_batch", "prefill_tokens"):
            if getattr(options, name) < 1:
                raise ConfigError(f"engine.options.{name} is {getattr(options, name)}; it is at least 1")
        self._options = options
        self._device = _device(options.device)
        self._worker = Worker()
        self._policies: dict[str, Policy] = {}
        self._decoders: dict[str, Decoder] = {}
        self._samplers: dict[str, LocalSampler] = {}
        self._train: TrainSection | None = None
        self._seed = 0

    @property
    def deterministic(self) -> bool:
        """Whether equal requests in equal waves give bit-equal completions."""
        return self._options.deterministic

    async def open(self, policies: Sequence[PolicySpec], train: TrainSection | None, *, seed: int) -> None:
        """Load every policy. Raises ModelError where a model cannot be used."""
        if train is not None:
            check_schedule(train)
        self._train, self._seed = train, seed
        await self._worker.run(self._open, policies)

    def _open(self, policies: Sequence[PolicySpec]) -> None:
        options = self._options
        torch.set_num_threads(options.threads)
        if options.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            # Some operations have no bit-equal form on a GPU; there the promise is the CPU's no longer.
            torch.use_deterministic_algorithms(True, warn_only=self._device.type != "cpu")
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        sources: dict[str, Source] = {}
        kept = {spec.model for spec in policies if self._train is not None or spec.kind == "frozen"}
        for spec in policies:
            if spec.model not in sources:
                sources[spec.model] = load_source(spec.model, device=self._device, dtype=_DTYPES[options.dtype])
            source = sources[spec.model]
            # Without learners and frozen policies nobody needs the source's own module: the first policy takes it.
            share = spec.kind == "frozen" or spec.model not in kept
            kept.add(spec.model)
            policy = Policy(spec, source, source.model if share else copy.deepcopy(source.model), self._train)
            decoder = Decoder(
                policy.model,
                source,
                max_batch=options.max_batch,
                prefill_tokens=options.prefill_tokens,
                apart=options.deterministic,
            )
            self._worker.add(decoder)
            self._policies[spec.name] = policy
            self._decoders[spec.name] = decoder
            self._samplers[spec.name] = LocalSampler(source, decoder, self._worker, spec.template_kwargs)

    def sampler(self, policy: str) -> LocalSampler:
        """The sampler of `policy`."""
        self._policy(policy)
        return self._samplers[policy]

    async def score(self, experience: Experience) -> Experience:
        """Fill old_logprobs, ref_logprobs (and values, NaN for policies without a value head) of all rows."""
        return await self._worker.run(self._score, experience)

    def _score(self, experience: Experience) -> Experience:
        scores = Scores.empty(len(experience.tokens))
        for name in experience.policies:
            score(self._policy(name), experience, scores, budget=self._learning().micro_tokens)
        has_values = any(self._policy(name).value_head is not None for name in experience.policies)
        return replace(
            experience,
            old_logprobs=scores.logprobs,
            ref_logprobs=scores.ref_logprobs,
            values=scores.values if has_values else None,
        )

    async def update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> Mapping[str, Mapping[str, float]]:
        """Take the optimiser steps of one iteration; metrics per policy.

        `loss`, `grad_norm` are means over the steps, `lr` is the last step's; `kl` (k3, from the reference) and
        `entropy` (mean of -log p) are nats per token; `mismatch_*` compares the sampler's log-probabilities with the
        learner's. Raises EngineError where a loss or a gradient is not finite.
        """
        return await self._worker.run(self._update, experience, advantages, loss, progress)

    def _update(
        self, experience: Experience, advantages: Advantages, loss: Loss, progress: float
    ) -> dict[str, dict[str, float]]:
        train, metrics = self._learning(), {}
        for name in experience.policies:
            policy = self._policy(name)
            if policy.optimiser is None:
                raise EngineError(f"policy {name!r} is frozen, yet there is experience to train it on")
            update = Update(policy, policy.optimiser, experience, advantages, loss, train)
            metrics[name] = update.run(progress, seed=self._seed)
        return metrics

    async def publish(self) -> Mapping[str, Receipt]:
        """Give the weights as they are now a version number and a checksum."""
        return await self._worker.run(self._publish)

    def _publish(self) -> dict[str, Receipt]:
        receipts = {name: policy.publish() for name, policy in self._policies.items()}
        self._tell_versions()
        return receipts

    def _tell_versions(self) -> None:
        for name, decoder in self._decoders.items():
            decoder.version = self._policies[name].version

    async def save(self, folder: Path) -> None:
        """Write every trained policy, weights and optimiser, to a subfolder of its name."""
        await self._worker.run(self._save, folder)

    def _save(self, folder: Path) -> None:
        for name, policy in self._policies.items():
            policy.save(folder / name)

    async def load(self, folder: Path) -> None:
        """Take over what `save` wrote. Raises RunError where it is of other policies."""
        await self._worker.run(self._load, folder)

    def _load(self, folder: Path) -> None:
        for name, policy in self._policies.items():
            policy.load(folder / name)
        self._tell_versions()

    async def export(self, policy: str, folder: Path) -> None:
        """Write one policy as an ordinary Hugging Face folder, without its value head."""
        await self._worker.run(self._policy(policy).export, folder)

    async def close(self) -> None:
        """End the thread and let go of all weights."""
        await self._worker.close()
        for held in (self._policies, self._decoders, self._samplers):
            held.clear()

    def _policy(self, name: str) -> Policy:
        if name not in self._policies:
            raise EngineError(f"the engine was not opened with a policy {name!r}, only with {sorted(self._policies)}")
        return self._policies[name]

    def _learning(self) -> TrainSection:
        if self._train is None:
            raise EngineError("the engine was opened for sampling only")
        return self._train


def _device(name: str) -> torch.device:
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"engine.options.device is {name!r}; it can be auto, cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("engine.options.device is cuda, and torch sees no GPU; use auto or cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
