"""What trackers are told of a run. Each listens in a thread of its own; none can stop the run or hold it up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from mappa_core.protocols import Ending, TrackedRun, Tracker
from mappa_core.records import Step, Task, Trajectory, Verdict
from mappa_core.rollout.team import Recorder

log = structlog.get_logger()

MOST_WAITING = 10_000
"""Actions, verdicts and rollouts that may wait for one tracker; later ones are dropped. Figures never are."""
PATIENCE_S = 60.0
"""Seconds that all trackers together have to send what waits when the run ends."""
_START, _LOG, _CLOSE = "start", "log", "close"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What a tracker missed: calls in which it raised, with the first error; what was dropped because it was behind;
    and whether it was left behind at the end, still busy."""

    tracker: str
    failures: int
    error: str | None
    dropped: int
    left_busy: bool


class Tracking:
    """Tells `trackers`, given by their names in the config, of one run."""

    def __init__(
        self,
        trackers: Sequence[tuple[str, Tracker]],
        *,
        most_waiting: int = MOST_WAITING,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        self._listeners = [_Listener(name, tracker, most_waiting) for name, tracker in trackers]

    def start(self, run: TrackedRun) -> None:
        """The run begins or goes on."""
        for one in self._listeners:
            one.thread.start()
            one.tell(_START, run)

    def log(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Figures after so many iterations."""
        for one in self._listeners:
            one.tell(_LOG, iteration, metrics)

    def recorder(self, store: Recorder) -> Recorder:
        """`store`, with trackers that hear of everything once it is recorded."""
        return _Followed(store, self) if self._listeners else store

    def happened(self, call: str, *what: Any) -> None:
        """Something was recorded just now: `call` is the tracker's method for it."""
        ended = time.time()
        for one in self._listeners:
            one.tell_if_room(call, *what, ended)

    def close(self, ending: Ending) -> tuple[Trouble, ...]:
        """Let every tracker finish, for as long as there is patience; what any of them missed."""
        for one in self._listeners:
            one.tell(_CLOSE, ending)
        deadline = time.monotonic() + self._patience_s
        for one in self._listeners:
            one.thread.join(max(0.0, deadline - time.monotonic()))
        troubles = tuple(trouble for one in self._listeners if (trouble := one.trouble()) is not None)
        for trouble in troubles:
            log.warning("tracker.trouble", **{name: getattr(trouble, name) for name in Trouble.__slots__})
        return troubles


class _Listener:
    """One tracker, its thread, and what waits for it. The thread is a daemon: one that hangs keeps no process alive."""

    def __init__(self, name: str, tracker: Tracker, most_waiting: int) -> None:
        self.thread = threading.Thread(target=self._work, name=f"mappa-tracker-{name}", daemon=True)
        self._name = name
        self._tracker = tracker
        self._most_waiting = most_waiting
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
        self._failures = 0
        self._error: str | None = None
        self._dropped = 0

    def tell(self, call: str, *what: Any) -> None:
        self._calls.put((call, what))

    def tell_if_room(self, call: str, *what: Any) -> None:
        if self._calls.qsize() < self._most_waiting:
            self.tell(call, *what)
        else:
            self._dropped += 1

    def trouble(self) -> Trouble | None:
        """What it missed; None where it missed nothing."""
        busy = self.thread.is_alive()
        if not (self._failures or self._dropped or busy):
            return None
        return Trouble(
            tracker=self._name,
            failures=self._failures,
            error=self._error,
            dropped=self._dropped,
            left_busy=busy,
        )

    def _work(self) -> None:
        call, started = "", True
        while call != _CLOSE:
            call, what = self._calls.get()
            if not started and call != _CLOSE:
                continue
            works = self._made(call, what)
            started = started and (works or call != _START)

    def _made(self, call: str, what: tuple[Any, ...]) -> bool:
        """Make a call; whether it worked. This is the boundary of trackers: nothing that one raises gets past it."""
        try:
            getattr(self._tracker, call)(*what)
        # Also what asks to exit: the thread is the tracker's alone.
        except BaseException as error:
            self._failures += 1
            if self._error is None:
                self._error = f"{call}: {type(error).__name__}: {error}"
                log.exception("tracker.failed", tracker=self._name, call=call)
            return False
        return True


class _Followed:
    """A recorder that tells trackers of what it has recorded."""

    def __init__(self, store: Recorder, tracking: Tracking) -> None:
        self._store = store
        self._tracking = tracking
        self._splits: dict[str, str] = {}

    def begin(self, split: str, trajectory_id: str, task: Task, sample: int, iteration: int) -> None:
        self._store.begin(split, trajectory_id, task, sample, iteration)
        self._splits[trajectory_id] = split

    def step(self, trajectory_id: str, step: Step) -> None:
        self._store.step(trajectory_id, step)
        self._tracking.happened("action", trajectory_id, step)

    def verdict(self, verdict: Verdict) -> None:
        self._store.verdict(verdict)
        # A stage names its steps after the trajectory, with the position behind.
        self._tracking.happened("verdict", verdict.step.rpartition("/")[0], verdict)

    def end(self, trajectory: Trajectory) -> None:
        self._store.end(trajectory)
        self._tracking.happened("rollout", self._splits.pop(trajectory.id), trajectory)
