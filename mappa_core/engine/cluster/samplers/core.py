"""vLLM in this process: the one module, beside its scheduler, that speaks to it. Used by one thread."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from vllm import SamplingParams
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.inputs.engine import tokens_input
from vllm.lora.request import LoRARequest
from vllm.model_executor.model_loader.reload import layerwise
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.llm_engine import LLMEngine

from mappa_core.engine.cluster.samplers.scheduler import HoldingScheduler
from mappa_core.engine.cluster.samplers.values import Drawn, Request, Setup
from mappa_core.errors import ConfigError, EngineError
from mappa_core.records import Float32, Int32, VersionSpan

# Adapters on the head would break prompt log-probabilities of vLLM on CPUs, so its other layers are named.
_LORA_LAYERS = ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"]
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
_SCORED = "score/"


class Core:
    """One engine of vLLM: requests are added, `step` computes one token of each, finished ones come out of it."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        try:
            self._engine = LLMEngine.from_engine_args(_arguments(setup))
        except ValueError as error:
            raise ConfigError(
                f"{setup.model}: vLLM cannot open it with a window of {setup.window} tokens and "
                f"{setup.kv_cache_bytes >> 20} MB for keys and values. ({error})"
            ) from error
        self._scheduler: HoldingScheduler = self._engine.engine_core.engine_core.scheduler
        self._vocabulary: int = self._engine.model_config.get_vocab_size()
        self._whole = _keep_whole_logprobs(self._engine)
        self._adapters: dict[str, _Adapter] = {}
        self._staged: dict[str, _Adapter] = {}
        self._retired: list[_Adapter] = []
        self._numbers = itertools.count(1)
        self._asked: dict[str, tuple[float, _Adapter | None]] = {}
        self.label(0)

    @property
    def active(self) -> bool:
        """Whether anything is under way that is not set aside."""
        return bool(self._scheduler.has_requests())

    @property
    def version(self) -> int:
        """Of the model's own weights."""
        return int(self._engine.get_weight_version())

    def label(self, version: int) -> None:
        """Name the model's weights: tokens sampled from now on are of `version`."""
        self._engine.set_weight_version(str(version))

    def add(self, request: Request) -> None:
        """Begin a request. Raises ValueError where vLLM refuses it, EngineError where its policy has no weights yet."""
        sampling = request.sampling
        if not self._whole and (sampling.top_p < 1.0 or sampling.top_k > 0):
            raise ConfigError("with this build of vLLM sampling.top_p must be 1 and sampling.top_k 0")
        parameters = SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            stop_token_ids=sorted(request.stops),
            ignore_eos=True,
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        adapter = self._adapter(request.policy)
        self._asked[request.id] = time.perf_counter(), adapter
        try:
            self._add(request.id, request.prompt, parameters, adapter)
        except ValueError:
            del self._asked[request.id]
            raise

    def score(self, key: str, policy: str, version: int, sequence: Int32) -> None:
        """Begin to compute, by one version of the policy, how likely every token of `sequence` after its first is."""
        parameters = SamplingParams(
            max_tokens=1,
            prompt_logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        if policy not in self._setup.policies and version != self.version:
            raise EngineError(f"the engine has version {self.version} of policy {policy!r}, not {version}")
        adapter = self._one(policy, version) if policy in self._setup.policies else None
        self._add(_SCORED + key, sequence, parameters, adapter)

    def _add(self, key: str, tokens: Int32, parameters: SamplingParams, adapter: _Adapter | None) -> None:
        # Without a tokenizer vLLM looks up whatever it gets, and fails in the midst of everyone's step.
        if tokens.min() < 0 or tokens.max() >= self._vocabulary:
            raise ValueError(
                f"a prompt has tokens from 0 to {self._vocabulary - 1}, not {tokens.min()} to {tokens.max()}"
            )
        lora = None if adapter is None else adapter.lora
        self._engine.add_request(key, tokens_input(tokens.tolist()), parameters, lora_request=lora)

    def _adapter(self, policy: str) -> _Adapter | None:
        if policy in self._setup.policies and policy not in self._adapters and not self._setup.bare:
            raise EngineError(f"the sampler of policy {policy!r} has no weights yet: they were never published")
        return self._adapters.get(policy)

    def step(self) -> tuple[list[tuple[str, Drawn]], list[tuple[str, Float32]]]:
        """Compute once; what this finished: completions and scores, by id."""
        drawn, scored = [], []
        for output in self._engine.step():
            if not output.finished:
                continue
            if output.request_id.startswith(_SCORED):
                scored.append((output.request_id.removeprefix(_SCORED), _scores(output)))
            else:
                drawn.append((output.request_id, self._drawn(output)))
        return drawn, scored

    def _drawn(self, output: RequestOutput) -> Drawn:
        begun, adapter = self._asked.pop(output.request_id)
        (completion,) = output.outputs
        return Drawn(
            tokens=np.array(completion.token_ids, dtype=np.int32),
            logprobs=np.array(completion.logprobs.logprobs, dtype=np.float32),
            finish=completion.finish_reason,
            versions=_spans(completion, adapter),
            seconds=time.perf_counter() - begun,
        )

    def abort(self, ids: Sequence[str]) -> None:
        """Forget requests; nothing comes out of them any more."""
        self._engine.abort_request([key for key in ids if self._asked.pop(key, None) is not None])

    def hold(self) -> None:
        """Set everything under way aside; see `HoldingScheduler`."""
        self._scheduler.hold()

    def release(self) -> None:
        """Go on with what was set aside."""
        self._scheduler.release()

    def forget_prefixes(self) -> None:
        """Empty the prefix cache; nothing may be under way."""
        if not self._engine.reset_prefix_cache():
            raise EngineError("vLLM kept its prefix cache, which is of other weights")

    def reload(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Load all weights, in the names and shapes of the model's checkpoint, in the order of its layers."""
        if self._setup.tensor_parallel > 1:
            raise EngineError("an engine of several GPUs gets its weights by nccl or ipc (engine.options.transport)")
        try:
            self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
        except BaseException:
            self._engine.apply_model(_end_reload)
            raise

    def stage(self, policy: str, version: int, folder: str) -> None:
        """Load the adapter in `folder`, which stays there until the version is dropped; nobody samples by it yet.

        Number, name and folder are new with every call: vLLM knows adapters, and what it computed with them, by these.
        """
        number = next(self._numbers)
        lora = LoRARequest(f"{policy}@v{version}.{number}", number, folder)
        if not self._engine.add_lora(lora):
            raise EngineError(f"vLLM did not take version {version} of the adapter of policy {policy!r} from {folder}")
        if policy in self._staged:
            self._retired.append(self._staged[policy])
        self._staged[policy] = _Adapter(policy, version, lora)

    def admit(self, policy: str, version: int) -> None:
        """Answer further requests of `policy` with the adapter that was staged. Requests under way keep theirs."""
        adapter = self._one(policy, version)
        if adapter is self._staged.pop(policy, None):
            if policy in self._adapters:
                self._retired.append(self._adapters[policy])
            self._adapters[policy] = adapter

    def drop_retired(self) -> list[str]:
        """Let go of adapters that no request uses any more; the folders that they lie in."""
        used = {id(adapter) for _, adapter in self._asked.values()}
        idle = [one for one in self._retired if id(one) not in used]
        for adapter in idle:
            self._engine.remove_lora(adapter.lora.lora_int_id)
            self._retired.remove(adapter)
        return [one.lora.lora_path for one in idle]

    def _one(self, policy: str, version: int) -> _Adapter:
        for known in (self._staged, self._adapters):
            if policy in known and known[policy].version == version:
                return known[policy]
        raise EngineError(f"the engine has no version {version} of the adapter of policy {policy!r}")

    def workers(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Call a method of all workers, for weights that come from GPU to GPU. Untried: there was no GPU."""
        self._engine.collective_rpc(method, kwargs=dict(arguments))

    def sleep(self) -> None:
        """Give the memory of weights, keys and values away. Untried: there was no GPU."""
        self._engine.sleep(level=1 if self._setup.policies else 2, mode="keep")

    def wake(self, tag: str) -> None:
        """Take memory again for `tag`, weights or kv_cache. Untried: there was no GPU."""
        self._engine.wake_up([tag])


class _Adapter:
    """One version of a policy's adapter."""

    def __init__(self, policy: str, version: int, lora: LoRARequest) -> None:
        self.policy = policy
        self.version = version
        self.lora = lora


class _WholeLogprobs(nn.Module):
    """Draws as vLLM does, yet tells log-probabilities from before the cut to top_k and top_p, as learners compute
    them."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        inner.logprobs_mode = "raw_logprobs"  # what the inner one would compute is not used
        self.inner = inner

    def forward(self, logits: Tensor, generators: Any, k: Any, p: Any) -> tuple[Tensor, Tensor]:
        logprobs = logits.log_softmax(dim=-1, dtype=torch.float32)
        tokens, _ = self.inner(logits, generators, k, p)
        return tokens, logprobs


def _keep_whole_logprobs(engine: LLMEngine) -> bool:
    """Put `_WholeLogprobs` into the engine; whether that was possible."""
    worker: Any = getattr(engine.model_executor, "driver_worker", None)
    sampler: Any = getattr(getattr(worker, "model_runner", None), "sampler", None)
    if not hasattr(sampler, "topk_topp_sampler"):
        return False
    sampler.topk_topp_sampler = _WholeLogprobs(sampler.topk_topp_sampler)
    return True


def _end_reload(model: nn.Module) -> None:
    """Clear away what a load that failed left in vLLM: it would be counted, and loaded, with the next one."""
    for layer in model.modules():
        loading = layerwise.get_layerwise_info(layer)
        if loading.can_load():
            layerwise._place_kernel_tensors(layer, loading)
            loading.reset()
    layerwise.LOADING_LAYERS.clear()


def _arguments(setup: Setup) -> EngineArgs:
    gpu = setup.device == "cuda"
    adapters: dict[str, Any] = {}
    if setup.policies:
        rank = next((one for one in _LORA_RANKS if one >= setup.lora_rank), None)
        if rank is None:
            raise ConfigError(f"an adapter of rank {setup.lora_rank} is larger than the {_LORA_RANKS[-1]} of vLLM")
        adapters = {
            "enable_lora": True,
            "max_lora_rank": rank,
            "max_loras": setup.adapters,
            "max_cpu_loras": 2 * setup.adapters,
            "lora_target_modules": None if gpu else _LORA_LAYERS,
        }
    return EngineArgs(
        model=setup.model,
        skip_tokenizer_init=True,
        generation_config="vllm",
        dtype=setup.dtype,
        seed=setup.seed,
        max_model_len=setup.window,
        kv_cache_memory_bytes=setup.kv_cache_bytes,
        max_num_seqs=setup.max_batch,
        enable_prefix_caching=setup.prefix_caching,
        # After each piece of a prompt vLLM winds the request's generator back, and those of CPUs cannot be.
        enable_chunked_prefill=None if gpu else False,
        tensor_parallel_size=setup.tensor_parallel,
        distributed_executor_backend="uni" if setup.tensor_parallel == 1 else "mp",
        enforce_eager=not gpu,
        enable_sleep_mode=gpu and setup.sleeps,
        logprobs_mode="processed_logprobs",
        scheduler_cls=HoldingScheduler,
        async_scheduling=False,
        disable_log_stats=True,
        weight_transfer_config=WeightTransferConfig(backend=setup.transport) if setup.transport != "store" else None,
        **adapters,
    )


def _scores(output: RequestOutput) -> Float32:
    return np.array(output.prompt_logprobs.logprobs, dtype=np.float32)


def _spans(completion: CompletionOutput, adapter: _Adapter | None) -> tuple[VersionSpan, ...]:
    if adapter is not None:
        return (VersionSpan(version=adapter.version, start=0, end=len(completion.token_ids)),)
    return tuple(
        VersionSpan(version=int(span.version), start=span.start, end=span.end) for span in completion.weight_versions
    )
