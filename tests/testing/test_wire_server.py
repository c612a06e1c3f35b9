"""The server that tests of transports talk to, seen by a plain HTTP client."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import aiohttp
import pytest

from mappa.testing import WireAnswer, WireServer, answer_from_capture, json_answer


async def ask(url: str, seconds: float = 30.0) -> tuple[int, str, bytes]:
    """Status, content type and body of what is answered to a request."""
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=seconds)) as session,
        session.post(f"{url}/v1/ask?twice=no", json={"question": 1}, headers={"X-Key": "k"}) as response,
    ):
        return response.status, response.headers["content-type"], await response.read()


async def test_answers_come_in_order_and_byte_for_byte() -> None:
    odd = WireAnswer(status=418, headers={"content-type": "x/odd"}, body=b"\x00\xff")
    async with WireServer([json_answer({"a": 1}, retry_after="7"), odd]) as server:
        assert await ask(server.url) == (200, "application/json", b'{"a": 1}')
        assert await ask(server.url) == (418, "x/odd", b"\x00\xff")
        assert (await ask(server.url))[0] == 599, "a request that no test expects is an error of its own"
    assert len(server.requests) == 3


async def test_requests_are_recorded() -> None:
    async with WireServer([json_answer({})]) as server:
        await ask(server.url)
    (heard,) = server.requests
    assert (heard.method, heard.path, heard.body) == ("POST", "/v1/ask?twice=no", {"question": 1})
    assert heard.headers["x-key"] == "k"


async def test_a_function_may_answer_by_what_is_asked() -> None:
    async with WireServer(lambda request: json_answer(request.body)) as server:
        assert await ask(server.url) == await ask(server.url) == (200, "application/json", b'{"question": 1}')


async def test_captures_are_replayed() -> None:
    headers = {"content-type": "application/json", "x-request-id": "1"}
    value = answer_from_capture({"response": {"status": 429, "headers": headers, "body": {"error": "é"}}})
    assert (value.status, value.headers, value.body) == (429, headers, b'{"error": "\\u00e9"}')
    assert answer_from_capture({"response": {"status": 200, "headers": {}, "raw_body": '{"é'}}).body == '{"é'.encode()


@pytest.mark.parametrize(
    ("trouble", "error"),
    [
        ("hang", TimeoutError),
        ("drop", aiohttp.ServerDisconnectedError),
        ("cut", aiohttp.ClientPayloadError),
        ("noise", aiohttp.ClientResponseError),
    ],
)
async def test_each_kind_of_trouble_disturbs_the_answer_as_named(trouble, error) -> None:
    async with WireServer([WireAnswer(body=b'{"so": "far"}', trouble=trouble)]) as server:
        with pytest.raises(error):
            await ask(server.url, seconds=0.2 if trouble == "hang" else 30.0)


async def test_slowly_sent_body_arrives_whole() -> None:
    async with WireServer([WireAnswer(body=b'{"so": "far"}', trouble="drip", pace_s=0.001)]) as server:
        assert await ask(server.url) == (200, "application/json", b'{"so": "far"}')


async def test_a_server_closes_while_a_request_hangs() -> None:
    async with WireServer([WireAnswer(trouble="hang")]) as server:
        asking = asyncio.create_task(ask(server.url))
        while not server.requests:
            await asyncio.sleep(0)
    with pytest.raises(aiohttp.ClientError):
        await asking


def test_aiohttp_and_pytest_are_imported_on_first_use() -> None:
    code = (
        "import sys, mappa.testing as testing\n"
        "print(sorted({'aiohttp', 'pytest'} & set(sys.modules)))\n"
        "assert all(getattr(testing, name) for name in testing.__all__)\n"
        "print(sorted({'aiohttp', 'pytest'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n['aiohttp', 'pytest']\n"
