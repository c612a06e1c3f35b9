"""Lifecycle of the fork server: it ends with its driver, and its faults are told apart from those of programs."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from mappa_core import ToolError, ToolLimits
from mappa_core.tools.owned_folder import OWNER
from mappa_sandbox import fork_server_process
from mappa_sandbox.isolation.fork_server import ForkServer
from mappa_sandbox.isolation.processes import descendants_of
from mappa_sandbox.messages import SUPERVISOR_LOST
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

SLEEP = "import subprocess\nsubprocess.run(['sleep', '{}'])"


@pytest.fixture
def mark() -> str:
    return f"98767{time.monotonic_ns() % 10**9}"


@pytest.fixture(autouse=True)
def scratch(monkeypatch, tmp_path) -> Path:
    """Parent of the fork server's scratch folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def fork_server_of(pids) -> int:
    """The fork server among its forks, which have its command line: it alone is our child."""
    (fork_server,) = (pid for pid in pids if f"PPid:\t{os.getpid()}\n" in Path(f"/proc/{pid}/status").read_text())
    return fork_server


@pytest.fixture
def under_way(run, processes, mark):
    """A program that sleeps, begun."""

    async def under_way():
        task = asyncio.create_task(run(SLEEP.format(mark), wall_s=100.0))
        await until(lambda: task.done() or processes(mark))
        return task

    return under_way


async def test_one_fork_server_serves_many_programs(uncaged, workspace):
    code = "import os; print(open(f'/proc/{os.getppid()}/stat').read().split()[3])"
    parents = {(await uncaged.call({"code": code}, workspace, ToolLimits())).stdout for _ in range(3)}
    assert len(parents) == 1


async def test_closing_ends_everything_and_leaves_no_folder(tool, under_way, processes, scratch, mark):
    task = await under_way()
    await until(lambda: processes(str(scratch)) and processes(mark))
    await tool.close()
    assert processes(str(scratch)) == processes(mark) == [] == list(scratch.iterdir())
    with pytest.raises(ToolError, match="fork server ended"):
        await task


async def test_a_closed_tool_can_be_used_again(tool, run):
    await run("")
    await tool.close()
    assert (await run("print(1)")).stdout == "1\n"


async def test_closing_an_unused_tool_starts_nothing(tool, scratch):
    await tool.close()
    assert list(scratch.iterdir()) == []


async def test_a_run_leaves_no_folder_of_its_own(run, scratch):
    await run("import tempfile, os\nopen(os.path.expanduser('~/x'), 'w').close()\ntempfile.mkdtemp()")
    (fork_server,) = scratch.iterdir()
    assert [path.name for path in fork_server.iterdir()] == [OWNER]


KILLED = """
import asyncio, sys, tempfile
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

tempfile.tempdir = sys.argv[1]
tool = PythonTool(PythonOptions())
asyncio.run(tool.open())
print("open", flush=True)
sys.stdin.read()
"""


async def test_the_next_run_removes_folders_of_a_killed_run(run, scratch):
    driver = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(scratch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with driver:
        assert driver.stdout.readline() == b"open\n"
        (left,) = scratch.iterdir()
        for pid in (driver.pid, *descendants_of(driver.pid)):
            with contextlib.suppress(ProcessLookupError):  # Some die with the one before.
                os.kill(pid, signal.SIGKILL)
    assert left.is_dir()
    await run("")
    (ours,) = scratch.iterdir()
    assert ours != left


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_fork_server_that_dies_loses_programs_and_is_replaced(run, under_way, processes, scratch, mark, number):
    task = await under_way()
    os.kill(fork_server_of(processes(str(scratch))), number)
    with pytest.raises(ToolError, match="fork server ended"):
        await task
    await until(lambda: processes(mark) == [])
    assert (await run("print(1)")).stdout == "1\n"


async def test_a_zygote_that_dies_ends_its_fork_server(tool, run, under_way, processes, scratch, mark):
    if (await tool.open()).name != "bubblewrap":
        pytest.skip("elsewhere the fork server itself is what programs are forked of")
    task = await under_way()
    fork_server = fork_server_of(processes(str(scratch)))
    zygote = int(Path(f"/proc/{fork_server}/task/{fork_server}/children").read_text().split()[0])
    os.kill(zygote, signal.SIGKILL)
    with pytest.raises(ToolError, match="fork server ended"):
        await task
    await until(lambda: processes(mark) == [])
    assert (await run("print(1)")).stdout == "1\n"


async def test_killing_the_supervisor_is_the_programs_own_error(uncaged, workspace, processes, mark):
    async def run(code):
        return await uncaged.call({"code": code}, workspace, ToolLimits(wall_s=20.0))

    code = f"import os, subprocess\nsubprocess.Popen(['sleep', '{mark}'], start_new_session=True)\n"
    code += "print(1, flush=True)\nos.kill(os.getppid(), 9)"
    result = await run(code)
    assert (result.status, result.exit_code, result.stderr) == ("error", None, SUPERVISOR_LOST)
    await until(lambda: processes(mark) == [])
    assert (await run("print(1)")).stdout == "1\n"


REAPED = f"""
import contextlib, os, socket, subprocess, sys
from mappa_sandbox.isolation import kernel
from mappa_sandbox.isolation.job import SandboxConfig
from {ForkServer.__module__} import ForkServer

kernel.become_subreaper()
server = ForkServer(socket.socketpair()[0], SandboxConfig(backend="none", scratch=sys.argv[2]))
subprocess.Popen(["sh", "-c", f"sleep {{sys.argv[1]}} & exit 0"]).returncode = 0  # left to the fork server
os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
server._reap()
with contextlib.suppress(ChildProcessError):  # it may have been reaped on the way
    os.waitid(os.P_ALL, 0, os.WEXITED)
"""


async def test_an_orphan_that_ends_by_itself_leaves_no_process(processes, scratch, mark):
    """It can end of itself while what a killed supervisor left is being ended."""
    subprocess.run([sys.executable, "-c", REAPED, mark, str(scratch)], check=True, timeout=20)
    assert processes(mark) == []


async def test_stopping_the_supervisor_is_the_programs_own_error(monkeypatch, uncaged, workspace, processes, mark):
    monkeypatch.setattr(fork_server_process, "KILL_GRACE_S", 0.5)
    code = f"import os\nos.kill(os.getppid(), {signal.SIGSTOP})\nos.execvp('sleep', ['sleep', '{mark}'])"
    result = await uncaged.call({"code": code}, workspace, ToolLimits(wall_s=0.1))
    assert (result.status, result.stderr) == ("error", SUPERVISOR_LOST)
    await until(lambda: processes(mark) == [])


async def test_a_stopped_fork_server_is_given_up(monkeypatch, run, processes, scratch):
    monkeypatch.setattr(fork_server_process, "KILL_GRACE_S", 0.5)
    await run("")
    os.kill(fork_server_of(processes(str(scratch))), signal.SIGSTOP)
    with pytest.raises(ToolError, match="does not answer"):
        await run("print(1)", wall_s=0.1)
    assert (await run("print(1)")).stdout == "1\n"


async def test_cancelling_ends_the_program(run, under_way, processes, mark):
    task = await under_way()
    await until(lambda: processes(mark))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: processes(mark) == [])
    assert (await run("print(1)")).stdout == "1\n"


async def test_a_lost_program_frees_its_worker(workspace):
    tool = PythonTool(PythonOptions(workers=1, sandbox="none", allow_unsafe=True))
    for _ in range(3):
        await tool.call({"code": "import os; os.kill(os.getppid(), 9)"}, workspace, ToolLimits())
    assert (await tool.call({"code": "print(1)"}, workspace, ToolLimits())).stdout == "1\n"
    await tool.close()


DRIVER = """
import asyncio, sys
from pathlib import Path
from mappa_core.records import ToolLimits
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool
from mappa_sandbox.isolation.fork_server import ForkServer
from mappa_core.tools.workspace import FolderWorkspace

async def main():
    tool = PythonTool(PythonOptions())
    await tool.call({"code": sys.argv[2]}, FolderWorkspace(Path(sys.argv[1])), ToolLimits(wall_s=100))

asyncio.run(main())
"""


async def test_a_killed_driver_leaves_no_process_and_no_folder(workspace, processes, scratch, mark):
    code = f"import subprocess\nsubprocess.Popen(['setsid', 'sleep', '{mark}'])\n" + SLEEP.format(mark)
    parent = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(workspace.path), code], env={**os.environ, "TMPDIR": str(scratch)}
    )
    await until(lambda: len(processes(mark)) >= 3)  # the driver has it in its command line too
    parent.kill()
    parent.wait()
    await until(lambda: not processes(mark) and not processes(str(scratch)) and not list(scratch.iterdir()))


async def test_descriptors_do_not_pile_up(tool, run):
    await run("")
    before = len(list(Path("/proc/self/fd").iterdir()))
    await asyncio.gather(*(run("print(1)") for _ in range(20)))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_importing_the_tool_is_light():
    code = "import sys, mappa_sandbox.tool, mappa_core.tools.run_call\n"
    code += "print([name for name in ('torch', 'transformers', 'jsonschema') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n"
