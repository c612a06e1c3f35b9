"""Client of one provider: rate-limited calls with deadlines, retries and prices."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Protocol, TypeVar, get_args, runtime_checkable

from mappa_core.calls.circuit_breaker import CircuitBreaker
from mappa_core.calls.options import CallLimits, Price, charged_price, merge_options
from mappa_core.calls.rate_limit import ConcurrencyLimiter, RateLimiter
from mappa_core.calls.restarts import RestartedTransport, close_transport
from mappa_core.calls.spend_ledger import CostBound, Reservation, reserve_cost
from mappa_core.calls.work_deadline import waiting_for_turn
from mappa_core.errors import CallError, CallFault
from mappa_core.hookspecs import Offer
from mappa_core.protocols import Provider, Reply, Request, Transport
from mappa_core.records import Message, Usage

T = TypeVar("T")

RETRYABLE: frozenset[CallFault] = frozenset({"rate_limit", "overloaded", "server", "timeout", "connection", "garbled"})
THROTTLING: frozenset[CallFault] = frozenset({"rate_limit", "overloaded"})  # They lower the concurrency.
OUTAGES: frozenset[CallFault] = (RETRYABLE - {"rate_limit"}) | {"key", "quota", "model"}
"""Faults of the provider as a whole; after any other fault it is available and refused a single call."""

INITIAL_BACKOFF_S = 0.25
"""Maximum wait before the second attempt."""
BACKOFF_FACTOR = 4.0
"""Growth of the maximum wait per attempt: an outage of seconds is survived."""
CHARACTERS_PER_TOKEN = 4.0
"""For the estimate of a prompt's tokens, which the reply's usage corrects."""
LIKELY_BYTES_PER_TOKEN = 3.0
"""Fewer than texts have. No tokenizer in use gives more than one token a byte, which is the upper bound."""
TOKENS_PER_MESSAGE = 32
"""At most, for the marks that a chat template puts around a message, and what comes with a schema."""
FREE_FAULTS: frozenset[CallFault] = frozenset(get_args(CallFault)) - {"server", "timeout", "connection", "garbled"}
"""Faults of calls that the provider refused, and does not bill. Whether it bills others is not known."""


@runtime_checkable
class BatchTransport(Transport, Protocol):
    """Transport that gathers concurrent calls into batches, for which it waits minutes to a day. Single calls have no
    deadline, and no limits but `attempts`."""

    def open_batches(self, folder: Path) -> None:
        """Record batches in `folder`. Called before the first call, and by every user of the transport."""

    def is_submitted(self, request: Request) -> bool:
        """Whether `complete` would take the reply from a batch that an earlier process submitted."""


class ProviderClient:
    """Sends requests of many concurrent tasks through one transport. All times are of the event loop's clock. A call
    waits for a concurrency slot, for the rate limits per minute, and for the end of a pause that a Retry-After header
    asked for; then it is sent with a deadline, which does not cover the wait. A transport that raises what is no
    MappaError, or hangs, is replaced (`RestartedTransport`), as it is when the circuit breaker opens: what looks like
    an outage may be its own broken client."""

    def __init__(
        self,
        build: Callable[[], Transport],
        *,
        name: str,
        limits: CallLimits,
        price: Price | None = None,
        random: Random | None = None,
    ) -> None:
        """`build` builds the transport, and others that replace it; `name` is the name of the offer; `random` draws the
        waits between attempts."""
        first = build()
        # One of batches mends its own connection: what it waits for outlives that.
        self._transport: BatchTransport | RestartedTransport = (
            first if isinstance(first, BatchTransport) else RestartedTransport(first, build, provider=name)
        )
        self._name = name
        self._limits = limits
        self._price = price
        self._random = random or Random()
        self._concurrency = ConcurrencyLimiter(limits.concurrency)
        self._rate_limiter = RateLimiter(limits.requests_per_minute, limits.tokens_per_minute)
        self._breaker = CircuitBreaker(name, failures=limits.breaker_failures, rest_s=limits.breaker_rest_s)

    @property
    def provider(self) -> Provider:
        transport = self._transport
        return Provider(
            name=self._name,
            model=transport.model,
            host=transport.host,
            priced=self._price is not None,
            batched=isinstance(transport, BatchTransport),
            reserves=True,
        )

    def open_batches(self, folder: Path) -> None:
        if isinstance(self._transport, BatchTransport):
            self._transport.open_batches(folder)

    async def complete(self, request: Request) -> Reply:
        """Return the reply to `request`, with the number of calls and the price in its `usage`; the tokens are those of
        the reply, as no provider reports others. Raises CallError if there is none, after all attempts if retryable."""
        tries = 0
        while True:
            tries += 1
            answer = await self._attempt(request, tries)
            if isinstance(answer, Reply):
                return replace(answer, usage=self._with_cost(answer.usage, tries))
            if answer.kind not in RETRYABLE or tries == self._limits.attempts:
                raise answer
            # The slot is free meanwhile. With a Retry-After the next attempt waits for the pause, as all calls do.
            if not answer.retry_after_s:
                await asyncio.sleep(self._backoff_s(tries))

    async def count(self, messages: Sequence[Message]) -> int | None:
        """Count the tokens of `messages` by the provider's counter; None if none. Not retried. Raises CallError."""
        self._breaker.check(_now())
        with waiting_for_turn():
            await self._concurrency.acquire()
        try:
            if isinstance(self._transport, BatchTransport):
                return await self._transport.count(messages)
            return await self._transport.count(messages, self._limits.timeout_s)
        finally:
            self._concurrency.release()

    async def close(self) -> None:
        if isinstance(self._transport, BatchTransport):
            await close_transport(self._transport, self._name)
        else:
            await self._transport.close()

    async def _attempt(self, request: Request, tries: int) -> Reply | CallError:
        """Make one call and return its reply or its fault. Raises CallError if the call cannot be sent at all."""
        bound, transport = self._cost_bound(request), self._transport
        if isinstance(transport, BatchTransport):
            with waiting_for_turn():
                is_sent = transport.is_submitted(request)
                reservation = await reserve_cost(self._payer, bound, is_sent=is_sent, in_batch=True)
                return await self._settled(reservation, transport.complete(request))
        # Before the call waits for a slot: thousands of calls should not queue for a provider that is down. `_send`
        # checks again, after the wait.
        self._breaker.check(_now())
        estimate = sum(len(message.content) for message in request.messages) / CHARACTERS_PER_TOKEN
        with waiting_for_turn():
            await self._concurrency.acquire()
        try:
            reservation = await reserve_cost(self._payer, bound)
            try:
                with waiting_for_turn():
                    await self._rate_limiter.acquire(estimate)
                    await self._wait_while_paused()
                self._breaker.begin_call(_now())
            except BaseException:
                reservation.release()
                raise
            return await self._send(transport, request, tries, estimate, reservation)
        finally:
            self._concurrency.release()

    async def _wait_while_paused(self) -> None:
        # Again after each wait: a reply to another call may have asked for a longer pause meanwhile.
        while True:
            wait_s = self._rate_limiter.pause_left_s(_now())
            if wait_s <= 0.0:
                return
            if wait_s > self._limits.max_wait_s:
                cause = self._rate_limiter.paused_by
                assert cause is not None
                raise CallError(
                    cause.kind,
                    f"{self._name} asked to be left alone for {cause.retry_after_s:.0f} s, and "
                    f"limits.max_wait_s={self._limits.max_wait_s:g}. It said: {cause}",
                    retry_after_s=wait_s,
                )
            await asyncio.sleep(wait_s)

    async def _send(
        self,
        transport: RestartedTransport,
        request: Request,
        tries: int,
        estimate: float,
        reservation: Reservation,
    ) -> Reply | CallError:
        # Read before the call: an overload that is reported while the call is under way has lowered the limit for this
        # one, too.
        generation = self._concurrency.generation
        timeout_s = min(request.timeout_s, self._limits.timeout_s)
        answer = await self._settled(reservation, transport.complete(request, timeout_s))
        if isinstance(answer, CallError):
            if self._record_fault(answer, tries, generation):
                transport.restart(f"{self._name} failed {self._limits.breaker_failures} times in a row: {answer}")
            return answer
        self._breaker.record_success()
        self._concurrency.record_success()
        usage = answer.usage
        if usage is not None and usage.prompt_tokens is not None and usage.completion_tokens is not None:
            self._rate_limiter.correct_estimate(estimate, usage.prompt_tokens + usage.completion_tokens)
        return answer

    async def _settled(self, reservation: Reservation, call: Awaitable[Reply]) -> Reply | CallError:
        """Return the reply of `call` or its fault, with its reservation settled."""
        try:
            reply = await call
            reservation.settle(self._with_cost(reply.usage, 1))
            return reply
        except CallError as fault:
            if fault.free or fault.kind in FREE_FAULTS:
                reservation.release()
            return fault
        finally:
            # What is still reserved: the call failed or was cancelled, and may have been billed.
            reservation.settle_unknown()

    @property
    def _payer(self) -> str:
        return f"{self._name}/{self._transport.model}"

    def _cost_bound(self, request: Request) -> CostBound | None:
        """What a call of `request` can cost; None if its price is unknown."""
        if self._price is None:
            return None
        # An unpaired surrogate, which has no UTF-8, is the transport's to refuse.
        texts = [message.content for message in request.messages]
        if request.schema is not None:
            texts.append(json.dumps(request.schema, ensure_ascii=False))
        size = sum(len(text.encode(errors="replace")) for text in texts)
        marks = TOKENS_PER_MESSAGE * len(texts)
        most, likely = (
            self._price.highest(prompt_tokens=math.ceil(tokens) + marks, completion_tokens=request.max_tokens)
            for tokens in (size, size / LIKELY_BYTES_PER_TOKEN)
        )
        return CostBound(most=most, likely=likely)

    def _record_fault(self, fault: CallError, tries: int, generation: int) -> bool:
        """Record a fault and return whether it opens the circuit breaker."""
        if fault.kind in THROTTLING:
            self._concurrency.record_overload(generation)
        if fault.kind in RETRYABLE and fault.retry_after_s is not None:
            self._rate_limiter.pause(fault, _now())
        if fault.kind not in OUTAGES:
            self._breaker.record_success()
            return False
        # A short fault fails all calls in flight at once. So only these calls count as failures of the provider:
        # retries, calls that will not be retried, and calls that ran into their deadline.
        is_retry = tries > 1
        will_be_retried = tries < self._limits.attempts and fault.kind in RETRYABLE
        if is_retry or not will_be_retried or fault.kind == "timeout":
            return self._breaker.record_failure(fault, _now())
        return False

    def _backoff_s(self, tries: int) -> float:
        """Exponential backoff with full jitter (M. Brooker, "Exponential Backoff And Jitter", AWS, 2015)."""
        longest_s = INITIAL_BACKOFF_S * BACKOFF_FACTOR ** (tries - 1)
        return self._random.uniform(0.0, min(self._limits.max_wait_s, longest_s))

    def _with_cost(self, usage: Usage | None, calls: int) -> Usage:
        if usage is None:
            return Usage(calls=calls)
        usd = None if self._price is None else self._price.cost(usage)
        return replace(usage, calls=calls, usd=usd)


def derive_offer(offer: Offer[Transport], added: type, build: Callable[[ProviderClient, Any], T]) -> Offer[T]:
    """Derive the offer of a user of a provider from that of its transport, under the same name: its options are those
    of the transport and those `added`. Raises PluginError if the transport's options cannot be extended."""

    def build_with_client(options: Any) -> T:
        price = charged_price(options)
        client = ProviderClient(lambda: offer.build(options), name=offer.name, limits=options.limits, price=price)
        return build(client, options)

    return Offer(offer.name, build_with_client, merge_options(added, offer.options))


def _now() -> float:
    return asyncio.get_running_loop().time()
