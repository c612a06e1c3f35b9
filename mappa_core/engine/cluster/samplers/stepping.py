"""The thread that computes in an engine: one step after another, and between steps whatever needs it to itself."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

from mappa_core.engine.cluster.samplers.values import Answer, Drawn, Request, Wave
from mappa_core.errors import EngineError
from mappa_core.records import Float32, Int32

P = ParamSpec("P")
T = TypeVar("T")
Scores = list[Float32]


class Steps(Protocol):
    """What the thread drives: an engine that takes requests and computes one token of each in a step."""

    @property
    def active(self) -> bool: ...
    def add(self, request: Request) -> None: ...
    def score(self, key: str, policy: str, version: int, sequence: Int32) -> None: ...
    def step(self) -> tuple[list[tuple[str, Drawn]], list[tuple[str, Float32]]]: ...
    def abort(self, ids: Sequence[str]) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...
    def forget_prefixes(self) -> None: ...


class _Scoring:
    """Sequences whose log-probabilities were asked for."""

    def __init__(self, policy: str, version: int, sequences: Sequence[Int32]) -> None:
        self.policy = policy
        self.version = version
        self.sequences = sequences
        self.found: dict[int, Float32] = {}
        self.done: Future[Scores] = Future()


class Stepping:
    """Drives a core. Requests join the batch under way and leave it; a job waits for the step that is being computed.

    While paused, requests stay where they are and scores alone are computed. `apart`: a wave is decoded alone, to its
    end, from an empty prefix cache, and delivered whole.
    """

    def __init__(self, core: Steps, *, apart: bool) -> None:
        self._core = core
        self._apart = apart
        self._turn = threading.Condition()
        self._jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._waves: deque[Wave] = deque()
        self._scorings: deque[_Scoring] = deque()
        self._scored: dict[str, tuple[_Scoring, int]] = {}
        self._numbers = itertools.count()
        self._under_way: set[str] = set()
        self._forgotten: set[str] = set()
        self._whole: list[Answer] = []
        self._answers: list[Answer] = []
        self._fault: BaseException | None = None
        self.paused = False

    def work(self) -> None:
        """Compute for as long as the process lives. Where a step fails, everyone who waits is told why."""
        while True:
            with self._turn:
                self._turn.wait_for(self._due)
                job = self._jobs.popleft() if self._jobs else None
            if job is not None:
                _run(*job)
                continue
            try:
                self._step()
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                self._fail(error)
                return

    def run(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `job`, which has the thread to itself."""
        return self.start(job, *args, **kwargs).result()

    def start(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have `job` run between two steps."""
        future: Future[T] = Future()
        with self._turn:
            self._check()
            self._jobs.append((future, partial(job, *args, **kwargs)))
            self._turn.notify_all()
        return future

    def submit(self, wave: Wave) -> None:
        """Have `wave` decoded."""
        with self._turn:
            self._check()
            self._waves.append(wave)
            self._turn.notify_all()

    def finished(self, wait_s: float) -> tuple[Answer, ...]:
        """Answers since the last call; waits for one, `wait_s` seconds at most. Raises what a step raised."""
        with self._turn:
            self._turn.wait_for(lambda: self._answers or self._fault, wait_s)
            self._check()
            answers, self._answers = tuple(self._answers), []
        return answers

    def logprobs(self, policy: str, version: int, sequences: Sequence[Int32]) -> Scores:
        """Of each sequence (T,) the log-probability of every token after the first, (T - 1,)."""
        if not sequences:
            return []
        scoring = _Scoring(policy, version, sequences)
        with self._turn:
            self._check()
            self._scorings.append(scoring)
            self._turn.notify_all()
        return scoring.done.result()

    def pause(self) -> None:
        """Stop decoding; requests are kept, and what was computed by the weights as they are is forgotten. A job."""
        if not self.paused:
            self._core.hold()
            self.paused = True

    def resume(self) -> None:
        """Go on decoding. A job."""
        if self.paused:
            self._core.release()
            self.paused = False
            self._core.abort(sorted(self._forgotten))
            self._under_way -= self._forgotten
            self._forgotten.clear()

    def forget(self, ids: Sequence[str]) -> None:
        """Drop requests that nobody waits for any more. A job."""
        gone = set(ids)
        with self._turn:
            self._waves = deque(tuple(one for one in wave if one.id not in gone) for wave in self._waves)
        if self.paused:
            self._forgotten |= gone & self._under_way
        else:
            self._core.abort(sorted(gone & self._under_way))
            self._under_way -= gone

    def _check(self) -> None:
        if self._fault is not None:
            raise EngineError(f"vLLM failed: {self._fault!r}") from self._fault

    def _due(self) -> bool:
        return bool(self._jobs or self._scorings or (self._waves and not self.paused) or self._core.active)

    def _step(self) -> None:
        self._admit()
        drawn, scored = self._core.step()
        answers = [Answer(id=key, drawn=one) for key, one in drawn]
        for key, found in scored:
            scoring, place = self._scored.pop(key)
            scoring.found[place] = found
            if len(scoring.found) == len(scoring.sequences):
                scoring.done.set_result([scoring.found[one] for one in range(len(scoring.sequences))])
        self._deliver(answers)

    def _admit(self) -> None:
        if not self._apart or self.paused or not self._under_way:
            while self._scorings:
                self._begin_scoring(self._scorings.popleft())
        if self.paused or (self._apart and (self._under_way or self._scored)):
            return
        with self._turn:
            waves = [self._waves.popleft()] if self._apart and self._waves else list(self._waves)
            if not self._apart:
                self._waves.clear()
        if self._apart and waves:
            self._core.forget_prefixes()
        for wave in waves:
            self._begin(wave)

    def _begin(self, wave: Wave) -> None:
        refused = []
        for request in wave:
            try:
                self._core.add(request)
            except (ValueError, EngineError) as error:
                refused.append(Answer(id=request.id, refused=str(error)))
            else:
                self._under_way.add(request.id)
        self._deliver(refused)

    def _begin_scoring(self, scoring: _Scoring) -> None:
        try:
            for place, sequence in enumerate(scoring.sequences):
                key = str(next(self._numbers))
                self._core.score(key, scoring.policy, scoring.version, sequence)
                self._scored[key] = scoring, place
        except (ValueError, EngineError) as error:
            scoring.done.set_exception(error)

    def _deliver(self, answers: list[Answer]) -> None:
        self._under_way.difference_update(one.id for one in answers)
        if self._apart:
            self._whole += answers
            if self._under_way:
                return
            answers, self._whole = self._whole, []
        if answers:
            with self._turn:
                self._answers += answers
                self._turn.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._turn:
            self._fault = error
            waiting: list[Future[Any]] = [future for future, _ in self._jobs]
            self._turn.notify_all()
        waiting += [
            scoring.done for scoring in (*self._scorings, *dict.fromkeys(one for one, _ in self._scored.values()))
        ]
        for future in waiting:
            future.set_exception(error)


def _run(future: Future[Any], job: Callable[[], Any]) -> None:
    try:
        future.set_result(job())
    except Exception as error:  # noqa: BLE001 - it is raised where the result is asked for
        future.set_exception(error)
