"""vLLM engine in this process: the only module, beside the scheduler, that calls vLLM. Used by one thread."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor
from transformers import AutoTokenizer
from vllm import SamplingParams
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.inputs.engine import tokens_input
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from mappa_core import ConfigError
from mappa_core.engine import EngineError, Sampling, VersionSpan
from mappa_engine.arrays import Float32, Int32
from mappa_engine.chat import decode_tokens
from mappa_engine.cluster.samplers.messages import Generation, GenerationRequest, SamplerConfig
from mappa_engine.cluster.samplers.sampling_masks import (
    MAX_CANDIDATES,
    mask_candidates,
    read_logprobs,
)
from mappa_engine.cluster.samplers.suspending_scheduler import SuspendingScheduler
from mappa_engine.model_info import load_pretrained
from mappa_engine.stop_texts import has_stop

# Adapters on the output head would break prompt log-probabilities of vLLM on CPUs, so all other layers are listed.
_LORA_LAYERS = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_SCORE_PREFIX = "score/"
_WORKER_EXTENSION = "mappa_engine.cluster.samplers.worker_extension.WorkerExtension"


class VllmEngine:
    """Wraps one vLLM engine: requests are added, and `step` computes one token of each and returns finished ones."""

    def __init__(self, config: SamplerConfig) -> None:
        self._config = config
        try:
            self._engine = LLMEngine.from_engine_args(_engine_args(config))
        except ValueError as error:
            raise ConfigError(
                f"{config.model}: vLLM cannot open it with a window of {config.window} tokens and "
                f"{config.kv_cache_bytes >> 20} MB for keys and values. ({error})"
            ) from error
        self._scheduler: SuspendingScheduler = self._engine.engine_core.engine_core.scheduler
        self._vocabulary: int = self._engine.model_config.get_vocab_size()
        self._adapters: dict[str, _Adapter] = {}
        self._staged: dict[str, _Adapter] = {}
        self._retired: list[_Adapter] = []
        self._numbers = itertools.count(1)
        self._started: dict[str, tuple[float, _Adapter | None, Sampling]] = {}
        self._versions: dict[str, list[int]] = {}
        """Versions of the tokens of running requests with stop texts: vLLM tells them only where it ends a request."""
        self.set_version(0)

    @property
    def active(self) -> bool:
        """Whether any request is running or waiting that is not suspended."""
        return bool(self._scheduler.has_requests())

    @property
    def version(self) -> int:
        """Version of the model's own weights."""
        return int(self._engine.get_weight_version())

    def set_version(self, version: int) -> None:
        """Set the version of the model's weights, with which new tokens are labelled."""
        self._engine.set_weight_version(str(version))

    def add(self, request: GenerationRequest) -> None:
        """Add a request. Raises ValueError where vLLM refuses it, EngineError where its policy has no weights yet."""
        sampling = request.sampling
        parameters = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            stop_token_ids=sorted(request.stops),
            ignore_eos=True,
            logprobs=mask_candidates(sampling, self._vocabulary),
            flat_logprobs=True,
            detokenize=False,
            # Without a tokenizer vLLM knows no stop texts: `step` looks for them in what a request has so far.
            output_kind=RequestOutputKind.CUMULATIVE if sampling.stop else RequestOutputKind.FINAL_ONLY,
        )
        adapter = self._adapter_for(request.policy)
        self._started[request.id] = time.perf_counter(), adapter, sampling
        if sampling.stop:
            self._versions[request.id] = []
        try:
            self._add(request.id, request.prompt, parameters, adapter)
        except ValueError:
            del self._started[request.id]
            self._versions.pop(request.id, None)
            raise

    def score(self, key: str, policy: str, version: int, sequence: Int32) -> None:
        """Add a request for the log-probabilities of `sequence` after its first token, by one version of the policy."""
        parameters = SamplingParams(
            max_tokens=1,
            prompt_logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        if policy not in self._config.adapter_policies and version != self.version:
            raise EngineError(f"the engine has version {self.version} of policy {policy!r}, not {version}")
        adapter = self._find_adapter(policy, version) if policy in self._config.adapter_policies else None
        self._add(_SCORE_PREFIX + key, sequence, parameters, adapter)

    def _add(self, key: str, tokens: Int32, parameters: SamplingParams, adapter: _Adapter | None) -> None:
        # Without a tokenizer vLLM does not check token ids: an invalid one would fail the step of all requests.
        if tokens.min() < 0 or tokens.max() >= self._vocabulary:
            raise ValueError(
                f"a prompt has tokens from 0 to {self._vocabulary - 1}, not {tokens.min()} to {tokens.max()}"
            )
        lora = None if adapter is None else adapter.lora
        self._engine.add_request(key, tokens_input(tokens.tolist()), parameters, lora_request=lora)

    def _adapter_for(self, policy: str) -> _Adapter | None:
        if (
            policy in self._config.adapter_policies
            and policy not in self._adapters
            and not self._config.serve_base_without_adapter
        ):
            raise EngineError(f"the sampler of policy {policy!r} has no weights yet: they were never published")
        return self._adapters.get(policy)

    def step(self) -> tuple[list[tuple[str, Generation]], list[tuple[str, Float32]]]:
        """Run one engine step; returns finished completions and scores, by id."""
        generations, scored = [], []
        for output in self._engine.step():
            if not output.finished and not self._has_stop(output):
                continue
            if output.request_id.startswith(_SCORE_PREFIX):
                scored.append((output.request_id.removeprefix(_SCORE_PREFIX), _prompt_logprobs(output)))
            else:
                generations.append((output.request_id, self._generation(output)))
        return generations, scored

    def _has_stop(self, output: RequestOutput) -> bool:
        """Whether the newest token of a running request completes a stop text; if so, the request is ended."""
        tokens, versions = output.outputs[0].token_ids, self._versions[output.request_id]
        versions += [self.version] * (len(tokens) - len(versions))
        found = has_stop(self._decode, tokens, self._started[output.request_id][2].stop)
        if found:
            self._engine.abort_request([output.request_id])
        return found

    @cached_property
    def _tokenizer(self) -> Any:
        """The tokenizer, which only requests with stop texts need."""
        return load_pretrained(AutoTokenizer, self._config.model, self._config.model, "tokenizer")

    def _decode(self, tokens: Sequence[int]) -> str:
        return decode_tokens(self._tokenizer, tokens)

    def _generation(self, output: RequestOutput) -> Generation:
        begun, adapter, sampling = self._started.pop(output.request_id)
        (completion,) = output.outputs
        versions = self._versions.pop(output.request_id, [])
        logprobs, mask_tokens, mask_sizes = read_logprobs(completion.logprobs, sampling, self._vocabulary)
        return Generation(
            tokens=np.array(completion.token_ids, dtype=np.int32),
            logprobs=logprobs,
            mask_tokens=mask_tokens,
            mask_sizes=mask_sizes,
            finish=completion.finish_reason if output.finished else "stop",
            versions=_version_spans(completion, adapter, versions),
            seconds=time.perf_counter() - begun,
        )

    def abort(self, ids: Sequence[str]) -> None:
        """Abort requests; they return no result."""
        for key in ids:
            self._versions.pop(key, None)
        self._engine.abort_request([key for key in ids if self._started.pop(key, None) is not None])

    def suspend_requests(self) -> None:
        """Suspend all requests; see `SuspendingScheduler`."""
        self._scheduler.suspend_requests()

    def resume_requests(self) -> None:
        """Resume the suspended requests."""
        self._scheduler.resume_requests()

    def reset_prefix_cache(self) -> None:
        """Empty the prefix cache; no request may be running."""
        if not self._engine.reset_prefix_cache():
            raise EngineError("vLLM kept its prefix cache, which is of other weights: a request was still running")

    def reload_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Load all weights, by the names and shapes of the model's checkpoint, in the order of its layers."""
        if self._config.tensor_parallel > 1:
            raise EngineError("an engine of several GPUs gets its weights by nccl or ipc (engine.options.transport)")
        try:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
        except BaseException:
            self.discard_partial_load()
            raise

    def discard_partial_load(self) -> None:
        """Discard what a load, or a transfer from GPU to GPU, that broke off left in the workers."""
        self._engine.collective_rpc("discard_weight_update")

    def stage_adapter(self, policy: str, version: int, folder: str) -> None:
        """Load the adapter in `folder`, which must stay until the version is dropped; it is not used for sampling yet.

        Id, name and folder are new with every call: vLLM identifies adapters and their cached results by these.
        """
        number = next(self._numbers)
        lora = LoRARequest(f"{policy}@v{version}.{number}", number, folder)
        if not self._engine.add_lora(lora):
            raise EngineError(f"vLLM did not take version {version} of the adapter of policy {policy!r} from {folder}")
        if policy in self._staged:
            self._retired.append(self._staged[policy])
        self._staged[policy] = _Adapter(policy, version, lora)

    def activate_adapter(self, policy: str, version: int) -> None:
        """Use the staged adapter for new requests of `policy`. Running requests keep theirs."""
        adapter = self._find_adapter(policy, version)
        if adapter is self._staged.pop(policy, None):
            if policy in self._adapters:
                self._retired.append(self._adapters[policy])
            self._adapters[policy] = adapter

    def drop_unused_adapters(self) -> list[str]:
        """Remove old adapters that no request uses any more; returns their folders."""
        used = {id(adapter) for _, adapter, _ in self._started.values()}
        idle = [adapter for adapter in self._retired if id(adapter) not in used]
        for adapter in idle:
            self._engine.remove_lora(adapter.lora.lora_int_id)
            self._retired.remove(adapter)
        return [adapter.lora.lora_path for adapter in idle]

    def _find_adapter(self, policy: str, version: int) -> _Adapter:
        for known in (self._staged, self._adapters):
            if policy in known and known[policy].version == version:
                return known[policy]
        raise EngineError(f"the engine has no version {version} of the adapter of policy {policy!r}")

    def call_workers(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Call a method of all workers, for transfers from GPU to GPU."""
        self._engine.collective_rpc(method, kwargs=dict(arguments))

    def sleep(self) -> None:
        """Free the GPU memory of weights and KV cache."""
        self._engine.sleep(level=1 if self._config.adapter_policies else 2, mode="keep")

    def wake(self, tag: str) -> None:
        """Allocate GPU memory again for `tag`, weights or kv_cache."""
        self._engine.wake_up([tag])


class _Adapter:
    """One version of a policy's adapter."""

    def __init__(self, policy: str, version: int, lora: LoRARequest) -> None:
        self.policy = policy
        self.version = version
        self.lora = lora


def _engine_args(config: SamplerConfig) -> EngineArgs:
    gpu = config.device == "cuda"
    adapters: dict[str, Any] = {}
    if config.adapter_policies:
        rank = next((rank for rank in _LORA_RANKS if rank >= config.lora_rank), None)
        if rank is None:
            raise ConfigError(f"an adapter of rank {config.lora_rank} is larger than the {_LORA_RANKS[-1]} of vLLM")
        adapters = {
            "enable_lora": True,
            "max_lora_rank": rank,
            "max_loras": config.max_adapters,
            "max_cpu_loras": 2 * config.max_adapters,
            "lora_target_modules": None if gpu else _LORA_LAYERS,
        }
    return EngineArgs(
        model=config.model,
        skip_tokenizer_init=True,
        generation_config="vllm",
        dtype=config.dtype,
        seed=config.seed,
        max_model_len=config.window,
        kv_cache_memory_bytes=config.kv_cache_bytes,
        max_num_seqs=config.max_batch,
        enable_prefix_caching=config.prefix_caching,
        # After each chunk of a prompt vLLM rewinds the request's generator, which CPU generators do not support.
        enable_chunked_prefill=None if gpu else False,
        tensor_parallel_size=config.tensor_parallel,
        distributed_executor_backend="uni" if config.tensor_parallel == 1 else "mp",
        enforce_eager=not gpu,
        enable_sleep_mode=gpu and config.sleep_mode,
        logprobs_mode="processed_logprobs",
        max_logprobs=MAX_CANDIDATES,
        scheduler_cls=SuspendingScheduler,
        # With it a batch is under way between two steps, where weights are loaded: its tokens would be of the old ones,
        # labelled with the new version.
        async_scheduling=False,
        disable_log_stats=True,
        weight_transfer_config=WeightTransferConfig(backend=config.transport) if config.transport != "store" else None,
        worker_extension_cls=_WORKER_EXTENSION,
        **adapters,
        **({"gpu_memory_utilization": config.memory_share} if gpu else {}),
    )


def _prompt_logprobs(output: RequestOutput) -> Float32:
    return np.array(output.prompt_logprobs.logprobs, dtype=np.float32)


def _version_spans(
    completion: CompletionOutput, adapter: _Adapter | None, versions: Sequence[int]
) -> tuple[VersionSpan, ...]:
    """The versions that sampled an action; `versions` are those of its tokens if vLLM did not end it."""
    if adapter is not None:
        return (VersionSpan(version=adapter.version, start=0, end=len(completion.token_ids)),)
    if completion.weight_versions is None:
        runs = [(version, len(list(run))) for version, run in itertools.groupby(versions)]
        ends = list(itertools.accumulate(length for _, length in runs))
        return tuple(
            VersionSpan(version=version, start=end - length, end=end)
            for (version, length), end in zip(runs, ends, strict=True)
        )
    return tuple(
        VersionSpan(version=int(span.version), start=span.start, end=span.end) for span in completion.weight_versions
    )
