"""Tracker threads: every tracker runs in a thread of its own, so that none can stop or delay the run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from mappa.rollout.team import Recorder
from mappa.training.listener import Listener
from mappa_core.codec import from_json, to_json
from mappa_core.protocols import Ending, TrackedRun, Tracker
from mappa_core.records import Step, Task, Trajectory, Verdict
from mappa_core.redaction import format_error, redact

log = structlog.get_logger()

MAX_QUEUED = 10_000
"""Maximum queue of actions, verdicts and rollouts per tracker; later ones are dropped. Metrics never are."""

CLOSE_TIMEOUT_S = 60.0
"""Seconds that all trackers together have to empty their queues when the run ends."""

_START, _LOG, _CLOSE = "start", "log", "close"
_RECORDS = (Step, Verdict, Trajectory)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerProblem:
    """What a tracker missed: number of calls that raised, the first error, number of dropped records, and whether it
    was still busy when the run ended."""

    tracker: str
    failures: int
    error: str | None
    dropped: int
    left_busy: bool


class TrackerThreads:
    """Sends the events of one run to `trackers`, given with their names in the config; of actions and verdicts the
    `listener` hears at once."""

    def __init__(
        self,
        trackers: Sequence[tuple[str, Tracker]],
        *,
        listener: Listener | None = None,
        max_queued: int = MAX_QUEUED,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        self.listener = listener
        self._close_timeout_s = close_timeout_s
        self._threads = [_TrackerThread(name, tracker, max_queued) for name, tracker in trackers]

    def start(self, run: TrackedRun) -> None:
        """Start the threads: the run begins or resumes."""
        for thread in self._threads:
            thread.start()
            thread.send(_START, run)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics after `iteration` iterations."""
        for thread in self._threads:
            thread.send(_LOG, iteration, metrics)

    def recorder(self, store: Recorder) -> Recorder:
        """Wrap `store` so that trackers and the listener get everything once it is recorded."""
        is_read = self.listener is not None or any(thread.reads_records for thread in self._threads)
        return _TrackedRecorder(store, self) if is_read else store

    def send_record(self, call: str, *what: Any) -> None:
        """Send a record; `call` is the tracker's method for it."""
        ended = time.time()
        for thread in self._threads:
            if thread.reads_records:
                thread.send_if_room(call, *what, ended)

    def close(self, ending: Ending) -> tuple[TrackerProblem, ...]:
        """Let every tracker finish within the timeout; return what any of them missed."""
        for thread in self._threads:
            thread.send(_CLOSE, ending)
        # One deadline for all: they close at the same time, and a hanging one should not take the time of each other.
        deadline = time.monotonic() + self._close_timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        problems = []
        for thread in self._threads:
            problem = thread.problem()
            if problem is not None:
                log.warning("tracker.trouble", **asdict(problem))
                problems.append(problem)
        return tuple(problems)


class _TrackerThread:
    """One tracker, its thread and its queue. The thread is a daemon, so a hanging tracker keeps no process alive."""

    def __init__(self, name: str, tracker: Tracker, max_queued: int) -> None:
        self._thread = threading.Thread(target=self._work, name=f"mappa-tracker-{name}", daemon=True)
        self._name = name
        self._tracker = tracker
        self._max_queued = max_queued
        # Only `_work` counts failures and only the run's thread counts what is dropped, so no lock is needed.
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
        self._failures = 0
        self._error: str | None = None
        self._dropped = 0

    @property
    def reads_records(self) -> bool:
        """Whether the tracker reads actions, verdicts or rollouts, and not only metrics."""
        return any(self._overrides(call) for call in ("action", "verdict", "rollout"))

    def _overrides(self, call: str) -> bool:
        # Of a bound method, `__func__` is the function in the class; something else that is called has none.
        return getattr(getattr(self._tracker, call), "__func__", None) is not getattr(Tracker, call)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def send(self, call: str, *what: Any) -> None:
        self._calls.put((call, what))

    def send_if_room(self, call: str, *what: Any) -> None:
        """Send a record, or count it as dropped if the tracker is far behind: the run does not wait for it."""
        if self._calls.qsize() < self._max_queued:
            self.send(call, *what)
        else:
            self._dropped += 1

    def problem(self) -> TrackerProblem | None:
        """What the tracker missed; None if nothing."""
        busy = self._thread.is_alive()
        if not (self._failures or self._dropped or busy):
            return None
        return TrackerProblem(
            tracker=self._name, failures=self._failures, error=self._error, dropped=self._dropped, left_busy=busy
        )

    def _work(self) -> None:
        call, has_started = "", True
        while call != _CLOSE:
            call, what = self._calls.get()
            # A tracker that could not start is only closed, as it may have opened part of what it needs.
            if not has_started and call != _CLOSE:
                continue
            succeeded = self._call(call, what)
            if call == _START:
                has_started = succeeded

    def _call(self, call: str, what: tuple[Any, ...]) -> bool:
        """Call a method of the tracker; return whether it succeeded. No exception gets past this point."""
        try:
            getattr(self._tracker, call)(*map(_redacted, what))
        # Also SystemExit and KeyboardInterrupt: the thread belongs to the tracker alone.
        except BaseException as error:  # noqa: BLE001
            self._failures += 1
            if self._error is None:
                self._error = redact(f"{call}: {type(error).__name__}: {error}")
                log.error("tracker.failed", tracker=self._name, call=call, exception=format_error(error))
            return False
        return True


def _redacted(argument: Any) -> Any:
    """A copy of a record without keys, as it is stored; the codec masks them. Other arguments as they are."""
    return from_json(type(argument), to_json(argument)) if isinstance(argument, _RECORDS) else argument


class _TrackedRecorder:
    """A recorder that forwards what it has recorded to the trackers and the listener."""

    def __init__(self, store: Recorder, tracking: TrackerThreads) -> None:
        self._store = store
        self._tracking = tracking
        self._splits: dict[str, str] = {}

    def begin_trajectory(self, split: str, trajectory_id: str, task: Task, sample: int, iteration: int) -> None:
        self._store.begin_trajectory(split, trajectory_id, task, sample, iteration)
        self._splits[trajectory_id] = split

    def record_step(self, trajectory_id: str, step: Step) -> None:
        self._store.record_step(trajectory_id, step)
        self._tracking.send_record("action", trajectory_id, step)
        if self._tracking.listener is not None:
            self._tracking.listener.on_step(step)

    def record_verdict(self, verdict: Verdict) -> None:
        self._store.record_verdict(verdict)
        # A stage names its steps after the trajectory, with the position behind.
        trajectory_id = verdict.step.rpartition("/")[0]
        self._tracking.send_record("verdict", trajectory_id, verdict)
        if self._tracking.listener is not None:
            self._tracking.listener.on_verdict(verdict)

    def end_trajectory(self, trajectory: Trajectory) -> None:
        self._store.end_trajectory(trajectory)
        self._tracking.send_record("rollout", self._splits.pop(trajectory.id), trajectory)
