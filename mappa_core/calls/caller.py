"""Calls of one provider: within its limits, each with a deadline, tried again where that may help, and priced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from random import Random
from typing import TypeVar

from mappa_core.calls.breaker import Breaker
from mappa_core.calls.options import CallLimits, Price, check
from mappa_core.calls.pace import Pace, Slots
from mappa_core.calls.prices import cost
from mappa_core.errors import CallError, CallFault
from mappa_core.protocols import Provider, Reply, Request, Transport
from mappa_core.records import Message, Usage

T = TypeVar("T")

PASSING: frozenset[CallFault] = frozenset({"rate_limit", "overloaded", "server", "timeout", "connection", "garbled"})
"""Faults after which a call is tried again."""
TOO_MUCH: frozenset[CallFault] = frozenset({"rate_limit", "overloaded"})
"""Faults after which fewer calls are made at once."""
OUT_OF_ORDER: frozenset[CallFault] = (PASSING - {"rate_limit"}) | {"key", "quota", "model"}
"""Faults that say that the provider can answer nobody now; with the others it is there and refused one call."""

FIRST_WAIT_S, GROWTH = 0.25, 4.0
"""Longest wait before the second try, and its growth from try to try: a hiccup costs little, an outage of seconds is
outlasted."""
CHARACTERS_PER_TOKEN = 4.0


class Caller:
    """A transport that many callers may use at once. All of its time is the event loop's.

    A call waits in line for a slot, for its share of the requests and tokens of a minute and for what a Retry-After
    asked of everyone; then it goes out with its deadline, which is of the call and not of the wait. What a transport
    raises that is no CallError is a bug of the transport and goes through as it is.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        name: str,
        limits: CallLimits,
        price: Price | None = None,
        random: Random | None = None,
    ) -> None:
        """`name` is that of the offer; `random` draws the waits between tries.

        Raises:
            ConfigError: `limits` or `price` make no sense.
        """
        check(name, limits, price)
        self._transport = transport
        self._name = name
        self._limits = limits
        self._price = price
        self._random = random or Random()
        self._slots = Slots(limits.concurrency)
        self._pace = Pace(limits.requests_per_minute, limits.tokens_per_minute)
        self._breaker = Breaker(name, failures=limits.breaker_failures, rest_s=limits.breaker_rest_s)

    @property
    def provider(self) -> Provider:
        """Who is asked."""
        transport = self._transport
        return Provider(name=self._name, model=transport.model, host=transport.host, priced=self._price is not None)

    async def complete(self, request: Request) -> Reply:
        """The reply to `request`, with the number of calls that it took and its price in `usage`.

        Tokens and price are those of the reply: no provider says what a call without one took.

        Raises:
            CallError: there is no reply, also after other tries where the fault may pass.
        """
        tries = 0
        while True:
            tries += 1
            answer = await self._try(request, tries)
            if isinstance(answer, Reply):
                return replace(answer, usage=self._priced(answer.usage, tries))
            if answer.kind not in PASSING or tries == self._limits.attempts:
                raise answer
            if answer.retry_after_s is None:  # else it waits with everyone else
                await asyncio.sleep(self._backoff_s(tries))

    async def count(self, messages: Sequence[Message]) -> int | None:
        """Tokens of `messages` by the provider's own counter, None where it has none. Tried once.

        Raises:
            CallError: the counter failed.
        """
        self._breaker.check(_now())
        await self._slots.take()
        try:
            return await _within(self._limits.timeout_s, self._transport.count(messages))
        finally:
            self._slots.give_back()

    async def close(self) -> None:
        """Release connections."""
        await self._transport.close()

    async def _try(self, request: Request, tries: int) -> Reply | CallError:
        """One call: its reply, or the fault it met. What keeps it from going out at all is raised."""
        self._breaker.check(_now())
        estimate = sum(len(message.content) for message in request.messages) / CHARACTERS_PER_TOKEN
        await self._slots.take()
        try:
            await self._pace.take(estimate)
            await self._wait_as_told()
            return await self._send(request, tries, estimate)
        finally:
            self._slots.give_back()

    async def _wait_as_told(self) -> None:
        """Wait as long as a Retry-After asked of everyone."""
        while (wait := self._pace.held_s(_now())) > 0.0:
            if wait > self._limits.longest_wait_s:
                told = self._pace.held_by
                assert told is not None
                raise CallError(
                    told.kind,
                    f"{self._name} asked to be left alone for {told.retry_after_s:.0f} s, and "
                    f"limits.longest_wait_s={self._limits.longest_wait_s:g}. It said: {told}",
                    retry_after_s=wait,
                )
            await asyncio.sleep(wait)

    async def _send(self, request: Request, tries: int, estimate: float) -> Reply | CallError:
        self._breaker.enter(_now())
        generation = self._slots.generation
        try:
            reply = await _within(min(request.timeout_s, self._limits.timeout_s), self._transport.complete(request))
        except CallError as fault:
            self._learn(fault, tries, generation)
            return fault
        self._breaker.answered()
        self._slots.went_well()
        usage = reply.usage
        if usage is not None and usage.prompt_tokens is not None and usage.completion_tokens is not None:
            self._pace.put_right(estimate, usage.prompt_tokens + usage.completion_tokens)
        return reply

    def _learn(self, fault: CallError, tries: int, generation: int) -> None:
        """What a fault means for the calls after it."""
        if fault.kind in TOO_MUCH:
            self._slots.too_much(generation)
        if fault.kind in PASSING and fault.retry_after_s is not None:
            self._pace.hold(fault, _now())
        if fault.kind not in OUT_OF_ORDER:
            self._breaker.answered()
        # One hiccup fails all calls that are under way: what counts are calls that find the provider still out of
        # order when they try again, or that will not try again, or that waited in vain up to their deadline.
        elif tries > 1 or tries == self._limits.attempts or fault.kind not in PASSING or fault.kind == "timeout":
            self._breaker.failed(fault, _now())

    def _backoff_s(self, tries: int) -> float:
        """Exponential backoff with full jitter (M. Brooker, "Exponential Backoff And Jitter", AWS, 2015)."""
        return self._random.uniform(0.0, min(self._limits.longest_wait_s, FIRST_WAIT_S * GROWTH ** (tries - 1)))

    def _priced(self, usage: Usage | None, calls: int) -> Usage:
        if usage is None:
            return Usage(calls=calls)
        return replace(usage, calls=calls, usd=cost(usage, self._price))


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _within(seconds: float, call: Awaitable[T]) -> T:
    """What `call` gives, or CallError `timeout`."""
    try:
        async with asyncio.timeout(seconds) as deadline:
            return await call
    except TimeoutError:
        if not deadline.expired():
            raise  # of the transport
        raise CallError("timeout", f"no reply within {seconds:g} s") from None
