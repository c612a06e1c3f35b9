"""Phase timer: announces the phases of an iteration and measures them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from mappa.training.listener import Listener, LoopPhase


class PhaseTimer:
    """Announces the phases of the iteration after `done` to `listener`, and measures their wall `seconds`."""

    def __init__(self, done: int, listener: Listener) -> None:
        self._done = done
        self._listener = listener
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def phase(self, name: LoopPhase) -> Iterator[None]:
        self._listener.on_phase_start(name, self._done)
        started = time.perf_counter()
        yield
        # Added, as a phase may be entered twice: credit is given before and after learners score.
        self.seconds[name] += time.perf_counter() - started
