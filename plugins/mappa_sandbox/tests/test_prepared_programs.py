"""Programs are prepared before their jobs are there, which must change nothing but how soon they run."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from mappa_core import ConfigError, ToolError, ToolLimits
from mappa_core.sandbox import FolderWorkspace
from mappa_sandbox.isolation import processes
from mappa_sandbox.isolation.job import Assignment
from mappa_sandbox.messages import program_job
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool


class Prepared:
    """A tool that has run one program, so that the next one is prepared."""

    def __init__(self, backend, root):
        self.tool = PythonTool(PythonOptions(sandbox=backend, allow_unsafe=backend == "none"))
        self.root = root

    async def call(self, code, **inputs):
        workspace = FolderWorkspace(self.root / "work", inputs=inputs)
        return await self.tool.call({"code": code}, workspace, ToolLimits(wall_s=20.0, file_bytes=3 << 20))

    async def waiting(self):
        """The supervisors that wait for a job, and the processes that are to run them, once there are no others."""
        (fork_server,) = set(processes.children_of(os.getpid())) - self.others
        async with asyncio.timeout(20):
            while True:
                supervisors, programs = processes.children_of(fork_server), []
                if self.backend == "bubblewrap":  # programs are children of the zygote, the fork server's first child
                    programs = processes.children_of(supervisors.pop(0))
                else:
                    programs = [child for supervisor in supervisors for child in processes.children_of(supervisor)]
                if len(programs) == len(supervisors) > 0:
                    return set(supervisors), set(programs)
                await asyncio.sleep(0.01)


@pytest.fixture(params=("bubblewrap", "landlock", "none"))
async def prepared(request, tmp_path):
    prepared = Prepared(request.param, tmp_path)
    prepared.others = set(processes.children_of(os.getpid()))
    try:
        prepared.backend = (await prepared.tool.open()).name
    except ConfigError as error:
        pytest.skip(str(error))
    await prepared.call("print(0)")
    yield prepared
    await prepared.tool.close()


async def test_the_next_program_is_one_that_was_prepared(prepared):
    for number in range(3):
        supervisors, _ = await prepared.waiting()
        assert (await prepared.call(f"print({number})")).stdout == f"{number}\n"
        assert supervisors - (await prepared.waiting())[0]


async def test_programs_that_were_prepared_at_once_draw_other_numbers(prepared):
    codes = ["import random; print(random.random())"] * 4
    drawn = {result.stdout for result in await asyncio.gather(*map(prepared.call, codes))}
    assert len(drawn) == 4


async def test_a_supervisor_that_was_killed_before_its_job_is_no_fault_of_the_agent(prepared):
    supervisors, _ = await prepared.waiting()
    for supervisor in supervisors:
        os.kill(supervisor, signal.SIGSTOP)
    task = asyncio.create_task(prepared.call("print(1)"))
    await asyncio.sleep(1)  # until one of them has been handed the job
    for supervisor in supervisors:
        os.kill(supervisor, signal.SIGKILL)
    with pytest.raises(ToolError, match="the supervisor ended with -9"):
        await task
    while any(map(processes.process_state, supervisors)):
        await asyncio.sleep(0.01)
    assert (await prepared.call("print(1)")).stdout == "1\n"


async def test_a_process_that_was_killed_before_its_job_is_no_fault_of_the_agent(prepared):
    _, programs = await prepared.waiting()
    for program in programs:
        os.kill(program, signal.SIGKILL)
    while any(processes.process_state(program) not in ("", "Z") for program in programs):
        await asyncio.sleep(0.01)
    with pytest.raises(ToolError, match="the process that was to run it had ended"):
        await prepared.call("print(1)")


@pytest.fixture
def mark() -> str:
    return f"98764{time.monotonic_ns() % 10**9}"


MOUNTS = """
import os
for line in open("/proc/self/mountinfo"):
    fields, _, _ = line.partition(" - ")
    place, options, *tags = fields.split()[4:]
    if place in ("/", "/workspace") or place.endswith(".csv"):
        print(place.rpartition("/")[2], sorted({"ro", "rw", "nosuid", "nodev"} & set(options.split(","))), tags)
"""


async def test_what_is_mounted_for_a_job_is_mounted_as_bwrap_would(prepared, tmp_path):
    if prepared.backend != "bubblewrap":
        pytest.skip("programs have no mounts of their own")
    (tmp_path / "data.csv").write_text("a,b\n")
    told = (await prepared.call(MOUNTS, **{"train.csv": tmp_path / "data.csv"})).stdout.splitlines()
    assert sorted(told) == [
        " ['nodev', 'nosuid', 'ro'] []",
        "data.csv ['nodev', 'nosuid', 'ro'] []",
        "workspace ['nodev', 'nosuid', 'rw'] []",
    ]


LIMITED = ("Max file size", "Max cpu time", "Max address space", "Max open files", "Max locked memory", "Max core file")


async def test_processes_of_the_container_have_the_programs_limits_and_its_group(prepared, mark):
    """Those that are not the program's: a program must gain nothing by taking control of them."""
    if prepared.backend != "bubblewrap":
        pytest.skip("there is no container")
    code = f"import subprocess\nsubprocess.run(['sleep', '{mark}'])"
    task = asyncio.create_task(prepared.call(code))
    async with asyncio.timeout(20):
        while not (found := [pid for pid in processes.list_processes() if mark in read(pid, "cmdline")]):
            assert not task.done(), await task
            await asyncio.sleep(0.01)
    (sleep,) = [pid for pid in found if read(pid, "comm") == "sleep\n"]
    inside = [pid for pid in processes.list_processes() if space(pid) == space(sleep)]
    helpers = [pid for pid in inside if read(pid, "comm") in ("bwrap\n", "cat\n")]
    assert len(helpers) == 2
    theirs = limits(sleep)
    for pid in helpers:
        ours = limits(pid)
        assert all(ours[name] <= theirs[name] for name in LIMITED), (ours, theirs)
        assert read(pid, "cgroup") == read(sleep, "cgroup")
    task.cancel()


def read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


def space(pid: int) -> str:
    """The process namespace of a process."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def limits(pid: int) -> dict[str, float]:
    """Hard limits by name."""
    lines = read(pid, "limits").splitlines()[1:]
    hard = {line[:26].strip(): line[47:68].strip() for line in lines}
    return {name: float(value.replace("unlimited", "inf")) for name, value in hard.items()} | {
        "Max core file": float(hard["Max core file size"])
    }


@pytest.mark.parametrize("uid", [None, 30_001])
def test_an_assignment_survives_json(uid):
    assignment = Assignment(program_job("print('ü')\n\n", ToolLimits(), folder="/a b", inputs=("/in",)), uid)
    assert Assignment.from_json(assignment.to_json().encode()) == assignment
