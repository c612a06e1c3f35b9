"""vLLM scheduler that can suspend all requests."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.request_queue import create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler


class SuspendingScheduler(Scheduler):  # type: ignore[misc]
    """Between `suspend_requests` and `resume_requests` the engine computes only requests added meanwhile: a probe of
    new weights must not advance suspended requests, which would get tokens of unverified weights."""

    waiting: Any
    _suspended: Any = None

    def suspend_requests(self) -> None:
        """Suspend all requests and drop their KV cache, which is of the current weights."""
        self.reset_prefix_cache(reset_running_requests=True)
        self._suspended = self.waiting
        self.waiting = create_request_queue(self.policy)

    def resume_requests(self) -> None:
        """Resume the suspended requests, in their old order."""
        for request in self.waiting:
            self._suspended.add_request(request)
        self.waiting = self._suspended
        self._suspended = None
