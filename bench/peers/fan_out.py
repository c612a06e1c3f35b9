"""How a rival of `bench/coach.py` is driven: it reads its questions as one JSON line, warms up, and says so. Then it
asks them all for every further line, which says how many at once, and answers with seconds of wall time and of CPU
time."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from measure import cpu_seconds

WARM_UP = 64
Chat = Sequence[Mapping[str, str]]
"""What is asked: a message of the system and one of the user, with `role` and `content`."""
Judge = Callable[[Chat], Awaitable[Mapping[str, Any]]]
"""Gives the reply, read as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exam:
    """The model, where it is, and what it is asked; `extra` are further arguments of the API."""

    url: str
    model: str
    questions: Sequence[Chat]
    extra: Mapping[str, Any]


def read_exam() -> Exam:
    return Exam(**json.loads(sys.stdin.readline()))


async def serve(judge: Judge, exam: Exam) -> None:
    await _ask(judge, exam.questions[:WARM_UP], WARM_UP)
    gc.collect()
    gc.freeze()
    print("warm", flush=True)
    while at_once := await asyncio.to_thread(sys.stdin.readline):
        wall, cpu = time.perf_counter(), cpu_seconds()
        await _ask(judge, exam.questions, int(at_once))
        print(json.dumps([time.perf_counter() - wall, cpu_seconds() - cpu]), flush=True)


async def _ask(judge: Judge, questions: Sequence[Chat], at_once: int) -> None:
    slots = asyncio.Semaphore(at_once)

    async def one(question: Chat) -> Mapping[str, Any]:
        async with slots:
            return await judge(question)

    verdicts = await asyncio.gather(*(one(question) for question in questions))
    assert all(0 <= verdict["score"] <= 10 for verdict in verdicts)
