"""The client of an SDK: one event loop at a time, and nothing of the environment that it should not see."""

import asyncio
import os

import pytest

from mappa_core.calls.sdk_transport import LoopBound, hidden_environment


class Client:
    """Notes what happens to it."""

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def bound() -> LoopBound[Client]:
    return LoopBound(Client, Client.close)


async def use(bound: LoopBound[Client]) -> Client:
    return bound.get()


async def use_and_close(bound: LoopBound[Client]) -> Client:
    client = bound.get()
    await bound.close()
    return client


def test_a_client_is_made_once_and_closed_once(bound):
    async def main() -> tuple[Client, Client]:
        used = bound.get(), bound.get()
        await bound.close()
        await bound.close()
        return used

    first, second = asyncio.run(main())
    assert first is second
    assert first.closed == 1


def test_unused_client_is_closed_without_being_created():
    def never() -> Client:
        raise AssertionError

    asyncio.run(LoopBound(never, Client.close).close())


def test_closed_client_is_created_anew_in_any_event_loop(bound):
    first, second = (asyncio.run(use_and_close(bound)) for _ in range(2))
    assert first is not second
    assert (first.closed, second.closed) == (1, 1)


def test_client_refuses_a_second_event_loop_until_closed(bound):
    with asyncio.Runner() as runner:
        client = runner.run(use(bound))
        with pytest.raises(RuntimeError, match="this transport is open in another event loop: close it there"):
            asyncio.run(use(bound))
        assert runner.run(use(bound)) is client
        runner.run(bound.close())
    assert client.closed == 1


def test_without_an_event_loop_no_client_is_made(bound):
    with pytest.raises(RuntimeError, match="no running event loop"):
        bound.get()
    asyncio.run(use_and_close(bound))


def test_a_client_that_cannot_be_made_is_tried_again():
    made = iter([ValueError("no certificates"), None])

    def connect() -> Client:
        if error := next(made):
            raise error
        return Client()

    bound = LoopBound(connect, Client.close)
    with pytest.raises(ValueError, match="no certificates"):
        asyncio.run(use(bound))
    assert asyncio.run(use_and_close(bound)).closed == 1


def test_variables_are_hidden_and_come_back_whatever_happens(monkeypatch):
    monkeypatch.setenv("ODD_HEADERS", "x-nonsense: yes")
    monkeypatch.setenv("ODD_KEY", "another")
    monkeypatch.delenv("ODD_NOTHING", raising=False)
    before = dict(os.environ)
    with pytest.raises(ZeroDivisionError), hidden_environment("ODD_HEADERS", "ODD_NOTHING"):
        assert "ODD_HEADERS" not in os.environ
        assert os.environ["ODD_KEY"] == "another"
        raise ZeroDivisionError
    assert dict(os.environ) == before
