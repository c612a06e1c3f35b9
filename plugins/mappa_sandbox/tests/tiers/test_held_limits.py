"""Memory and disk that a program holds where a look at its processes shows little: none gets past its limits so."""

from __future__ import annotations

import re

import pytest

from mappa_core import ToolLimits
from mappa_core.sandbox import FolderWorkspace

MB = 1 << 20
LIMITS = ToolLimits(
    wall_s=60.0,
    cpu_s=40.0,
    memory_bytes=192 * MB,
    file_bytes=48 * MB,
    processes=24,
    workspace_bytes=96 * MB,
    workspace_files=50_000,
)
KIT = """
import ctypes, mmap, os, socket, sys, threading, time
MB = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)
kept = []

def hold(megabytes):
    print("HELD", megabytes, flush=True)
    time.sleep(3)

def end_leader(work):
    'Run work in a thread that outlives the first one.'
    def run():
        time.sleep(0.2)
        hold(work())
        os._exit(0)
    threading.Thread(target=run).start()
    sys.stdout.flush()
    LIBC.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
"""
MEMORY = {
    "shared pages, unmapped but for one": """
LIBC.mmap.restype = ctypes.c_void_p
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
def work():
    held = 0
    for size in [64 * MB] * 6 + [MB] * 384:
        if held >= 384:
            break
        place = LIBC.mmap(None, ctypes.c_size_t(size), 3, 0x21, -1, ctypes.c_long(0))
        if place in (None, 2**64 - 1):
            continue
        ctypes.memset(place, 1, size)
        LIBC.munmap(place + 4096, size - 4096)
        held += size // MB
    return held
hold(work())
""",
    "shared pages of a device, unmapped but for one": """
LIBC.mmap.restype = ctypes.c_void_p
LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
def work():
    held = 0
    for _ in range(6):
        device = os.open("/dev/zero", os.O_RDWR)
        place = LIBC.mmap(None, ctypes.c_size_t(64 * MB), 3, 1, device, ctypes.c_long(0))
        ctypes.memset(place, 1, 64 * MB)
        LIBC.munmap(place + 4096, 64 * MB - 4096)
        os.close(device)
        held += 64
    return held
try:
    hold(work())
except OSError:
    hold(0)
""",
    "a thread whose leader has ended": """
def work():
    for _ in range(6):
        kept.append(bytearray(b"x") * (28 * MB))
    return 6 * 28
for _ in range(2):
    if os.fork() == 0:
        end_leader(work)
time.sleep(6)
""",
    "attributes of files in memory": """
def work():
    held = 0
    for number in range(8000):
        path = f"/dev/shm/{number}"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        for name in range(1):
            os.setxattr(path, f"user.{name}", b"x" * 60_000)
            held += 60_000
    return held // MB
try:
    hold(work())
except OSError:
    hold(0)
""",
    "links with long names in memory": """
def work():
    held = 0
    for number in range(300_000):
        os.symlink("y" * 120, f"/dev/shm/{number:0250d}")
        held += 1400
    return held // MB
try:
    hold(work())
except OSError:
    hold(0)
""",
    "buffers of processes whose leader has ended": """
def work():
    held = 0
    for _ in range(110):
        ends = socket.socketpair()
        kept.append(ends)
        for end in ends:
            end.setblocking(False)
            try:
                while True:
                    held += end.send(bytes(4096))
            except BlockingIOError:
                pass
    return held // MB
for _ in range(10):
    if os.fork() == 0:
        end_leader(work)
time.sleep(6)
""",
}
DISK = {
    "deleted files with one page mapped": """
def work():
    held = 0
    for number in range(8):
        descriptor = os.open(f"f{number}", os.O_CREAT | os.O_RDWR)
        os.unlink(f"f{number}")
        for _ in range(40):
            os.write(descriptor, bytes(MB))
        kept.append(mmap.mmap(descriptor, 4096, mmap.MAP_SHARED))
        duplicate = os.dup(descriptor)
        os.close(descriptor)
        for number in range(3, 64):  # mmap keeps a descriptor of its own
            try:
                os.close(number)
            except OSError:
                pass
        held += 40
    return held
hold(work())
""",
    "deleted files open in a process whose leader has ended": """
def work():
    held = 0
    for number in range(6):
        descriptor = os.open(f"{os.getpid()}-{number}", os.O_CREAT | os.O_RDWR)
        os.unlink(f"{os.getpid()}-{number}")
        for _ in range(40):
            os.write(descriptor, bytes(MB))
        held += 40
    return held
if os.fork() == 0:
    end_leader(work)
time.sleep(6)
""",
    "deleted files in a table of descriptors of one thread": """
def work():
    if LIBC.syscall({"x86_64": 436, "aarch64": 436}[os.uname().machine], 60, 61, 2) != 0:
        return 0
    held = 0
    for number in range(6):
        descriptor = os.open(f"g{number}", os.O_CREAT | os.O_RDWR)
        os.unlink(f"g{number}")
        for _ in range(40):
            os.write(descriptor, bytes(MB))
        held += 40
    return held
thread = threading.Thread(target=lambda: hold(work()))
thread.start()
thread.join()
""",
}


async def run(open_tool, tmp_path, code: str):
    tool = await open_tool()
    result = await tool.call({"code": KIT + code}, FolderWorkspace(tmp_path / "w"), LIMITS)
    return result, sum(map(int, re.findall(r"HELD (\d+)", result.stdout)))


@pytest.mark.parametrize("way", MEMORY)
async def test_memory_is_limited_wherever_it_is_held(open_tool, tmp_path, way):
    result, held = await run(open_tool, tmp_path, MEMORY[way])
    stopped = "MiB of memory]" in result.stderr or "[stopped:" in result.stderr
    assert stopped or held * MB <= 1.5 * LIMITS.memory_bytes, (held, result)


@pytest.mark.slow
@pytest.mark.parametrize("way", DISK)
async def test_disk_is_limited_wherever_it_is_held(open_tool, tmp_path, way):
    result, held = await run(open_tool, tmp_path, DISK[way])
    assert "[stopped: files took" in result.stderr or held * MB <= 1.5 * LIMITS.workspace_bytes, (held, result)


CHILDREN = """
import ctypes, os, signal, time
if IGNORED:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
end = time.monotonic() + 40
made = 0
while time.monotonic() < end and made < MOST:
    made += 1
    pid = os.fork()
    if pid == 0:
        while time.process_time() < 0.04:
            pass
        os._exit(0)
    try:
        os.waitpid(pid, 0)
    except ChildProcessError:
        pass
print("ended by itself", made)
"""


@pytest.mark.slow
async def test_time_of_children_that_nobody_waits_for_is_limited(open_tool, tmp_path):
    limits = ToolLimits(wall_s=60.0, cpu_s=3.0)
    code = CHILDREN.replace("IGNORED", "True").replace("MOST", "400")  # 16 s of CPU time
    result = await (await open_tool()).call({"code": code}, FolderWorkspace(tmp_path / "w"), limits)
    assert result.status == "timeout" and "of CPU time]" in result.stderr, result


@pytest.mark.slow
async def test_children_that_are_waited_for_are_counted_once(open_tool, tmp_path):
    """3.2 s of CPU time, on a machine however busy."""
    limits = ToolLimits(wall_s=200.0, cpu_s=7.0)
    code = CHILDREN.replace("IGNORED", "False").replace("MOST", "80")
    result = await (await open_tool()).call({"code": code}, FolderWorkspace(tmp_path / "w"), limits)
    assert result.status == "ok" and "ended by itself" in result.stdout, result
