"""The compute thread: the event loop never waits for torch."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from mappa_core import MappaError
from mappa_core.engine import Completion, EngineError, EngineLost
from mappa_core.redaction import format_error

if TYPE_CHECKING:
    from mappa_engine.local.continuous_batching import Decoder, DecodeRequest, DecodeWave

P = ParamSpec("P")
T = TypeVar("T")
FinishedRequests = list[tuple["DecodeRequest", Completion]]


class Worker:
    """Runs jobs exclusively and, between them, steps all decoders with requests in turn.

    A job waits until all rows being decoded are finished; requests that arrive meanwhile wait until the job is done. So
    all tokens of a row are sampled from one version of the weights.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mappa-local")
        self._decoders: list[Decoder] = []
        self._jobs: set[Future[Any]] = set()
        self._decoding = False
        self._closing = threading.Event()

    def use(self, decoders: Iterable[Decoder]) -> None:
        """Step these decoders from now on. Called by a job, while none of those before decodes."""
        self._decoders = list(decoders)

    async def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `job` exclusively on the thread and return its result. Raises EngineLost where it raises what is no error
        of Mappa."""
        future = self._thread.submit(job, *args, **kwargs)
        self._jobs.add(future)
        future.add_done_callback(self._jobs.discard)
        try:
            return await asyncio.wrap_future(future)
        except MappaError:
            raise
        except Exception as error:
            raise _as_lost(error) from error

    def submit(self, decoder: Decoder, wave: DecodeWave) -> None:
        """Queue `wave` for decoding. Called on the event loop of its callers."""
        decoder.waves.append(wave)
        if not self._decoding:
            self._decoding = True
            self._thread.submit(self._decode).add_done_callback(self._on_decoding_ended)

    def until_closed(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return `function`, which raises EngineError once the thread is to stop: jobs of minutes call it often."""

        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            self._raise_if_closing()
            return function(*args, **kwargs)

        return call

    def _raise_if_closing(self) -> None:
        if self._closing.is_set():
            raise EngineError("the engine was closed while it computed")

    async def close(self) -> None:
        """Stop the thread. Requests that are being decoded fail, and a job at its next call of what `until_closed`
        returned; one that calls nothing of it comes to its end."""
        self._closing.set()
        await asyncio.to_thread(self._thread.shutdown)

    def _decode(self) -> None:
        while True:
            # While a job waits nothing is admitted, or it would wait for ever newer requests.
            admit = not self._jobs
            busy = [decoder for decoder in self._decoders if decoder.active or (admit and decoder.pending)]
            # Before the return, too: requests that wait behind a job would be decoded after the thread was stopped.
            if any(decoder.pending for decoder in self._decoders):
                self._raise_if_closing()
            if not busy:
                return
            for decoder in busy:
                _deliver(decoder.step(admit=admit))

    def _on_decoding_ended(self, outcome: Future[None]) -> None:
        """After `_decode` ended, report its failure to callers, or restart it for requests that waited behind a job."""
        self._decoding = False
        error = outcome.exception()
        if error is not None:
            for decoder in self._decoders:
                for request in decoder.abort_all():
                    request.future.get_loop().call_soon_threadsafe(_fail, request, _as_lost(error))
        if any(decoder.pending for decoder in self._decoders):
            self._decoding = True
            self._thread.submit(self._decode).add_done_callback(self._on_decoding_ended)


def _deliver(finished: FinishedRequests) -> None:
    """Deliver completions to their callers, with one callback per event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, FinishedRequests] = defaultdict(list)
    for request, completion in finished:
        by_loop[request.future.get_loop()].append((request, completion))
    for loop, answers in by_loop.items():
        loop.call_soon_threadsafe(_set_results, answers)


def _set_results(finished: FinishedRequests) -> None:
    for request, completion in finished:
        if not request.future.done():
            request.future.set_result(completion)


def _as_lost(error: BaseException) -> BaseException:
    """Return EngineLost for what is no error of Mappa, out of memory for example: what a job left half done is not
    known, and a new engine can repeat the work."""
    return error if isinstance(error, MappaError) else EngineLost(f"the engine failed: {format_error(error)}")


def _fail(request: DecodeRequest, error: BaseException) -> None:
    if not request.future.done():
        request.future.set_exception(error)
