"""Calls that go wrong on the way: what a server, or something that is none, can do to a client."""

from __future__ import annotations

import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mappa.testing import WireAnswer, WireServer, json_answer
from mappa.testing.wire_server import GARBAGE, HTML
from mappa_sandboxfusion.client import BASE_ANSWER_BYTES, FusionClient, RunCodeResponse, ServerFault

RESULT = {"status": "Finished", "execution_time": 0.1, "return_code": 0, "stdout": "1\n", "stderr": ""}
GOOD = {"status": "Success", "message": "", "compile_result": None, "run_result": RESULT, "files": {"a": "aGk="}}


@asynccontextmanager
async def client_of(*answers: WireAnswer) -> AsyncIterator[FusionClient]:
    async with WireServer(answers) as server:
        client = FusionClient(server.url, connect_timeout_s=30.0)
        yield client
        await client.close()


async def ask(client: FusionClient, deadline_s: float = 30.0) -> RunCodeResponse:
    return await client.run_code("print(1)", run_timeout_s=10, deadline_s=deadline_s)


async def test_what_is_asked_and_what_comes_back() -> None:
    async with WireServer([json_answer(GOOD), json_answer("pong")]) as server:
        client = FusionClient(server.url + "/", connect_timeout_s=30.0)
        run = await client.run_code(
            "print(1)", files={"x": b"\x00\xff"}, fetch=["a"], run_timeout_s=7.5, deadline_s=30, memory_limit_mb=512
        )
        await client.ping()
        await client.close()
    assert run.files == {"a": b"hi"}
    asked, pinged = server.requests
    assert asked.body == {
        "language": "python", "code": "print(1)", "run_timeout": 7.5, "files": {"x": "AP8="}, "fetch_files": ["a"],
        "memory_limit_MB": 512,
    }  # fmt: skip
    assert (pinged.method, pinged.path) == ("GET", "/v1/ping")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (json_answer({"detail": "no", "traceback": ["…"]}, 500), "HTTP 500 from /run_code: .*no"),
        (WireAnswer(status=502, body=b"<html>Bad gateway</html>"), "HTTP 502 .*Bad gateway"),
        (json_answer({}, 307, location="http://127.0.0.1:1/run_code"), "redirects .*give the address that it leads to"),
        (HTML, "not an answer of SandboxFusion"),
        (GARBAGE, "not an answer of SandboxFusion"),
        (json_answer([1, 2]), "not an answer of SandboxFusion"),
        (json_answer({**GOOD, "status": "Great"}), r"not an answer of SandboxFusion: .*Great"),
        (json_answer({**GOOD, "run_result": {"status": "Finished"}}), "not an answer of SandboxFusion"),
        (json_answer({**GOOD, "files": {"a": "###"}}), "not an answer of SandboxFusion: .*base64"),
        (WireAnswer(body=b" " * (BASE_ANSWER_BYTES + 1)), "more than was asked for"),
        (WireAnswer(body=b"{}", trouble="drop"), "the connection failed"),
        (WireAnswer(body=b"{}" * 9, trouble="cut"), "the connection failed"),
        (WireAnswer(trouble="noise"), "the connection failed"),
    ],
)
async def test_what_is_no_answer_is_a_fault_that_names_the_server(given: WireAnswer, said: str) -> None:
    async with client_of(given) as client:
        with pytest.raises(ServerFault, match=said) as fault:
            await ask(client)
        assert client.url in str(fault.value)


@pytest.mark.parametrize("trouble", ["hang", "drip"])
async def test_a_server_that_is_slow_for_ever_is_left_at_the_deadline(trouble: str) -> None:
    slow = WireAnswer(body=b"x" * 100_000, trouble=trouble)  # type: ignore[arg-type]
    async with client_of(slow) as client:
        with pytest.raises(ServerFault, match=r"did not answer /run_code within 0\.3 s"):
            await ask(client, deadline_s=0.3)


async def test_a_compressed_answer_is_not_unpacked() -> None:
    bomb = WireAnswer(
        headers={"content-type": "application/json", "content-encoding": "deflate"},
        body=zlib.compress(b" " * 50_000_000),
    )
    async with client_of(bomb) as client:
        with pytest.raises(ServerFault, match="not an answer of SandboxFusion"):
            await ask(client)


async def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    client = FusionClient(f"http://127.0.0.1:{port}", connect_timeout_s=30.0)
    with pytest.raises(ServerFault, match=r"the connection failed: .*is it running there"):
        await client.ping()
    await client.close()


async def test_a_ping_that_is_answered_by_something_else() -> None:
    async with client_of(json_answer("hello")) as client:
        with pytest.raises(ServerFault, match="to a ping"):
            await client.ping()


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with client_of(json_answer("pong")) as client:
        await client.ping()
