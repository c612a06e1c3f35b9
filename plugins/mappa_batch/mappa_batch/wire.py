"""What a provider's endpoint for batches has to be able to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from mappa_core.transport import CallError, CallFault, Reply, Request, Transport

Outcome = Reply | CallError
"""What became of one call of a batch."""
RESULT_BYTES = 2**19
"""Of one call in the results of a batch: a reply of about a hundred thousand tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchState:
    """How far a batch is. `status` is the provider's own word; `replies` and `failures` are counted, None if unknown.
    Calls without a result in a batch that has ended failed by `unanswered` for the reason `reason`."""

    ended: bool
    status: str
    replies: int | None = None
    failures: int | None = None
    unanswered: CallFault = "garbled"
    reason: str = "the batch ended without an answer to this call"


class BatchWire(Transport, Protocol):
    """One provider's endpoint for batches. All methods raise CallError and make no further attempts."""

    @property
    def max_requests(self) -> int:
        """Calls that the provider takes in a batch."""

    @property
    def max_bytes(self) -> int:
        """Size of a batch that the provider takes."""

    async def submit(self, token: str, requests: Mapping[str, Request]) -> str:
        """Create a batch of `requests`, by the ids under which their results come back, and return its name. `token` is
        written into the batch, or begins all ids where a batch has no room for it."""

    async def find(self, token: str, count: int, since: datetime) -> str | None:
        """Return the name of the batch of `count` calls that was created with `token`, `since` or later; None if there
        is none. Its answer to a submission was lost."""

    async def poll(self, name: str) -> BatchState: ...

    async def results(self, name: str, ids: Sequence[str]) -> Mapping[str, Outcome]:
        """Return what became of the calls of a batch that has ended, in any order; without those that have no result.
        `ids` are all of them, in the order of submission."""


def results_bytes(calls: int) -> int:
    """Return how many bytes the results of so many calls may have."""
    return RESULT_BYTES * calls


def outcome_of(parse: Callable[[], Reply]) -> Outcome:
    """Return the reply that `parse` returns, or the CallError that it raises."""
    try:
        return parse()
    except CallError as fault:
        return fault
