"""Sampler actor: one vLLM engine and its remote methods, which run in several threads."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from mappa_core.engine import EngineError
from mappa_core.sandbox import OwnedFolder
from mappa_engine.arrays import Int32
from mappa_engine.cluster.samplers.messages import GenerationRequest, RequestResult, SamplerConfig
from mappa_engine.cluster.samplers.step_loop import SequenceLogprobs, StepLoop
from mappa_engine.cluster.samplers.weight_loader import BucketQueue
from mappa_engine.cluster.sync.buckets import Bucket, ReceivedTensors
from mappa_engine.cluster.sync.transfer_records import ReceivedWeights
from mappa_engine.cluster.sync.vllm_transfer import START_UPDATE, GpuReceiver

THREADS = 8
"""Methods that may run at once: one waits for results, one receives weights, the rest are short."""


class SamplerServer:
    """One engine. Weights are loaded between `begin_load` and `finish_load`, and used for sampling after `activate`.

    Full weights are loaded while paused. After `begin_load` the engine computes nothing until they are complete: the
    results of a model with a part of its weights look plausible.
    """

    def __init__(self, config: SamplerConfig, *, paused: bool, gpu_numbers: Sequence[str] = ()) -> None:
        """`gpu_numbers` are those of an engine that has several GPUs: Ray lets an actor see one of those that it
        shares."""
        if gpu_numbers:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_numbers)
        self._config = config
        self._is_complete = True
        self._queue: BucketQueue | None = None
        self._adapters = OwnedFolder("mappa-adapters-")
        opened: Future[None] = Future()
        threading.Thread(target=self._run_engine, args=(opened,), name="engine", daemon=True).start()
        opened.result()
        if paused:
            self.pause()

    def _run_engine(self, opened: Future[None]) -> None:
        """Run the engine thread; vLLM is constructed in the thread that uses it."""
        try:
            from mappa_engine.cluster.samplers.vllm_engine import VllmEngine

            self._vllm = VllmEngine(self._config)
            self._step_loop = StepLoop(self._vllm, isolate_waves=self._config.isolate_waves)
            self._gpu_receiver = GpuReceiver(self._vllm.call_workers, self._complete_load)
        except BaseException as error:  # noqa: BLE001 - the constructor raises it
            opened.set_exception(error)
            return
        opened.set_result(None)
        self._step_loop.run_forever()

    def submit(self, *wave: GenerationRequest) -> None:
        """Submit requests as one wave; `take_results` returns their results."""
        self._step_loop.submit(wave)

    def take_results(self, wait_s: float) -> tuple[RequestResult, ...]:
        """Return the results since the last call; waits up to `wait_s` seconds for one."""
        return self._step_loop.take_results(wait_s)

    def abort(self, *ids: str) -> None:
        """Abort requests whose results are not needed any more."""
        self._step_loop.start(self._step_loop.abort, ids)

    def pause(self) -> None:
        """Stop decoding; requests are kept, and recomputed from their tokens on resume. Cancels a load that broke
        off."""
        self._cancel_load()
        self._step_loop.run(self._step_loop.pause)

    def resume(self) -> None:
        """Resume decoding. Raises EngineError while the weights are incomplete."""
        self._check_complete()
        self._step_loop.run(self._step_loop.resume)

    def begin_load(self, policy: str, version: int, adapter: Mapping[str, Any] | None) -> None:
        """Start to load a version from buckets, and cancel a load that broke off. `adapter` is the adapter_config.json
        of LoRA weights, None for full weights."""
        self._cancel_load()
        if adapter is None and not self._step_loop.paused:
            raise EngineError(f"full weights of policy {policy!r} are loaded while the engine is paused")
        queue = self._queue = BucketQueue()
        if adapter is None:
            self._is_complete = False
            queue.outcome = self._step_loop.start(self._load_full, queue, version)
        else:
            queue.outcome = Future()
            threading.Thread(target=self._load_adapter, args=(queue, policy, version, adapter), daemon=True).start()

    def load_bucket(self, bucket: Bucket) -> None:
        """Load the next bucket. Returns as soon as there is room for another."""
        self._current_queue().put(bucket)

    def transfer(self, method: str, arguments: Mapping[str, Any]) -> None:
        """Run one of vLLM's calls of a transfer from GPU to GPU, while paused."""
        if method == START_UPDATE:
            # Set before anything is changed, and again only by a complete load: until then the engine gives no tokens.
            self._is_complete = False
            self._step_loop.run(self._vllm.discard_partial_load)
        self._step_loop.run(self._gpu_receiver.handle_call, method, arguments)

    def finish_load(self) -> ReceivedWeights:
        """Complete the load; returns what was loaded, and the version that labels tokens once activated."""
        if self._queue is None and self._config.transport != "store":
            return self._gpu_receiver.received_record()
        received: ReceivedWeights = self._current_queue().finish()
        self._queue = None
        return received

    def logprobs(self, policy: str, version: int, sequences: Sequence[Int32]) -> SequenceLogprobs:
        """Compute with this version, also while paused, for each sequence (T,), the log-probabilities (T - 1,) of every
        token after the first, at temperature 1."""
        self._check_complete()
        return self._step_loop.logprobs(policy, version, sequences)

    def activate(self, policy: str, version: int) -> None:
        """Sample with this verified version from now on. Full weights end the pause."""
        self._check_complete()
        if policy in self._config.adapter_policies:
            self._step_loop.run(self._vllm.activate_adapter, policy, version)
            for folder in self._step_loop.run(self._vllm.drop_unused_adapters):
                shutil.rmtree(folder)
        else:
            self._step_loop.run(self._step_loop.resume)

    def sleep(self) -> None:
        """Free the GPU's memory, after `pause`. Does nothing on a CPU, where vLLM has no sleep mode."""
        if self._config.device == "cuda":
            self._step_loop.run(self._vllm.sleep)

    def wake(self, tag: str) -> None:
        """Allocate GPU memory again: weights before a load, kv_cache before `activate`. Does nothing on a CPU."""
        if self._config.device == "cuda":
            self._step_loop.run(self._vllm.wake, tag)

    def _load_full(self, queue: BucketQueue, version: int) -> ReceivedWeights:
        begun = time.perf_counter()
        received = ReceivedTensors(self._config.tied)
        self._vllm.reload_weights(received.tensors(queue.received_buckets()))
        self._complete_load(version)
        return self._received_weights(received, self._vllm.version, begun)

    def _complete_load(self, version: int) -> None:
        self._vllm.reset_prefix_cache()
        self._vllm.set_version(version)
        self._is_complete = True

    def _load_adapter(self, queue: BucketQueue, policy: str, version: int, adapter: Mapping[str, Any]) -> None:
        from safetensors.torch import save_file

        try:
            begun = time.perf_counter()
            received = ReceivedTensors({})
            folder = Path(tempfile.mkdtemp(dir=self._adapters.path))
            tensors = {name: tensor.clone() for name, tensor in received.tensors(queue.received_buckets())}
            save_file(tensors, folder / "adapter_model.safetensors")
            (folder / "adapter_config.json").write_text(json.dumps(dict(adapter)))
            self._step_loop.run(self._vllm.stage_adapter, policy, version, str(folder))
            queue.outcome.set_result(self._received_weights(received, version, begun))
        except Exception as error:  # noqa: BLE001 - `put` and `finish` raise it
            queue.outcome.set_exception(error)

    def _received_weights(self, received: ReceivedTensors, version: int, begun: float) -> ReceivedWeights:
        return ReceivedWeights(
            names=tuple(received.names),
            checksums=tuple(received.checksums),
            version=version,
            seconds=time.perf_counter() - begun,
        )

    def _cancel_load(self) -> None:
        if self._queue is not None:
            self._queue.cancel()
            self._queue = None

    def _current_queue(self) -> BucketQueue:
        if self._queue is None:
            raise EngineError("a bucket of weights came before `begin_load`, or after the load had ended")
        return self._queue

    def _check_complete(self) -> None:
        if not self._is_complete:
            raise EngineError("the last weights did not arrive whole; they must be loaded in full first")
