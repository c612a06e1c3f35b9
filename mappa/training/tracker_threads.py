"""Tracker threads: every tracker runs in a thread of its own, so that none can stop or delay the run."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from mappa.rollout.team import Recorder
from mappa.training.listener import Listener
from mappa_core.codec import from_json, to_json
from mappa_core.protocols import Ending, TrackedRun, Tracker
from mappa_core.records import Step, Task, Trajectory, Verdict
from mappa_core.redaction import format_error, redact

log = structlog.get_logger()

MAX_QUEUED = 10_000  # actions, verdicts and rollouts per tracker; later ones are dropped. Metrics never are.
CLOSE_TIMEOUT_S = 60.0  # for all trackers together to empty their queues when the run ends
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
        self._listeners = [_TrackerThread(name, tracker, max_queued) for name, tracker in trackers]

    def start(self, run: TrackedRun) -> None:
        for one in self._listeners:
            one.thread.start()
            one.send(_START, run)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        for one in self._listeners:
            one.send(_LOG, iteration, metrics)

    def recorder(self, store: Recorder) -> Recorder:
        """Wrap `store` so that trackers and the listener get everything once it is recorded."""
        is_read = self.listener is not None or any(one.reads_records for one in self._listeners)
        return _TrackedRecorder(store, self) if is_read else store

    def send_record(self, call: str, *what: Any) -> None:
        """Send a record; `call` is the tracker's method for it."""
        ended = time.time()
        for one in self._listeners:
            if one.reads_records:
                one.send_if_room(call, *what, ended)

    def close(self, ending: Ending) -> tuple[TrackerProblem, ...]:
        """Let every tracker finish within the timeout; return what any of them missed."""
        for one in self._listeners:
            one.send(_CLOSE, ending)
        deadline = time.monotonic() + self._close_timeout_s
        for one in self._listeners:
            one.thread.join(max(0.0, deadline - time.monotonic()))
        troubles = tuple(trouble for one in self._listeners if (trouble := one.problem()) is not None)
        for trouble in troubles:
            log.warning("tracker.trouble", **{name: getattr(trouble, name) for name in TrackerProblem.__slots__})
        return troubles


class _TrackerThread:
    """One tracker, its thread and its queue. The thread is a daemon, so a hanging tracker keeps no process alive."""

    def __init__(self, name: str, tracker: Tracker, max_queued: int) -> None:
        self.thread = threading.Thread(target=self._work, name=f"mappa-tracker-{name}", daemon=True)
        self._name = name
        self._tracker = tracker
        self._max_queued = max_queued
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
        self._failures = 0
        self._error: str | None = None
        self._dropped = 0

    @property
    def reads_records(self) -> bool:
        """Whether the tracker reads actions, verdicts or rollouts, and not only metrics."""
        methods = {call: getattr(self._tracker, call) for call in ("action", "verdict", "rollout")}
        return any(getattr(one, "__func__", None) is not getattr(Tracker, call) for call, one in methods.items())

    def send(self, call: str, *what: Any) -> None:
        self._calls.put((call, what))

    def send_if_room(self, call: str, *what: Any) -> None:
        if self._calls.qsize() < self._max_queued:
            self.send(call, *what)
        else:
            self._dropped += 1

    def problem(self) -> TrackerProblem | None:
        busy = self.thread.is_alive()
        if not (self._failures or self._dropped or busy):
            return None
        return TrackerProblem(
            tracker=self._name, failures=self._failures, error=self._error, dropped=self._dropped, left_busy=busy
        )

    def _work(self) -> None:
        call, started = "", True
        while call != _CLOSE:
            call, what = self._calls.get()
            if not started and call != _CLOSE:
                continue
            works = self._call(call, what)
            started = started and (works or call != _START)

    def _call(self, call: str, what: tuple[Any, ...]) -> bool:
        """Call a method of the tracker; return whether it succeeded. No exception gets past this point."""
        try:
            # The codec redacts.
            copies = (from_json(type(one), to_json(one)) if isinstance(one, _RECORDS) else one for one in what)
            getattr(self._tracker, call)(*copies)
        # Also SystemExit and KeyboardInterrupt: the thread belongs to the tracker alone.
        except BaseException as error:  # noqa: BLE001
            self._failures += 1
            if self._error is None:
                self._error = redact(f"{call}: {type(error).__name__}: {error}")
                log.error("tracker.failed", tracker=self._name, call=call, exception=format_error(error))
            return False
        return True


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
        self._tracking.send_record("verdict", verdict.step.rpartition("/")[0], verdict)
        if self._tracking.listener is not None:
            self._tracking.listener.on_verdict(verdict)

    def end_trajectory(self, trajectory: Trajectory) -> None:
        self._store.end_trajectory(trajectory)
        self._tracking.send_record("rollout", self._splits.pop(trajectory.id), trajectory)
