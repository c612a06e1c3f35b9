"""Transport around a provider's endpoint for batches: callers await one reply each, as they do of any transport."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

import structlog

from mappa_batch.options import BatchOptions
from mappa_batch.record import BatchRecord, Place, RecordedBatch
from mappa_batch.wire import BatchState, BatchWire, Outcome
from mappa_core import Message
from mappa_core.transport import BatchTransport, CallError, CallFault, Reply, Request, ask_reconnecting

log = structlog.get_logger()
T = TypeVar("T")

TRANSIENT: frozenset[CallFault] = frozenset({"rate_limit", "overloaded", "server", "timeout", "connection", "garbled"})
"""Faults after which a question about a batch is asked again."""
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0
LONGEST_GATHERING = 20
"""Calls that keep coming are submitted after so many times `quiet_s`."""
REPORTED_SHARE = 0.1
"""A batch whose status stays the same is reported again once this share of its calls has been answered."""


def gather_calls(name: str, wire: BatchWire, options: Any, declared: type) -> BatchingTransport:
    """Gather the calls to `wire` in batches by `options.batch_api`. `name` is that of the offer; `declared` are the
    options of the transport, without those that core adds: all that affect a reply tell its questions from others."""
    names = [
        option.name for option in fields(declared) if option.name != "batch_api" and not option.name.endswith("_env")
    ]
    settings = json.dumps([name, *((option, getattr(options, option)) for option in names)], default=str)
    return BatchingTransport(wire, options.batch_api, name=name, settings=settings)


class BatchingTransport(BatchTransport):
    """Implements mappa_core.transport.BatchTransport. A batch is recorded before it is submitted, and its name before
    it is waited for. A call that an earlier process put in a batch is not made again: it gets its reply from there."""

    def __init__(self, wire: BatchWire, options: BatchOptions, *, name: str, settings: str) -> None:
        """`settings` identifies all that affects a reply and is not in its request."""
        options.check()
        self._wire = wire
        self._options = options
        self._name = name
        self._settings = settings
        self._opened: BatchRecord | None = None
        self._gathered: deque[_Call] = deque()
        self._first_at = 0.0  # when the oldest gathered call came, by the event loop's clock
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: dict[Place, _Call] = {}
        self._attending: dict[int, asyncio.Task[None]] = {}
        self._unasked: dict[int, Mapping[int, Outcome]] = {}  # replies of ended batches that nobody awaited

    @property
    def model(self) -> str:
        return self._wire.model

    @property
    def host(self) -> str:
        return self._wire.host

    def open_batches(self, folder: Path) -> None:
        if self._opened is None:
            self._opened = BatchRecord.open(folder)

    def is_submitted(self, request: Request) -> bool:
        return self._record.find(self._question(request)) is not None

    async def complete(self, request: Request) -> Reply:
        call = _Call(request, self._question(request), asyncio.Future())
        place = self._record.claim(call.question)
        if place is None:
            self._gather(call)
        else:
            self._take_up(place, call)
        try:
            return await call.reply
        except asyncio.CancelledError:
            self._drop(call)
            raise

    async def count(self, messages: Sequence[Message]) -> int | None:
        return await self._ask(lambda: self._wire.count(messages))

    async def close(self) -> None:
        self._stop_timer()
        left = {batch: task for batch, task in self._attending.items() if not task.done()}
        for task in left.values():
            task.cancel()
        await asyncio.gather(*left.values(), return_exceptions=True)
        if self._opened is not None:
            for batch in map(self._opened.batch, left):
                again = "it goes on there; the same command takes it up"
                log.warning("batch.left", provider=self._name, batch=batch.name, calls=batch.calls, note=again)
            record, self._opened = self._opened, None
            record.close()
        await self._wire.close()

    @property
    def _record(self) -> BatchRecord:
        if self._opened is None:
            raise RuntimeError("a transport in batches is opened before its first call")
        return self._opened

    def _question(self, request: Request) -> str:
        """Return a hash of all that affects the reply."""
        asked = asdict(request)
        # An address stands for the messages without the marks of their fences, which are new in every call.
        for name in ("cache_key", "timeout_s", *(["messages"] if request.address is not None else [])):
            del asked[name]
        return hashlib.sha256(json.dumps([self._settings, asked], sort_keys=True).encode()).hexdigest()

    # Gathering

    def _gather(self, call: _Call) -> None:
        now = asyncio.get_running_loop().time()
        if not self._gathered:
            self._first_at = now
        self._gathered.append(call)
        if len(self._gathered) >= min(self._options.max_requests, self._wire.max_requests):
            self._submit_gathered()
        elif self._timer is None or now - self._first_at < LONGEST_GATHERING * self._options.quiet_s:
            self._start_timer()

    def _start_timer(self) -> None:
        self._stop_timer()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._options.quiet_s, self._submit_gathered)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _submit_gathered(self) -> None:
        """Put the gathered calls in batches."""
        self._stop_timer()
        while calls := self._next_calls():
            try:
                batch = self._record.begin(token_hex(8), [call.question for call in calls])
            except Exception as error:  # noqa: BLE001 - a full disk is the callers' to report
                _fail(calls, error)
                continue
            self._waiting.update({(batch.id, number): call for number, call in enumerate(calls)})
            self._attend(batch.id, calls)

    def _next_calls(self) -> list[_Call]:
        calls: list[_Call] = []
        most, left = min(self._options.max_requests, self._wire.max_requests), self._wire.max_bytes
        while self._gathered and len(calls) < most:
            call = self._gathered[0]
            left -= len(json.dumps(asdict(call.request)))
            # A call that is larger than a batch goes alone, for the provider to refuse.
            if calls and left < 0:
                break
            calls.append(self._gathered.popleft())
        return calls

    def _drop(self, call: _Call) -> None:
        """Forget a caller that went away. A batch goes on: it is paid for, and its reply is kept for the next asker."""
        if call in self._gathered:
            self._gathered.remove(call)
            self._record.interrupt()
        for place, other in list(self._waiting.items()):
            if other is call:
                del self._waiting[place]
                self._record.give_up(place)

    # Batches under way

    def _take_up(self, place: Place, call: _Call) -> None:
        """Wait for the reply to a call that an earlier process made."""
        self._waiting[place] = call
        batch, number = place
        if number in self._unasked.get(batch, {}):
            self._hand_out(batch, self._unasked[batch])
        elif batch not in self._attending:
            self._attend(batch, None)

    def _attend(self, batch: int, calls: Sequence[_Call] | None) -> None:
        """See a batch through in the background; `calls` are None if an earlier process submitted it."""
        task = asyncio.create_task(self._see_through(batch, calls))
        self._attending[batch] = task
        task.add_done_callback(lambda _: self._attending.pop(batch, None))

    async def _see_through(self, batch: int, calls: Sequence[_Call] | None) -> None:
        recorded = self._record.batch(batch)
        try:
            name = recorded.name or await self._patiently(self._submission(recorded, calls))
            if name is not None and recorded.name is None:
                self._record.set_name(batch, name)
            outcomes = None if name is None else await self._outcomes(recorded, name, taken_up=calls is None)
            if outcomes is None:
                self._make_again(batch)
            else:
                self._hand_out(batch, outcomes)
        except CallError as fault:
            if recorded.name is None and fault.kind not in TRANSIENT:
                self._record.forget(batch)  # It was refused; after any other fault it may be there.
            self._fail_waiting(batch, fault)
        except Exception as error:  # noqa: BLE001 - raised to the callers, a bug with its traceback
            self._fail_waiting(batch, error)

    def _submission(self, batch: RecordedBatch, calls: Sequence[_Call] | None) -> Callable[[], Awaitable[str | None]]:
        """Return what submits a batch. After an attempt whose answer was lost the provider is asked for it first."""
        requests = {} if calls is None else dict(zip(batch.call_ids, (call.request for call in calls), strict=True))
        attempted = calls is None

        async def submit() -> str | None:
            nonlocal attempted
            if attempted and (found := await self._wire.find(batch.token, batch.calls, batch.begun)) is not None:
                return found
            if calls is None:
                return None
            attempted = True
            name = await self._wire.submit(batch.token, requests)
            log.info("batch.submitted", provider=self._name, batch=name, calls=batch.calls)
            return name

        return submit

    async def _outcomes(self, batch: RecordedBatch, name: str, *, taken_up: bool) -> Mapping[int, Outcome] | None:
        """Wait until a batch has ended; return what became of its calls, None if the provider no longer has it."""
        try:
            state = await self._ended(batch, name, taken_up=taken_up)
            results = await self._patiently(lambda: self._wire.results(name, batch.call_ids))
        except CallError as fault:
            if fault.kind == "model" and taken_up:
                return None
            raise
        return {
            number: results[call_id]
            if call_id in results
            else CallError(state.unanswered, f"batch {name}: {state.reason}", free=state.unanswered != "garbled")
            for number, call_id in enumerate(batch.call_ids)
        }

    async def _ended(self, batch: RecordedBatch, name: str, *, taken_up: bool) -> BatchState:
        if taken_up:
            log.info("batch.taken_up", provider=self._name, batch=name, calls=batch.calls, since=str(batch.begun)[:19])
        shown, shown_replies = "", 0
        while True:
            state = await self._patiently(lambda: self._wire.poll(name))
            replies = state.replies or 0
            if state.status != shown or replies - shown_replies >= REPORTED_SHARE * batch.calls:
                shown, shown_replies = state.status, replies
                log.info(
                    "batch.state", provider=self._name, batch=name, status=state.status, calls=batch.calls,
                    replies=state.replies, failures=state.failures, gathering=len(self._gathered),
                )  # fmt: skip
            if state.ended:
                return state
            await asyncio.sleep(self._options.poll_s)

    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask the wire, over a new connection where the old one broke."""
        return await ask_reconnecting(self._wire, ask, provider=self._name)

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask again after passing faults, for up to `give_up_s`: a batch outlives an outage."""
        loop = asyncio.get_running_loop()
        until, wait_s = loop.time() + self._options.give_up_s, min(FIRST_WAIT_S, self._options.poll_s)
        while True:
            try:
                return await self._ask(ask)
            except CallError as fault:
                wait_s = max(wait_s, fault.retry_after_s or 0.0)
                if fault.kind not in TRANSIENT or loop.time() + wait_s > until:
                    raise
                log.warning("batch.out_of_reach", provider=self._name, reason=str(fault), again_in_s=round(wait_s, 1))
            await asyncio.sleep(wait_s)
            wait_s = min(2.0 * wait_s, LONGEST_WAIT_S)

    # Handing out

    def _hand_out(self, batch: int, outcomes: Mapping[int, Outcome]) -> None:
        """Give every caller what became of its call, once that is recorded."""
        given = self._take_waiting(batch)
        replies = {number: outcome for number, outcome in outcomes.items() if isinstance(outcome, Reply)}
        failed = [(batch, number) for number in outcomes if number not in replies]
        answered = [(batch, number) for number in given if number in replies]
        self._unasked[batch] = {number: reply for number, reply in replies.items() if number not in given}
        self._record.settle(handed_out=answered, failed=failed)
        for number, call in given.items():
            outcome = outcomes[number]
            if isinstance(outcome, CallError):
                _fail([call], outcome)
            elif not call.reply.done():
                call.reply.set_result(outcome)

    def _make_again(self, batch: int) -> None:
        """Gather the calls of a batch that the provider does not have."""
        self._record.forget(batch)
        for call in self._take_waiting(batch).values():
            self._gather(call)

    def _fail_waiting(self, batch: int, error: Exception) -> None:
        for number, call in self._take_waiting(batch).items():
            self._record.give_up((batch, number))
            _fail([call], error)

    def _take_waiting(self, batch: int) -> dict[int, _Call]:
        places = [place for place in self._waiting if place[0] == batch]
        return {place[1]: self._waiting.pop(place) for place in places}


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """A call that somebody awaits, and a hash of what it asks."""

    request: Request
    question: str
    reply: asyncio.Future[Reply]


def _fail(calls: Sequence[_Call], error: Exception) -> None:
    for call in calls:
        if call.reply.done():
            continue
        if isinstance(error, CallError):
            # An exception collects the tracebacks of all who raise it: each caller gets one of its own.
            text = str(error).removeprefix(f"{error.kind}: ")
            call.reply.set_exception(CallError(error.kind, text, retry_after_s=error.retry_after_s, free=error.free))
        else:
            call.reply.set_exception(error)
