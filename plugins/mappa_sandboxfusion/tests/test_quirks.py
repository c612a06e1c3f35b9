"""Every quirk of the server, on pairs that were recorded of a real one: the client asks, the recorded answer comes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from mappa.testing import WireAnswer, WireRequest, WireServer, json_answer
from mappa_sandboxfusion import quirks
from mappa_sandboxfusion.client import FusionClient, RunCodeResponse, ServerFault
from mappa_sandboxfusion.probe import inspect_server

WIRE = {path.stem: json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "wire").glob("*.json"))}
Replay = Callable[[str], Awaitable[RunCodeResponse]]


def recorded(name: str) -> WireAnswer:
    return json_answer(WIRE[name]["response"], WIRE[name]["http_status"])


def code_of(name: str) -> str:
    code: str = WIRE[name]["request"]["body"]["code"]
    return code


@pytest.fixture
async def replay() -> AsyncIterator[Replay]:
    """Asks as a recorded request did, and gets the recorded answer."""
    heard: list[WireRequest] = []

    async def replay(name: str) -> RunCodeResponse:
        body: dict[str, Any] = WIRE[name]["request"]["body"]
        async with WireServer([recorded(name)]) as server:
            client = FusionClient(server.url, connect_timeout_s=30.0)
            try:
                return await client.run_code(
                    body["code"],
                    fetch=body.get("fetch_files", ()),
                    run_timeout_s=body.get("run_timeout", 10),
                    memory_limit_mb=body.get("memory_limit_MB"),
                    deadline_s=30.0,
                )
            finally:
                heard.extend(server.requests)
                await client.close()

    yield replay
    for request in heard:
        assert (request.method, request.path) == ("POST", "/run_code")
        assert request.body["language"] == "python"


@pytest.mark.parametrize(
    ("name", "status", "code", "said"),
    [
        ("01_success", "Success", 0, "warn\n"),
        ("02_exception", "Failed", 1, "ZeroDivisionError: division by zero\n"),
        ("03_sys_exit_3", "Failed", 3, ""),
        ("05_syntax_error", "Failed", 1, "SyntaxError: invalid syntax\n"),
        ("09_memory_rlimit", "Failed", 1, "MemoryError\n"),
        ("21_killed_by_signal", "Failed", -9, ""),
    ],
)
async def test_a_program_that_fails_is_no_fault_of_the_server(
    replay: Replay, name: str, status: str, code: int, said: str
) -> None:
    run = await replay(name)
    assert quirks.find_fault("http://s", code_of(name), run) is None
    assert run.run_result is not None
    assert (run.status, run.run_result.status, run.run_result.return_code) == (status, "Finished", code)
    assert (run.run_result.stderr or "").endswith(said)


async def test_a_timeout_has_no_exit_code(replay: Replay) -> None:
    run = await replay("04_timeout")
    assert run.run_result is not None and quirks.find_fault("http://s", "", run) is None
    assert (run.run_result.status, run.run_result.return_code) == ("TimeLimitExceeded", None)


async def test_files_come_back_as_bytes_and_missing_ones_are_noticed(replay: Replay) -> None:
    run = await replay("07_files_in_out")
    asked = WIRE["07_files_in_out"]["request"]["body"]["fetch_files"]
    assert run.status == "Success"
    assert quirks.check_fetched("http://s", ["sub.csv"], run) == {"sub.csv": b"id,target\n1,0.5\n"}
    with pytest.raises(ServerFault, match=r"says Success, but these files did not come back: missing\.txt"):
        quirks.check_fetched("http://s", asked, run)


@pytest.mark.parametrize("name", ["08b_big_stdout_300k", "08d_big_stdout_1M"])
async def test_output_that_the_server_cut_is_not_believed(replay: Replay, name: str) -> None:
    """The recorded strings were shortened: they are made as long again as the server sent them."""
    sent = "x" * 219_264
    run = await replay(name)
    assert run.run_result is not None
    assert set(run.run_result.stdout or "") <= set("x…[shortened]")
    with pytest.raises(ServerFault, match="damaged or cut"):
        quirks.check_output("http://s", sent)
    assert quirks.check_output("http://s", "x" * 100_001)


async def test_a_stalled_program_looks_like_one_that_took_too_long(replay: Replay) -> None:
    """So no output of agents goes over the server's pipes: it is in a file of the supervisor's."""
    run = await replay("08d_big_stdout_1M")
    assert run.run_result is not None and run.run_result.status == "TimeLimitExceeded"


async def test_output_that_is_not_utf8_is_not_believed(replay: Replay) -> None:
    run = await replay("20_nonutf8_stdout")
    assert run.status == "Success" and run.run_result is not None
    with pytest.raises(ServerFault, match="damaged or cut"):
        quirks.check_output("http://s", run.run_result.stdout)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("12_bad_base64", "could not run a program: exception on running code …: Invalid base64-encoded string"),
        ("24_no_runtime_env", "install its environment sandbox-runtime"),
    ],
)
async def test_an_error_with_status_200_is_a_fault_and_does_not_repeat_the_program(
    replay: Replay, name: str, said: str
) -> None:
    run = await replay(name)
    fault = quirks.find_fault("http://s", code_of(name), run)
    assert fault is not None and said in str(fault)
    assert code_of(name) not in str(fault)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("10_unknown_language", "HTTP 422 .*literal_error"),
        ("11_missing_code", "HTTP 422 .*Field required"),
        ("12b_files_type", "HTTP 422 .*valid string"),
        ("13_not_json", "HTTP 422 .*JSON decode error"),
        ("15_404", r"there is no /run_code \(HTTP 404\)"),
        ("15b_405", r"there is no /run_code \(HTTP 405\)"),
    ],
)
async def test_a_refusal_says_what_the_server_says(name: str, said: str) -> None:
    async with WireServer([recorded(name)]) as server:
        client = FusionClient(server.url, connect_timeout_s=30.0)
        with pytest.raises(ServerFault, match=said) as refused:
            await client.run_code("print(1)", run_timeout_s=10, deadline_s=30.0)
        assert server.url in str(refused.value)
        await client.close()


async def test_a_server_that_says_pong_may_be_unable_to_run_anything() -> None:
    async with WireServer([recorded("00_ping"), recorded("24_no_runtime_env")]) as server:
        client = FusionClient(server.url, connect_timeout_s=30.0)
        with pytest.raises(ServerFault, match="has no Python for programs"):
            await inspect_server(client, "mappa-fusion-test")
        await client.close()
    assert [request.path for request in server.requests] == ["/v1/ping", "/run_code"]


async def test_the_status_says_nothing_of_processes_that_are_left(replay: Replay) -> None:
    """test_tool.py has the program that leaves one, and looks for it."""
    for name in ("17_background_child", "17b_background_detached"):
        run = await replay(name)
        assert run.status == "Success" and run.run_result is not None and run.run_result.return_code == 0


async def test_the_memory_limit_keeps_threads_from_starting(replay: Replay) -> None:
    """test_tool.py starts a thread under the limit."""
    run = await replay("23_memory_limit_threads")
    assert run.run_result is not None and "can't start new thread" in (run.run_result.stderr or "")
