"""The actor that samples: one engine of vLLM, and what the driver may ask of it. Its methods run in several threads."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from mappa_core.engine.cluster.samplers.loading import Feed
from mappa_core.engine.cluster.samplers.stepping import Scores, Stepping
from mappa_core.engine.cluster.samplers.values import Answer, Request, Setup
from mappa_core.engine.cluster.sync.buckets import Arrivals, Bucket
from mappa_core.engine.cluster.sync.gpu import STARTS, Taker
from mappa_core.engine.cluster.sync.receipt import Received
from mappa_core.errors import EngineError
from mappa_core.records import Int32

THREADS = 8
"""Methods that may run at once: one waits for answers, one takes weights, the rest are short."""


class SamplerServer:
    """One engine. Weights are loaded between `begin` and `finish`, and sampled by from `admit` on.

    Full weights are loaded while paused. From `begin` on the engine computes nothing until they have arrived whole: a
    model with a part of its weights computes numbers that look like any others.
    """

    def __init__(self, setup: Setup, *, paused: bool) -> None:
        self._setup = setup
        self._complete = True
        self._feed: Feed | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="mappa-adapters-"))
        opened: Future[None] = Future()
        threading.Thread(target=self._live, args=(opened,), name="engine", daemon=True).start()
        opened.result()
        if paused:
            self.pause()

    def _live(self, opened: Future[None]) -> None:
        """The life of the thread that computes; vLLM is built where it is used."""
        try:
            from mappa_core.engine.cluster.samplers.core import Core

            self._core = Core(self._setup)
            self._stepping = Stepping(self._core, apart=self._setup.apart)
            self._taker = Taker(self._core.workers, self._transferred)
        except BaseException as error:  # noqa: BLE001 - it is raised by the constructor
            opened.set_exception(error)
            return
        opened.set_result(None)
        self._stepping.work()

    def submit(self, *wave: Request) -> None:
        """Have requests decoded together; `finished` gives their answers."""
        self._stepping.submit(wave)

    def finished(self, wait_s: float) -> tuple[Answer, ...]:
        """Answers since the last call; waits for one, `wait_s` seconds at most."""
        return self._stepping.finished(wait_s)

    def forget(self, *ids: str) -> None:
        """Drop requests that nobody waits for any more."""
        self._stepping.start(self._stepping.forget, ids)

    def pause(self) -> None:
        """Stop decoding; requests stay, and are computed anew from their tokens when it goes on. Ends a load that broke
        off."""
        self._drop_load()
        self._stepping.run(self._stepping.pause)

    def resume(self) -> None:
        """Go on decoding. Raises EngineError while the weights are not whole."""
        self._check_complete()
        self._stepping.run(self._stepping.resume)

    def begin(self, policy: str, version: int, adapter: Mapping[str, Any] | None) -> None:
        """Expect the buckets of this version, and forget those of a load that broke. `adapter` is the
        adapter_config.json of LoRA weights, None where they are full."""
        self._drop_load()
        if adapter is None and not self._stepping.paused:
            raise EngineError(f"full weights of policy {policy!r} are loaded while the engine is paused")
        feed = self._feed = Feed()
        if adapter is None:
            self._complete = False
            feed.outcome = self._stepping.start(self._load, feed, version)
        else:
            feed.outcome = Future()
            threading.Thread(target=self._gather, args=(feed, policy, version, adapter), daemon=True).start()

    def take(self, bucket: Bucket) -> None:
        """The next bucket. Returns as soon as there is room for another."""
        self._expect().take(bucket)

    def transfer(self, method: str, arguments: Mapping[str, Any]) -> None:
        """One of vLLM's calls of a transfer from GPU to GPU, while paused. Untried: there was no GPU."""
        if method == STARTS:
            self._complete = False
        self._stepping.run(self._taker.take, method, arguments)

    def finish(self) -> Received:
        """Nothing more comes: what was loaded, and the version that tokens are labelled with when it is admitted."""
        if self._feed is None and self._setup.transport != "store":
            return self._taker.received()
        received: Received = self._expect().end()
        self._feed = None
        return received

    def logprobs(self, policy: str, version: int, sequences: Sequence[Int32]) -> Scores:
        """By the weights of this version, also while paused: of each sequence (T,) the log-probability of every token
        after the first, (T - 1,), at temperature 1."""
        self._check_complete()
        return self._stepping.logprobs(policy, version, sequences)

    def admit(self, policy: str, version: int) -> None:
        """This version is verified: sample by it from now on. Full weights end the pause."""
        self._check_complete()
        if policy in self._setup.policies:
            self._stepping.run(self._core.admit, policy, version)
            for folder in self._stepping.run(self._core.drop_retired):
                shutil.rmtree(folder)
        else:
            self._stepping.run(self._stepping.resume)

    def sleep(self) -> None:
        """Give the GPU's memory away, after `pause`. On a CPU nothing happens: vLLM has nothing to give there."""
        if self._setup.device == "cuda":
            self._stepping.run(self._core.sleep)

    def wake(self, tag: str) -> None:
        """Take the GPU's memory again: weights before they are loaded, kv_cache before `admit`. On a CPU nothing."""
        if self._setup.device == "cuda":
            self._stepping.run(self._core.wake, tag)

    def _load(self, feed: Feed, version: int) -> Received:
        begun = time.perf_counter()
        arrivals = Arrivals(self._setup.tied)
        self._core.reload(arrivals.tensors(feed.arrivals()))
        self._transferred(version)
        return self._received(arrivals, self._core.version, begun)

    def _transferred(self, version: int) -> None:
        self._core.forget_prefixes()
        self._core.label(version)
        self._complete = True

    def _gather(self, feed: Feed, policy: str, version: int, adapter: Mapping[str, Any]) -> None:
        from safetensors.torch import save_file

        try:
            begun = time.perf_counter()
            arrivals = Arrivals({})
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            tensors = {name: tensor.clone() for name, tensor in arrivals.tensors(feed.arrivals())}
            save_file(tensors, folder / "adapter_model.safetensors")
            (folder / "adapter_config.json").write_text(json.dumps(dict(adapter)))
            self._stepping.run(self._core.stage, policy, version, str(folder))
            feed.outcome.set_result(self._received(arrivals, version, begun))
        except Exception as error:  # noqa: BLE001 - it is raised where weights are brought
            feed.outcome.set_exception(error)

    def _received(self, arrivals: Arrivals, version: int, begun: float) -> Received:
        return Received(
            names=tuple(arrivals.names),
            checksums=tuple(arrivals.checksums),
            version=version,
            seconds=time.perf_counter() - begun,
        )

    def _drop_load(self) -> None:
        if self._feed is not None:
            self._feed.give_up()
            self._feed = None

    def _expect(self) -> Feed:
        if self._feed is None:
            raise EngineError("weights came that no `begin` had announced")
        return self._feed

    def _check_complete(self) -> None:
        if not self._complete:
            raise EngineError("the last weights did not arrive whole; they must be loaded in full first")
