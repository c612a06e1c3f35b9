r"""Rule-based grading: compares the last boxed expression of a text with the known answer.

Plain answers are compared in this process (`equality`). Worker processes (`algebra_workers`) compare what needs
algebra, with one budget of CPU time for each answer; an answer that exceeds it counts as wrong.
"""

from __future__ import annotations

import asyncio
import atexit
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from mappa_mathchat.algebra_workers import MAX_ANSWER_SECONDS, WORKERS, AlgebraPool
from mappa_mathchat.equality import answers_equal
from mappa_mathchat.extract_answer import extract_final_answer


class _NeedsAlgebra(Exception):
    """Raised by a comparison in the event loop that would have to wait for algebra."""


def _refuse_algebra(_answer: str, _reference: str) -> bool:
    raise _NeedsAlgebra


class Grader:
    """Grades concurrently without blocking the event loop."""

    def __init__(self, seconds: float = MAX_ANSWER_SECONDS) -> None:
        self._pool = AlgebraPool(seconds)
        self._threads = ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="grader")

    async def is_correct(self, text: str, reference: str) -> bool:
        r"""Whether the last `\boxed{}` of `text` outside think text equals `reference`; False without one."""
        answer = extract_final_answer(text)
        return answer is not None and await self.are_equal(answer, reference)

    async def are_equal(self, answer: str, reference: str) -> bool:
        """Whether two extracted answers are equal by the same rules."""
        try:
            return answers_equal(answer, reference, _refuse_algebra)
        except _NeedsAlgebra:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._pool.answers_equal, answer, reference)

    async def close(self) -> None:
        """End the worker processes; pending comparisons fail."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._pool.close)


@cache
def _shared_pool() -> AlgebraPool:
    pool = AlgebraPool()
    atexit.register(pool.close)
    return pool


def is_correct(text: str, reference: str) -> bool:
    r"""Whether the last `\boxed{}` of `text` outside think text equals `reference`; False without one.

    Blocks for at most a few seconds (the budget of an answer) where algebra is needed. In an event loop use Grader.
    """
    answer = extract_final_answer(text)
    return answer is not None and _shared_pool().answers_equal(answer, reference)
