"""Control groups: what they hold is found by trying, and none is left."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from mappa_core import ToolLimits
from mappa_core.sandbox import FolderWorkspace
from mappa_sandbox import choose_sandbox
from mappa_sandbox import find_control_groups as finder
from mappa_sandbox.find_control_groups import ControlGroups, describe_limits, find_control_groups
from mappa_sandbox.isolation import control_groups
from mappa_sandbox.isolation.memory_workspace import spare_bytes
from mappa_sandbox.messages import program_job
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

LIMITS = ("memory", "processes", "cpu")
"""Those that control groups may hold."""


@pytest.fixture
def base() -> str:
    if not find_control_groups().held:
        pytest.skip(f"no control groups here: {find_control_groups().reason}")
    if find_control_groups().launcher:
        pytest.skip("groups are those of a launcher here")
    return control_groups.open_base()


def groups_in(base: str) -> set[str]:
    return {name for name in os.listdir(base) if name.startswith(control_groups.PREFIX)}


def test_time_of_members_counts_whoever_waits_for_them(base, in_child):
    def count() -> float:
        group = control_groups.ControlGroup(base, ("cpu",))
        if os.fork() == 0:
            control_groups.join(group.folder)
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            for _ in range(5):
                if os.fork() == 0:
                    while sum(os.times()[:2]) < 0.1:
                        pass
                    os._exit(0)
            with pytest.raises(ChildProcessError):
                while True:
                    os.waitpid(-1, 0)
            os._exit(0)
        os.wait()
        seconds = group.cpu_s()
        group.remove()
        return seconds

    assert 0.4 <= in_child(count) < 5


def test_members_are_killed_when_a_group_is_removed(base, in_child):
    def count() -> int:
        group = control_groups.ControlGroup(base, ("cpu",))
        ready, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            control_groups.join(group.folder)
            os.write(tell, b"!")
            signal.pause()
        os.read(ready, 1)
        group.remove()
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert in_child(count) == -signal.SIGKILL
    assert not [name for name in groups_in(base) if name.endswith(f"-{os.getpid()}")]


def test_groups_of_processes_that_are_gone_are_removed(base):
    gone = subprocess.Popen(["true"])
    gone.wait()
    folder = Path(base, f"{control_groups.PREFIX}{gone.pid}")
    folder.mkdir()
    control_groups.open_base()
    assert not folder.exists()


@pytest.mark.parametrize("backend", ["bubblewrap", "landlock", "none"])
async def test_no_group_is_left_of_a_program(base, backend, tmp_path):
    before = groups_in(base)
    tool = PythonTool(PythonOptions(sandbox=backend, allow_unsafe=backend == "none"))
    sandbox = await tool.open()
    for code in ("print(1)", "import os\nos.fork()\nos.kill(os.getpid(), 9)", "while True: pass"):
        result = await tool.call({"code": code}, FolderWorkspace(tmp_path / "w"), ToolLimits(wall_s=0.5))
    held = find_control_groups().held
    assert result.limit == "wall" and held
    polled_files = "files" in sandbox.detail.partition("polled:")[2]
    files = ("disk", "files") if polled_files else ()
    assert result.watched == ("wall", *(name for name in LIMITS if name not in held), *files)
    assert "control groups enforce" in sandbox.detail
    await tool.close()
    left = groups_in(base) - before  # other programs of this machine have groups, too
    assert [name for name in left if not Path("/proc", name.removeprefix("mappa-")).exists()] == []


async def test_without_control_groups_limits_are_polled_and_the_result_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(choose_sandbox, "find_control_groups", lambda: ControlGroups((), reason="none of yours"))
    tool = PythonTool(PythonOptions())
    detail = (await tool.open()).detail
    result = await tool.call({"code": "while True: pass"}, FolderWorkspace(tmp_path / "w"), ToolLimits(cpu_s=1.0))
    await tool.close()
    assert detail.endswith("polled: memory, processes, CPU time (no control groups: none of yours)")
    assert (result.status, result.exit_code, result.limit) == ("timeout", None, "cpu")
    assert result.watched == ("wall", *LIMITS)


def test_a_launcher_that_does_not_work_is_no_fault(monkeypatch, tmp_path):
    launcher = tmp_path / "systemd-run"
    launcher.write_text("#!/bin/sh\necho 'Failed to connect to bus' >&2\nexit 1\n")
    launcher.chmod(0o755)
    monkeypatch.setattr(finder.shutil, "which", lambda name: str(launcher))
    monkeypatch.setattr(finder, "TRIAL", finder.TRIAL.replace("try_limits()", "1 / 0"))
    finder.find_control_groups.cache_clear()
    found = find_control_groups()
    finder.find_control_groups.cache_clear()
    assert found.held == () and "systemd-run: Failed to connect to bus" in found.reason
    assert "own group: ZeroDivisionError" in found.reason


async def test_a_fork_server_is_started_by_a_launcher_and_gets_its_own_environment(monkeypatch, tmp_path):
    launcher = tmp_path / "launcher"
    launcher.write_text(f'#!/bin/sh\necho started >> {tmp_path}/log\nexec "$@"\n')
    launcher.chmod(0o755)
    groups = ControlGroups((), (str(launcher),))
    monkeypatch.setenv("PLANTED_KEY", "planted")
    monkeypatch.setattr(choose_sandbox, "find_control_groups", lambda: groups)
    tool = PythonTool(PythonOptions())
    code = "import os\nprint(sorted(os.environ))"
    result = await tool.call({"code": code}, FolderWorkspace(tmp_path / "w"), ToolLimits())
    await tool.close()
    assert (tmp_path / "log").read_text() == "started\n"
    assert "PYTHONHASHSEED" in result.stdout and "PLANTED_KEY" not in result.stdout


@pytest.mark.parametrize(
    ("held", "holds_files", "said"),
    [
        (
            ("memory", "processes", "cpu"),
            True,
            "control groups enforce memory, processes, CPU time; a file system in memory enforces files; polled: none",
        ),
        (("memory", "processes", "cpu"), False, "control groups enforce memory, processes, CPU time; polled: files"),
        (("cpu",), False, "control groups enforce CPU time; polled: memory, processes, files"),
        ((), True, "a file system in memory enforces files; polled: memory, processes, CPU time"),
    ],
)
def test_the_description_says_which_limits_are_enforced_and_which_polled(held, holds_files, said):
    assert describe_limits(ControlGroups(held), holds_files=holds_files) == said


def test_another_process_can_be_made_a_member(base):
    group = control_groups.ControlGroup(base, ("cpu",))
    other = subprocess.Popen(["sleep", "1000"])
    group.add(other.pid)
    assert f"/{group.name}\n" in Path(f"/proc/{other.pid}/cgroup").read_text()
    group.remove()
    assert other.wait() == -signal.SIGKILL


MB = 1 << 20


@pytest.mark.parametrize(
    ("memory_mb", "workspace_mb", "inherited_mb", "limit_mb"),
    [(1024, 512, 0, 1280), (1024, 100, 50, 1174), (1024, 512, 500, 1536), (100, 1000, 1000, 150)],
)
def test_files_in_memory_and_what_is_inherited_never_make_the_limit_more_than_half_larger(
    memory_mb, workspace_mb, inherited_mb, limit_mb
):
    class Group:
        def limit(self, memory_bytes, processes):
            self.memory_bytes = memory_bytes

    limits = ToolLimits(memory_bytes=memory_mb * MB, workspace_bytes=workspace_mb * MB)
    group, job = Group(), program_job("", limits, folder="/")
    control_groups.limit_group(group, job, inherited_mb * MB, spare_bytes(job))
    assert group.memory_bytes == limit_mb * MB <= 1.5 * memory_mb * MB
