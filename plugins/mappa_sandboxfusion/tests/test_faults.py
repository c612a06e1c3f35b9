"""A server's faults: the program runs all the same, on what the folder on our side holds, or its call is lost in words.
Never is a fault taken for what the program did."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from mappa_core import ToolError, ToolResult
from mappa_core.sandbox import FolderWorkspace
from mappa_sandboxfusion.tool import SandboxFusionTool

Build = Callable[..., Awaitable[SandboxFusionTool]]
Run = Callable[..., Awaitable[ToolResult]]

APPEND = "open('log', 'a').write('x'); print(open('log').read())"


async def fails_with_500(server: Any, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"detail": "boom", "traceback": []}, status=500)


async def breaks_the_connection(server: Any, body: dict[str, Any]) -> web.StreamResponse:
    body["request"].transport.close()
    return web.Response()


async def runs_it_and_breaks_the_connection(server: Any, body: dict[str, Any]) -> web.StreamResponse:
    await server._run(body)
    body["request"].transport.close()
    return web.Response()


async def says_sandbox_error(server: Any, body: dict[str, Any]) -> web.StreamResponse:
    message = f"exception on running code {body['code']}: no space left on device None"
    empty = {"compile_result": None, "run_result": None, "executor_pod_name": None, "files": {}}
    return web.json_response({"status": "SandboxError", "message": message, **empty})


async def answers_in_another_shape(server: Any, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"ok": True})


async def leaves_files_out(server: Any, body: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({**await server._run(body), "files": {}})


async def damages_base64(server: Any, body: dict[str, Any]) -> web.StreamResponse:
    answer = await server._run(body)
    answer["files"] = {name: f"#{text}" for name, text in answer["files"].items()}
    return web.json_response(answer)


def changed(what: Callable[[dict[str, Any]], None]) -> Any:
    """Gives an answer.json that is not the program's."""

    async def trouble(server: Any, body: dict[str, Any]) -> web.StreamResponse:
        answer = await server._run(body)
        inner = json.loads(base64.b64decode(answer["files"]["answer.json"]))
        what(inner)
        answer["files"]["answer.json"] = base64.b64encode(json.dumps(inner).encode()).decode()
        return web.json_response(answer)

    return trouble


async def damages_a_file(server: Any, body: dict[str, Any]) -> web.StreamResponse:
    answer = await server._run(body)
    answer["files"]["changed.bin"] = base64.b64encode(b"not what it was").decode()
    return web.json_response(answer)


async def drips(server: Any, body: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-length": "100000"})
    await response.prepare(body["request"])
    for _ in range(1000):
        await response.write(b" ")
        await asyncio.sleep(0.05)
    return response


async def loses_all_before(server: Any, body: dict[str, Any]) -> None:
    server.lose()


def outside(inner: dict[str, Any]) -> None:
    inner["files"][0][0] = "../outside"


def too_big(inner: dict[str, Any]) -> None:
    inner["files"].append(["big", 1 << 50, "0" * 64, None])


def twice(inner: dict[str, Any]) -> None:
    inner["files"] *= 2


def no_reply(inner: dict[str, Any]) -> None:
    inner["reply"] = None


def runner_failed(inner: dict[str, Any]) -> None:
    inner["reply"] = {"fault": "cannot fork"}


@pytest.mark.parametrize(
    "trouble",
    [
        fails_with_500,
        breaks_the_connection,
        runs_it_and_breaks_the_connection,
        says_sandbox_error,
        answers_in_another_shape,
        leaves_files_out,
        damages_base64,
        damages_a_file,
        loses_all_before,
        *(pytest.param(changed(what), id=what.__name__) for what in (outside, too_big, twice, no_reply, runner_failed)),
    ],
)
async def test_the_program_is_run_again_on_the_files_as_they_were(
    build: Build, run: Run, fusion: Any, workspace: FolderWorkspace, trouble: Any
) -> None:
    tool = await build(fusion.url)
    assert (await run(tool, APPEND)).stdout == "x\n"
    fusion.troubles.append(trouble)
    assert (await run(tool, APPEND)).stdout == "xx\n"
    assert not fusion.troubles
    assert {path.name: path.read_text() for path in workspace.path.iterdir()} == {"log": "xx"}
    assert not (workspace.path.parent / "outside").exists()


async def test_a_server_that_loses_files_gets_them_again_before_the_program_starts(
    build: Build, run: Run, fusion: Any, tmp_path: Path
) -> None:
    data = tmp_path / "data.csv"
    data.write_text("1,2")
    folder = FolderWorkspace(tmp_path / "with-input", inputs={"data.csv": data})
    tool = await build(fusion.url)
    await run(tool, APPEND, folder)
    for turn in range(2, 4):
        fusion.lose()
        result = await run(tool, f"{APPEND[:-1]}, open('data.csv').read())", folder)
        assert result.stdout == "x" * turn + " 1,2\n"


@pytest.mark.parametrize("path", ["work/log", "inputs"])
async def test_a_copy_that_somebody_changed_is_put_right(
    build: Build, run: Run, fusion: Any, tmp_path: Path, path: str
) -> None:
    """Programs on a server without isolation can write to each other's folders."""
    data = tmp_path / "data.csv"
    data.write_text("1,2")
    folder = FolderWorkspace(tmp_path / "with-input", inputs={"data.csv": data})
    tool = await build(fusion.url)
    await run(tool, APPEND, folder)
    (root,) = fusion.temp.iterdir()
    (one,) = [file for file in root.rglob("*") if file.is_file() and path in str(file)]
    one.chmod(0o644)
    one.write_text("0,0")
    result = await run(tool, f"{APPEND[:-1]}, open('data.csv').read())", folder)
    assert result.stdout == "xx 1,2\n"


async def test_a_server_that_keeps_nothing_gets_everything_with_each_program(
    build: Build, run: Run, fusion: Any, tmp_path: Path
) -> None:
    fusion.keeps = False
    data = tmp_path / "data.csv"
    data.write_bytes(bytes(3 << 20))
    folder = FolderWorkspace(tmp_path / "with-input", inputs={"data.csv": data})
    tool = await build(fusion.url, chunk_mb=1)
    assert any("keeps no files" in warning for warning in (await tool.open()).warnings)
    write = (
        "import os; open('big', 'ab').write(bytes(2 << 20)); print(os.path.getsize('big'), os.path.getsize('data.csv'))"
    )
    assert (await run(tool, write, folder)).stdout == "2097152 3145728\n"
    assert (await run(tool, write, folder)).stdout == "4194304 3145728\n"
    assert (folder.path / "big").stat().st_size == 4 << 20


async def test_several_servers_behind_one_address_are_noticed(
    build: Build, run: Run, fusion: Any, workspace: FolderWorkspace
) -> None:
    """They show when a file comes in several calls, of which each goes to another server."""
    tool = await build(fusion.url, chunk_mb=1)
    (workspace.path / "big").write_bytes(bytes(3 << 20))
    calls = 12

    async def another(server: Any, body: dict[str, Any]) -> None:
        if "upload.bin" in body["files"]:
            server.lose()
        if len(server.heard) < calls:
            server.troubles.append(another)

    fusion.troubles.append(another)
    assert (await run(tool, "import os; print(os.path.getsize('big'))")).stdout == "3145728\n"
    assert len(fusion.orders) == 1


async def test_a_slow_server_is_left_at_the_deadline(
    build: Build, run: Run, fusion: Any, workspace: FolderWorkspace
) -> None:
    tool = await build(fusion.url, transfer_s=1.0, margin_s=1.0)
    fusion.troubles.append(drips)
    assert (await run(tool, "print('x')", wall_s=5.0)).stdout == "x\n"


async def test_a_server_that_is_killed_and_started_again_in_the_middle(
    build: Build, run: Run, fusion: Any, workspace: FolderWorkspace
) -> None:
    tool = await build(fusion.url)
    assert (await run(tool, APPEND)).stdout == "x\n"
    program = asyncio.create_task(run(tool, f"import time; time.sleep(1); {APPEND}"))
    while not fusion.running:
        await asyncio.sleep(0.01)
    await fusion.stop()
    fusion.lose()
    await fusion.start()
    assert (await program).stdout == "xx\n"


async def test_another_server_takes_over_with_all_files(
    build: Build, run: Run, fusion: Any, tmp_path: Path, workspace: FolderWorkspace
) -> None:
    other = type(fusion)(tmp_path / "other")
    await other.start()
    tool = await build(fusion.url, other.url)
    assert (await run(tool, APPEND)).stdout == "x\n"
    first = fusion if fusion.orders else other
    await first.stop()
    assert (await run(tool, APPEND)).stdout == "xx\n"
    assert fusion.orders and other.orders
    await other.stop()


async def test_a_server_that_was_down_at_the_start_is_used_when_it_is_up(
    build: Build, run: Run, fusion: Any, tmp_path: Path
) -> None:
    other = type(fusion)(tmp_path / "other")
    await other.start()
    await other.stop()
    tool = await build(fusion.url, other.url)
    assert any(other.url in warning and "connection failed" in warning for warning in (await tool.open()).warnings)
    await other.start()
    await fusion.stop()
    assert (await run(tool, "print('there')")).stdout == "there\n"
    assert other.orders
    await other.stop()


async def test_a_call_that_no_server_answers_raises_and_leaves_the_folder_as_before(
    build: Build, run: Run, fusion: Any, workspace: FolderWorkspace
) -> None:
    tool = await build(fusion.url, attempts=3)
    await run(tool, APPEND)
    await fusion.stop()
    with pytest.raises(ToolError, match=r"was sent 3 times and did not run; the last time: .*the connection failed"):
        await run(tool, APPEND)
    assert (workspace.path / "log").read_text() == "x"
    await fusion.start()
    assert (await run(tool, APPEND)).stdout == "xx\n"


async def test_what_an_agent_gets_wrong_is_no_fault_of_the_server(build: Build, run: Run, fusion: Any) -> None:
    tool = await build(fusion.url)
    for code in ("1/0", "import os; os._exit(7)", "import os; os.kill(os.getpid(), 11)", "raise SystemExit('no')"):
        assert (await run(tool, code)).status == "error"
    assert len(fusion.orders) == 4


async def test_a_call_that_is_cancelled_leaves_the_next_one_a_copy_of_its_own(
    build: Build, run: Run, fusion: Any, workspace: FolderWorkspace
) -> None:
    tool = await build(fusion.url)
    await run(tool, APPEND)
    program = asyncio.create_task(run(tool, f"{APPEND}; import time; time.sleep(3)"))
    while not fusion.running:
        await asyncio.sleep(0.01)
    program.cancel()
    with pytest.raises(asyncio.CancelledError):
        await program
    assert (await run(tool, APPEND)).stdout == "xx\n"
