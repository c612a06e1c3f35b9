"""A transport that does as it is told."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mappa_core import Message, Usage
from mappa_core.transport import CallError, Reply, Request


def reply(text: str = "yes", **fields: Any) -> Reply:
    usage = Usage(calls=1, prompt_tokens=100, completion_tokens=20, cached_tokens=40)
    return Reply(**{"text": text, "stop": "end", "model": "m-1", "raw": text, "usage": usage, **fields})


class Scripted:
    """A transport that gives its answers in turn, the last one again and again: a Reply, an exception or a function
    of the request. Each takes `latency` seconds."""

    model = "m"
    host = "example.org"

    def __init__(self, *answers: Any, latency: float = 0.0) -> None:
        self._answers = answers
        self._latency = latency
        self.requests: list[Request] = []
        self.times: list[float] = []
        self.most_at_once = self._at_once = 0
        self.closed = False

    async def complete(self, request: Request) -> Reply:
        answer = self._answers[min(len(self.times), len(self._answers) - 1)]
        self.requests.append(request)
        self.times.append(asyncio.get_running_loop().time())
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(self._latency)
        finally:
            self._at_once -= 1
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def count(self, messages: Any) -> int | None:
        if not self._latency:
            return sum(len(message.content) for message in messages)
        await asyncio.sleep(self._latency)
        raise CallError("server", "the counter is broken")

    async def close(self) -> None:
        self.closed = True


@pytest.fixture(scope="session")
def scripted() -> type[Scripted]:
    return Scripted


@pytest.fixture(scope="session")
def answer() -> Callable[..., Reply]:
    return reply


@pytest.fixture(scope="session")
def ask() -> Callable[..., Request]:
    """A request of so many characters."""

    def request(characters: int = 40, **fields: Any) -> Request:
        return Request(messages=(Message(role="user", content="x" * characters),), **fields)

    return request
