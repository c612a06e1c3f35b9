"""Several servers as one: who is asked, in which order, and what becomes of one that fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from mappa_sandboxfusion.client import ServerFault
from mappa_sandboxfusion.pool import NoServer, ServerPool

A, B = "http://a", "http://b"
Make = Callable[..., ServerPool]


class Probes:
    """Servers that cannot run programs, and how often each was probed."""

    def __init__(self) -> None:
        self.broken: set[str] = set()
        self.asked: Counter[str] = Counter()

    async def probe(self, url: str) -> None:
        self.asked[url] += 1
        if url in self.broken:
            raise ServerFault(url, "still broken")


@pytest.fixture
def probes() -> Probes:
    return Probes()


@pytest.fixture
async def make(probes: Probes) -> AsyncIterator[Make]:
    pools: list[ServerPool] = []

    def make(*urls: str, concurrency: int = 2) -> ServerPool:
        pool = ServerPool(urls, concurrency=concurrency, backoff_s=0.01, max_backoff_s=0.04, probe=probes.probe)
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        await pool.close()


async def test_the_server_with_the_fewest_programs_is_asked_and_none_beyond_its_limit(make: Make) -> None:
    pool, most, now = make(A, B), Counter[str](), Counter[str]()

    async def one() -> None:
        async with pool.server() as url:
            now[url] += 1
            most[url] = max(most[url], now[url])
            await asyncio.sleep(0)
            now[url] -= 1

    await asyncio.gather(*(one() for _ in range(40)))
    assert most == {A: 2, B: 2}


async def test_a_preferred_server_is_asked_while_it_has_room(make: Make) -> None:
    pool = make(A, B, concurrency=1)
    async with pool.server(B) as first, pool.server(B) as second:
        assert (first, second) == (B, A)


async def test_waiting_programs_are_served_in_order(make: Make) -> None:
    pool, served = make(A, concurrency=1), []

    async def one(number: int) -> None:
        async with pool.server():
            served.append(number)
            await asyncio.sleep(0)

    await asyncio.gather(*(one(number) for number in range(20)))
    assert served == list(range(20))


async def test_a_program_cancelled_while_it_waits_takes_no_place(make: Make) -> None:
    pool = make(A, concurrency=1)
    async with pool.server():
        waiting = [asyncio.create_task(_take(pool)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
    assert await asyncio.gather(*waiting[1:]) == [A, A]
    assert await _take(pool) == A


async def test_a_program_cancelled_as_its_turn_comes_gives_its_place_back(make: Make) -> None:
    pool = make(A, concurrency=1)
    async with pool.server():
        waiting = asyncio.create_task(_take(pool))
        await asyncio.sleep(0)
    waiting.cancel()  # its turn has come, and it does not know yet
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await asyncio.wait_for(_take(pool), 30) == A


async def test_a_server_that_fails_is_left_alone_until_it_can_run_a_program(make: Make, probes: Probes) -> None:
    pool = make(A, B)
    probes.broken.add(A)
    with pytest.raises(ServerFault):
        async with pool.server(A):
            raise ServerFault(A, "gone")
    assert pool.available == (B,)
    while probes.asked[A] < 3:
        assert await _take(pool, A) == B
        await asyncio.sleep(0.005)
    probes.broken.clear()
    while pool.available != (A, B):
        await asyncio.sleep(0.005)
    assert await _take(pool, A) == A


async def test_a_fault_of_the_program_itself_is_none_of_the_server(make: Make) -> None:
    pool = make(A)
    with pytest.raises(ValueError, match="mine"):
        async with pool.server():
            raise ValueError("mine")
    assert pool.available == (A,)
    assert await _take(pool) == A


async def test_a_program_waiting_when_all_servers_fail_gets_the_fault_of_each(make: Make, probes: Probes) -> None:
    pool = make(A, B)
    probes.broken |= {A, B}
    for url in (A, B):
        pool.mark_failed(url, ServerFault(url, "gone"))
    with pytest.raises(NoServer, match=r"http://a: still broken; .*http://b: still broken"):
        await _take(pool)
    probes.broken.remove(B)
    assert await asyncio.wait_for(_take(pool), 30) == B


async def _take(pool: ServerPool, preferred: str | None = None) -> str:
    async with pool.server(preferred) as url:
        return url
