"""Deadlines of waits: an answer that is there is taken, and a driver that stalled has waited for nobody meanwhile."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from mappa_engine.cluster.actors.deadlines import TICK_S, run_by_deadline, wait_all

HOURS = 3 * 3600.0
DEADLINE_S = 20.0


class StallingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can jump: as if a callback had taken so long."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def run_stalling(main):
    """Run `main(loop)` in a loop that can stall."""
    with asyncio.Runner(loop_factory=StallingLoop) as runner:
        return runner.run(main(runner.get_loop()))


def answer_from_a_thread(future: Future, value: int) -> None:
    thread = threading.Thread(target=future.set_result, args=(value,))
    thread.start()
    thread.join()


def test_deadline_takes_an_answer_from_during_a_stall():
    future: Future[int] = Future()

    async def main(loop):
        def stall():
            answer_from_a_thread(future, 7)
            loop.ahead += HOURS

        loop.call_soon(stall)
        await wait_all([future], DEADLINE_S)

    run_stalling(main)
    assert future.result() == 7


def test_deadline_is_extended_by_a_stall():
    future: Future[int] = Future()

    async def main(loop):
        def stall():
            loop.ahead += HOURS
            # Some turns of the loop later, so that a deadline would have fired before.
            loop.call_later(0.05, answer_from_a_thread, future, 7)

        loop.call_soon(stall)
        await wait_all([future], DEADLINE_S)

    run_stalling(main)
    assert future.result() == 7


def test_deadline_counts_time_without_stalls():
    future: Future[int] = Future()
    turns = 0

    async def main(loop):
        def tick():
            nonlocal turns
            turns += 1
            loop.ahead += TICK_S
            loop.call_soon(tick)

        loop.call_soon(tick)
        with pytest.raises(TimeoutError):
            await wait_all([future], DEADLINE_S)

    run_stalling(main)
    assert turns >= DEADLINE_S / TICK_S


def test_one_failure_ends_a_wait_for_several():
    late: Future[int] = Future()
    failed: Future[int] = Future()
    failed.set_exception(ValueError("broken"))

    async def main(loop):
        await wait_all([late, failed], DEADLINE_S)

    run_stalling(main)
    assert not late.done()


def test_work_during_a_stall_is_not_cancelled():
    async def work(loop):
        loop.ahead += HOURS
        await asyncio.sleep(0.01)
        loop.ahead += HOURS
        return 7

    async def main(loop):
        return await run_by_deadline(work(loop), DEADLINE_S)

    assert run_stalling(main) == 7


def test_work_beyond_the_deadline_is_cancelled():
    ended = []

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(True)

    async def main(loop):
        with pytest.raises(TimeoutError):
            await run_by_deadline(work(), 0.05)

    run_stalling(main)
    assert ended
