"""The one thread that computes: the event loop never waits for torch."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

from mappa_core.engine.local.decoder import Decoder, Request, Wave
from mappa_core.records import Completion

P = ParamSpec("P")
T = TypeVar("T")
Finished = list[tuple[Request, Completion]]


class Worker:
    """Runs jobs alone and, between them, lets all decoders with requests take steps in turn.

    A job waits until the rows that are being decoded are done; requests that come meanwhile wait until the job is done.
    So no row ever meets two versions of its weights.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mappa-local")
        self._decoders: list[Decoder] = []
        self._jobs: set[Future[Any]] = set()
        self._decoding = False

    def add(self, decoder: Decoder) -> None:
        """Let `decoder` take its turn."""
        self._decoders.append(decoder)

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `job`, which has the thread to itself."""
        future = self._thread.submit(job, *args, **kwargs)
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        return await asyncio.wrap_future(future)

    def submit(self, decoder: Decoder, wave: Wave) -> None:
        """Have `wave` decoded. Called on the event loop of its callers."""
        decoder.waves.append(wave)
        if not self._decoding:
            self._decoding = True
            self._thread.submit(self._decode).add_done_callback(self._decoded)

    async def close(self) -> None:
        """End the thread once it is idle."""
        await asyncio.to_thread(self._thread.shutdown)

    def _decode(self) -> None:
        while True:
            admit = not self._jobs
            busy = [one for one in self._decoders if one.active or (admit and one.pending)]
            if not busy:
                return
            for decoder in busy:
                _deliver(decoder.step(admit=admit))

    def _decoded(self, outcome: Future[None]) -> None:
        """What is left after `_decode` ended: callers to tell of its failure, or requests that wait behind a job."""
        self._decoding = False
        error = outcome.exception()
        if error is not None:
            for decoder in self._decoders:
                for request in decoder.abandon():
                    request.answer.get_loop().call_soon_threadsafe(_fail, request, error)
        if any(decoder.pending for decoder in self._decoders):
            self._decoding = True
            self._thread.submit(self._decode).add_done_callback(self._decoded)


def _deliver(finished: Finished) -> None:
    """Hand completions to their callers, all of one event loop in one go."""
    by_loop: dict[asyncio.AbstractEventLoop, Finished] = defaultdict(list)
    for request, completion in finished:
        by_loop[request.answer.get_loop()].append((request, completion))
    for loop, answers in by_loop.items():
        loop.call_soon_threadsafe(_answer, answers)


def _answer(finished: Finished) -> None:
    for request, completion in finished:
        if not request.answer.done():
            request.answer.set_result(completion)


def _fail(request: Request, error: BaseException) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
