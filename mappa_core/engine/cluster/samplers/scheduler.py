"""The scheduler of vLLM, which can also set the requests under way aside."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.request_queue import create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler


class HoldingScheduler(Scheduler):  # type: ignore[misc]
    """Between `hold` and `release` the engine computes only what is asked meanwhile: a probe of new weights must not
    carry a request under way on, which would get tokens of weights that nobody has verified yet."""

    waiting: Any
    _held: Any = None

    def hold(self) -> None:
        """Set everything under way aside, its keys and values forgotten: they are of the weights as they are now."""
        self.reset_prefix_cache(reset_running_requests=True)
        self._held = self.waiting
        self.waiting = create_request_queue(self.policy)

    def release(self) -> None:
        """Go on, in the old order, with what was set aside."""
        for request in self.waiting:
            self._held.add_request(request)
        self.waiting = self._held
        self._held = None
