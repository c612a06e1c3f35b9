"""Files are held to their limits by the kernel: however fast a program is, no check has to come in time. So nothing
here waits, and that a program was stopped afterwards excuses nothing."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys

import pytest

from mappa_core import ToolLimits
from mappa_core.sandbox import FolderWorkspace
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

MB = 1 << 20
LIMITS = ToolLimits(
    wall_s=60.0,
    cpu_s=40.0,
    memory_bytes=256 * MB,
    file_bytes=16 * MB,
    processes=24,
    workspace_bytes=48 * MB,
    workspace_files=500,
)
MOST = 1.5
KIT = """
import ctypes, mmap, os, sys
MB = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)
CHUNK = os.urandom(MB)
NUMBER = 0

def say(megabytes):
    os.write(1, f"HELD {megabytes}\\n".encode())

def made(folder="."):
    global NUMBER
    NUMBER += 1
    return os.open(f"{folder}/{os.getpid()}-{NUMBER}", os.O_CREAT | os.O_RDWR, 0o600)

def until_refused(step, most=1000):
    "What `step` could take, in megabytes, said all the time: this process may be killed at any time."
    held = 0
    while held < most:
        try:
            taken = step()
        except OSError:
            return held
        if not taken:
            return held
        held += taken
        say(held)
    return held

def write_all(descriptor, megabytes=16):
    done = 0
    try:
        while done < megabytes:
            done += os.write(descriptor, CHUNK) / MB
    except OSError:
        pass
    return done
"""
WAYS = {
    "room reserved in one call": """
def step():
    os.posix_fallocate(made(), 0, 16 * MB)
    return 16
until_refused(step)
""",
    "room reserved behind the end": """
def step():
    refused = LIBC.fallocate(made(), 1, ctypes.c_long(0), ctypes.c_long(16 * MB))
    return 0 if refused else 16
until_refused(step)
""",
    "plain writes": "until_refused(lambda: write_all(made()))",
    "files without a name": """
until_refused(lambda: write_all(os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)))
""",
    "deleted files": """
def step():
    descriptor = made()
    os.unlink(f"{os.getpid()}-{NUMBER}")
    return write_all(descriptor)
until_refused(step)
""",
    "files written through memory": """
kept = []
def step():
    descriptor = made()
    os.truncate(descriptor, 8 * MB)
    kept.append(mmap.mmap(descriptor, 8 * MB))
    os.close(descriptor)
    for place in range(0, 8 * MB, 4096):
        kept[-1][place] = 1
    return 8
until_refused(step)
""",
    "files copied by the kernel": """
source = made()
write_all(source, 8)
def step():
    target = made()
    os.lseek(source, 0, 0)
    return os.sendfile(target, source, 0, 8 * MB) // MB
until_refused(step)
""",
    "a home": """
until_refused(lambda: write_all(made(os.environ["HOME"])))
""",
}
MANY_PROCESSES = """
children = []
start, go = os.pipe()
for _ in range(16):
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(start, 1)
        own = sum(write_all(made()) for _ in range(4))
        os.write(1, f"PART {own}\\n".encode())
        os._exit(0)
    children.append(pid)
os.close(start), os.close(go)
for pid in children:
    os.waitpid(pid, 0)
"""
LEFT = {
    "links to one file": """
write_all(os.open("first", os.O_CREAT | os.O_WRONLY), 16)
for number in range(400):
    os.link("first", f"link-{number}")
""",
    "files with holes": """
for number in range(400):
    os.truncate(made(), 16 * MB)
""",
    "many files": """
for number in range(100_000):
    os.close(os.open(f"f{number}", os.O_CREAT))
""",
    "many folders": """
for number in range(100_000):
    os.makedirs(f"d{number}")
""",
    "many links": """
for number in range(100_000):
    os.symlink("x" * 200, f"l{number}")
""",
}


async def run(open_tool, tmp_path, code: str):
    tool = await open_tool()
    sandbox = await tool.open()
    if "a file system in memory enforces files" not in sandbox.detail:
        pytest.skip(f"programs have no mounts here: {sandbox.detail}")
    workspace = FolderWorkspace(tmp_path / "w")
    result = await tool.call({"code": KIT + code}, workspace, LIMITS)
    assert result.exit_code is not None or result.limit, result
    return result, workspace


def left(workspace: FolderWorkspace) -> tuple[int, int]:
    """Bytes, holes included, and number of what is in a workspace."""
    found = list(workspace.path.rglob("*"))
    return sum(path.lstat().st_size for path in found if path.is_file()), len(found)


@pytest.mark.parametrize("way", WAYS)
async def test_bytes_are_limited_however_they_are_taken(open_tool, tmp_path, way):
    result, workspace = await run(open_tool, tmp_path, WAYS[way])
    held = max([0.0, *map(float, re.findall(r"HELD ([\d.]+)", result.stdout))])
    has_own_limit = way == "a home" and result.sandbox == "bubblewrap"
    limit = LIMITS.memory_bytes if has_own_limit else LIMITS.workspace_bytes
    assert 0 <= held * MB <= MOST * limit, result
    assert left(workspace)[0] <= LIMITS.workspace_bytes


async def test_bytes_are_limited_for_many_processes_at_once(open_tool, tmp_path):
    result, workspace = await run(open_tool, tmp_path, MANY_PROCESSES)
    parts = list(map(float, re.findall(r"PART ([\d.]+)", result.stdout)))
    assert len(parts) == 16, result
    assert 0.9 * LIMITS.workspace_bytes <= sum(parts) * MB <= MOST * LIMITS.workspace_bytes, result
    assert left(workspace)[0] <= LIMITS.workspace_bytes


@pytest.mark.parametrize("way", LEFT)
async def test_what_is_left_is_within_the_limits(open_tool, tmp_path, way):
    result, workspace = await run(open_tool, tmp_path, LEFT[way])
    size, count = left(workspace)
    assert size <= LIMITS.workspace_bytes and count <= LIMITS.workspace_files, result
    assert result.status == "error", "neither refused nor stopped"


async def test_a_full_workspace_says_so_and_can_be_cleared(open_tool, tmp_path):
    code = "try:\n    until_refused(lambda: write_all(made()))\n    os.write(made(), CHUNK)\nexcept OSError as error:\n"
    result, workspace = await run(open_tool, tmp_path, code + "    print(error)")
    assert (result.status, result.limit) == ("ok", None), result
    assert "[Errno 28] No space left on device" in result.stdout
    tool = await open_tool()
    clear = "import os\nfor name in os.listdir():\n    os.unlink(name)\nopen('a', 'w').write('a')"
    changes = (await tool.call({"code": clear}, workspace, LIMITS)).files
    assert [change.path for change in changes if change.kind != "deleted"] == ["a"]


async def test_a_workspace_over_its_limits_comes_and_goes_whole(open_tool, tmp_path):
    tool = await open_tool()
    workspace = FolderWorkspace(tmp_path / "w")
    for number in range(30):
        (workspace.path / str(number)).write_bytes(bytes(3 * MB + 7))
    workspace.changes()
    code = "import os\nprint(len(os.listdir()))\nos.rename('0', 'zero')"
    result = await tool.call({"code": code}, workspace, LIMITS)
    assert (result.status, result.stdout) == ("ok", "30\n"), result
    assert sorted((change.path, change.kind) for change in result.files) == [("0", "deleted"), ("zero", "created")]


WITHOUT_MOUNTS = """
import asyncio, struct, sys
from pathlib import Path

from mappa_core import ToolLimits
from mappa_core.sandbox import FolderWorkspace
from mappa_sandbox.isolation import kernel, seccomp
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

# As some containers do: no namespace can be made.
unshare = {"x86_64": 272, "aarch64": 97}[sys.argv[1]]
rules = [(0x20, 0, 0, 0), (0x15, 0, 1, unshare), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
kernel.no_new_privileges()
seccomp.install_filter(b"".join(struct.pack("=HBBI", *rule) for rule in rules))

async def main():
    tool = PythonTool(PythonOptions(sandbox="landlock"))
    detail = (await tool.open()).detail
    limits = ToolLimits(workspace_bytes=20 << 20, file_bytes=8 << 20)
    code = "import time\\nfor number in range(10):\\n    open(str(number), 'wb').write(bytes(8 << 20))\\ntime.sleep(60)"
    result = await tool.call({"code": code}, FolderWorkspace(Path(sys.argv[2])), limits)
    await tool.close()
    print(detail, result.watched, result.limit, sum(change.size for change in result.files) <= 20 << 20, sep="|")

asyncio.run(main())
"""


def test_where_programs_may_have_no_mounts_files_are_polled_and_it_is_said(tmp_path):
    command = [sys.executable, "-c", WITHOUT_MOUNTS, os.uname().machine, str(tmp_path / "w")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    if "no Landlock" in done.stderr:
        pytest.skip("this kernel has no Landlock")
    assert done.returncode == 0, done.stderr
    detail, watched, limit, fits = done.stdout.strip().split("|")
    assert "files" in detail.partition("polled:")[2] and "file system in memory" not in detail
    assert "'disk', 'files'" in watched and (limit, fits) == ("disk", "True")


TEMPORARY_FOLDERS = """
import os, shutil, tempfile, time
end = time.monotonic() + 2.5
made = 0
while time.monotonic() < end:
    folders = [tempfile.mkdtemp(dir=".") for _ in range(8)]
    for folder in folders:
        os.makedirs(f"{folder}/a/b")
        open(f"{folder}/a/b/c", "w").close()
    for folder in folders:
        shutil.rmtree(folder)
    made += 8
print("made", made > 0)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sandbox", ["bubblewrap", "landlock", "none"])
@pytest.mark.parametrize("programs", [12, pytest.param(200, marks=pytest.mark.soak)])
async def test_programs_that_make_and_remove_folders_all_the_time_are_not_stopped(
    tmp_path, open_cage, sandbox, programs
):
    """More programs at once than processors, so that a look at their folders takes long."""
    tool = PythonTool(PythonOptions(sandbox=sandbox, workers=8, allow_unsafe=sandbox == "none"))
    await open_cage(tool, sandbox)

    async def run_one(number: int):
        return await tool.call({"code": TEMPORARY_FOLDERS}, FolderWorkspace(tmp_path / str(number)), ToolLimits())

    results = await asyncio.gather(*(run_one(number) for number in range(programs)))
    await tool.close()
    assert [result for result in results if (result.status, result.stdout) != ("ok", "made True\n")] == []
