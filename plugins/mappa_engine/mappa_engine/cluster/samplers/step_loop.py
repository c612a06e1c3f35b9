"""Step loop of an engine's thread: runs one step after another, and exclusive jobs between steps."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from mappa_core.engine import EngineError
from mappa_engine.arrays import Float32, Int32
from mappa_engine.cluster.samplers.messages import Generation, GenerationRequest, RequestResult, RequestWave

_P = ParamSpec("_P")
T = TypeVar("T")
SequenceLogprobs = list[Float32]


class StepEngine(Protocol):
    """An engine that the step loop drives: it takes requests and computes one token of each per step."""

    @property
    def active(self) -> bool: ...
    def add(self, request: GenerationRequest) -> None: ...
    def score(self, key: str, policy: str, version: int, sequence: Int32) -> None: ...
    def step(self) -> tuple[list[tuple[str, Generation]], list[tuple[str, Float32]]]: ...
    def abort(self, ids: Sequence[str]) -> None: ...
    def suspend_requests(self) -> None: ...
    def resume_requests(self) -> None: ...
    def reset_prefix_cache(self) -> None: ...


class StepError(Exception):
    """A step failed. vLLM's state is unknown since, so the engine computes nothing any more."""


class _ScoreJob:
    """Sequences to score, with the log-probabilities so far."""

    def __init__(self, policy: str, version: int, sequences: Sequence[Int32]) -> None:
        self.policy = policy
        self.version = version
        self.sequences = sequences
        self.logprobs: dict[int, Float32] = {}
        self.done: Future[SequenceLogprobs] = Future()


class StepLoop:
    """Drives an engine with continuous batching. A job waits for the end of the current step.

    While paused, requests are kept and only scores are computed. With `isolate_waves`, a wave is decoded alone, to its
    end, from an empty prefix cache, and its results are delivered together.
    """

    def __init__(self, engine: StepEngine, *, isolate_waves: bool) -> None:
        self._engine = engine
        self._apart = isolate_waves
        self._condition = threading.Condition()
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._waves: deque[RequestWave] = deque()
        self._scorings: deque[_ScoreJob] = deque()
        self._scored: dict[str, tuple[_ScoreJob, int]] = {}
        self._numbers = itertools.count()
        self._active_ids: set[str] = set()
        self._aborted: set[str] = set()
        self._finished_in_wave: list[RequestResult] = []
        self._answers: list[RequestResult] = []
        self._failure: BaseException | None = None
        self.paused = False

    def run_forever(self) -> None:
        """Run until the process ends. A failed step fails all pending and future calls."""
        while True:
            with self._condition:
                self._condition.wait_for(self._has_work)
                # A job comes before the next step: a pause must not wait for actions to end.
                job = self._jobs.popleft() if self._jobs else None
            if job is not None:
                _run(*job)
                continue
            try:
                self._step()
            except Exception as error:  # noqa: BLE001 - raised to all waiting callers
                self._fail(error)
                return

    def run(self, job: Callable[_P, T], *args: _P.args, **kwargs: _P.kwargs) -> T:
        """Run `job` between two steps, and return its result."""
        return self.start(job, *args, **kwargs).result()

    def start(self, job: Callable[_P, T], *args: _P.args, **kwargs: _P.kwargs) -> Future[T]:
        """Schedule `job` to run between two steps."""
        future: Future[T] = Future()
        with self._condition:
            self._check()
            self._jobs.append((future, partial(job, *args, **kwargs)))
            self._condition.notify_all()
        return future

    def submit(self, wave: RequestWave) -> None:
        """Queue `wave` for decoding."""
        with self._condition:
            self._check()
            self._waves.append(wave)
            self._condition.notify_all()

    def take_results(self, wait_s: float) -> tuple[RequestResult, ...]:
        """Return the results since the last call; waits up to `wait_s` seconds for one. Raises if a step failed."""
        with self._condition:
            self._condition.wait_for(lambda: self._answers or self._failure, wait_s)
            self._check()
            answers, self._answers = tuple(self._answers), []
        return answers

    def logprobs(self, policy: str, version: int, sequences: Sequence[Int32]) -> SequenceLogprobs:
        """Compute, for each sequence (T,), the log-probabilities (T - 1,) of every token after the first."""
        if not sequences:
            return []
        scoring = _ScoreJob(policy, version, sequences)
        with self._condition:
            self._check()
            self._scorings.append(scoring)
            self._condition.notify_all()
        return scoring.done.result()

    def pause(self) -> None:
        """Stop decoding; requests are kept without their KV cache, which is of the current weights. Run as a job."""
        if not self.paused:
            self._engine.suspend_requests()
            self.paused = True

    def resume(self) -> None:
        """Resume decoding. Run as a job."""
        if self.paused:
            self._engine.resume_requests()
            self.paused = False
            self._engine.abort(sorted(self._aborted))
            self._active_ids -= self._aborted
            self._aborted.clear()

    def abort(self, ids: Sequence[str]) -> None:
        """Abort requests whose results are not needed any more. Run as a job."""
        gone = set(ids)
        with self._condition:
            self._waves = deque(tuple(request for request in wave if request.id not in gone) for wave in self._waves)
        if self.paused:
            # The scheduler has put suspended requests aside and would not find them; `resume` aborts them.
            self._aborted |= gone & self._active_ids
        else:
            self._engine.abort(sorted(gone & self._active_ids))
            self._active_ids -= gone

    def _check(self) -> None:
        if self._failure is not None:
            raise StepError(f"vLLM failed in a step: {self._failure!r}") from self._failure

    def _has_work(self) -> bool:
        return bool(self._jobs or self._scorings or (self._waves and not self.paused) or self._engine.active)

    def _step(self) -> None:
        self._add_waiting()
        generations, scored = self._engine.step()
        answers = [RequestResult(id=key, generation=generation) for key, generation in generations]
        for key, logprobs in scored:
            scoring, index = self._scored.pop(key)
            scoring.logprobs[index] = logprobs
            if len(scoring.logprobs) == len(scoring.sequences):
                scoring.done.set_result([scoring.logprobs[index] for index in range(len(scoring.sequences))])
        self._deliver(answers)

    def _add_waiting(self) -> None:
        if not self._apart or self.paused or not self._active_ids:
            while self._scorings:
                self._add_scoring(self._scorings.popleft())
        if self.paused or (self._apart and (self._active_ids or self._scored)):
            return
        with self._condition:
            waves = [self._waves.popleft()] if self._apart and self._waves else list(self._waves)
            if not self._apart:
                self._waves.clear()
        if self._apart and waves:
            # What is cached changes how a prompt is split into steps, and so the last digits of its results.
            self._engine.reset_prefix_cache()
        for wave in waves:
            self._add_wave(wave)

    def _add_wave(self, wave: RequestWave) -> None:
        refusals = []
        for request in wave:
            try:
                self._engine.add(request)
            except (ValueError, EngineError) as error:
                refusals.append(RequestResult(id=request.id, error=str(error)))
            else:
                self._active_ids.add(request.id)
        self._deliver(refusals)

    def _add_scoring(self, scoring: _ScoreJob) -> None:
        try:
            for index, sequence in enumerate(scoring.sequences):
                key = str(next(self._numbers))
                self._engine.score(key, scoring.policy, scoring.version, sequence)
                self._scored[key] = scoring, index
        except (ValueError, EngineError) as error:
            scoring.done.set_exception(error)

    def _deliver(self, answers: list[RequestResult]) -> None:
        self._active_ids.difference_update(answer.id for answer in answers)
        if self._apart:
            self._finished_in_wave += answers
            # Results that came one by one would let the driver's next wave depend on when it looked.
            if self._active_ids:
                return
            answers, self._finished_in_wave = self._finished_in_wave, []
        if answers:
            with self._condition:
                self._answers += answers
                self._condition.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._condition:
            self._failure = error
            waiting: list[Future[Any]] = [future for future, _ in self._jobs]
            self._condition.notify_all()
        waiting += [
            scoring.done
            for scoring in (*self._scorings, *dict.fromkeys(scoring for scoring, _ in self._scored.values()))
        ]
        for future in waiting:
            future.set_exception(error)


def _run(future: Future[Any], job: Callable[[], Any]) -> None:
    try:
        future.set_result(job())
    except Exception as error:  # noqa: BLE001 - `result()` raises it
        future.set_exception(error)
