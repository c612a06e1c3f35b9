"""Other ways past the limits, with control groups and without: none goes on with more than 1.5 times its limit:
the program is stopped, and the result says at which limit."""

from __future__ import annotations

import re

import pytest

from mappa_core import ToolLimits
from mappa_core.sandbox import FolderWorkspace
from mappa_sandbox import choose_sandbox
from mappa_sandbox.find_control_groups import ControlGroups

MB = 1 << 20
LIMITS = ToolLimits(
    wall_s=30.0,
    cpu_s=20.0,
    memory_bytes=160 * MB,
    file_bytes=48 * MB,
    processes=20,
    workspace_bytes=64 * MB,
    workspace_files=3000,
)
KIT = """
import ctypes, fcntl, mmap, os, signal, socket, subprocess, sys, threading, time
MB = 1 << 20
LIBC = ctypes.CDLL(None, use_errno=True)
X86 = os.uname().machine == "x86_64"
kept = []

def hold(megabytes):
    print("HELD", megabytes, flush=True)
    time.sleep(1.5)

def attempt(action, *arguments):
    try:
        return action(*arguments)
    except (OSError, MemoryError, RuntimeError) as error:
        return error

def fill(path, megabytes, flags=os.O_CREAT | os.O_WRONLY):
    descriptor = os.open(path, flags, 0o600)
    kept.append(descriptor)
    for done in range(megabytes):
        if isinstance(attempt(os.write, descriptor, bytes(MB)), Exception):
            return done
    return megabytes

def orphan(work):
    "Run work in a process that nobody waits for and that has left its session."
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            hold(attempt(work) or 0)
        os._exit(0)
    os.wait()
"""
MEMORY = {
    "stacks of threads": """
def deep(left):
    frame = bytearray(b"x") * (MB // 4)
    deep(left - 1) if left else time.sleep(3)
threading.stack_size(32 * MB)
threads = [threading.Thread(target=attempt, args=(deep, 100), daemon=True) for _ in range(12)]
for thread in threads:
    attempt(thread.start)
time.sleep(1)
with open("/proc/self/status") as status:
    hold(next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmRSS")))
""",
    "orphans that left their session": """
for _ in range(6):
    orphan(lambda: kept.append(bytearray(b"x") * (80 * MB)) or 80)
time.sleep(3)
""",
    "files mapped for themselves, written in memory": """
fill("f", 40)
def work():
    mapped = mmap.mmap(os.open("f", os.O_RDWR), 40 * MB, mmap.MAP_PRIVATE)
    for place in range(0, 40 * MB, 4096):
        mapped[place] = 1
    kept.append(mapped)
    return 40
for _ in range(9):
    orphan(work)
time.sleep(3)
""",
    "copies of what was inherited": """
mine = bytearray(b"x") * (60 * MB)
def work():
    for place in range(0, len(mine), 4096):
        mine[place] = 2
    return 60
for _ in range(6):
    orphan(work)
time.sleep(3)
""",
    "a heap that is moved on": """
LIBC.sbrk.restype = ctypes.c_void_p
def work():
    start = LIBC.sbrk(ctypes.c_long(100 * MB))
    if start == 2**64 - 1:
        return 0
    ctypes.memset(start, 1, 100 * MB)
    return 100
for _ in range(5):
    orphan(work)
time.sleep(3)
""",
    "two folders in memory at once": """
places = [place for place in ("/dev/shm", os.environ["HOME"]) if os.access(place, os.W_OK)]
done = [attempt(fill, f"{place}/f{number}", 40) for place in places for number in range(3)]
hold(sum(size for size in done if isinstance(size, int)) if len(places) > 1 else 0)
""",
    "deleted files in memory, mapped and closed": """
def work():
    held = 0
    for number in range(8):
        path = f"/dev/shm/m{number}"
        held += fill(path, 40, os.O_CREAT | os.O_RDWR)
        mapped = LIBC.mmap(None, ctypes.c_size_t(4096), 3, 1, kept[-1], ctypes.c_long(0))
        os.unlink(path)
        os.close(kept.pop())
    return held
held = attempt(work)
hold(held if isinstance(held, int) else 0)
""",
    "names in memory": """
def work():
    for number in range(400_000):
        os.close(os.open(f"/dev/shm/{number:0240d}", os.O_CREAT))
    return 400
held = attempt(work)
hold(held if isinstance(held, int) else 0)
""",
    "pipes of orphans": """
def work():
    held = 0
    while held < 30 * MB:
        ends = attempt(os.pipe)
        if isinstance(ends, OSError):
            break
        kept.append(ends)
        os.set_blocking(ends[1], False)
        held += attempt(os.write, ends[1], bytes(1 << 16)) or 0
    return held // MB
for _ in range(16):
    orphan(work)
time.sleep(3)
""",
}
DISK = {
    "blocks behind the end of a file": """
held = 0
for number in range(6):
    descriptor = os.open(f"a{number}", os.O_CREAT | os.O_RDWR)
    if LIBC.fallocate(descriptor, 1, ctypes.c_long(0), ctypes.c_long(40 * MB)) == 0:
        held += 40
hold(held)
""",
    "a folder that nobody may enter": """
os.mkdir("shut")
held = sum(fill(f"shut/f{number}", 40) for number in range(5))
LIBC.chmod(b"shut", 0)
hold(held)
""",
    "folders that move all the time": """
def move():
    at = 0
    while True:
        attempt(os.rename, f"d{at}/inner", f"d{1 - at}/inner")
        at = 1 - at
for name in ("d0/inner", "d1"):
    os.makedirs(name)
threading.Thread(target=move, daemon=True).start()
held = 0
for number in range(5):
    for place in ("d0", "d1"):
        done = attempt(fill, f"{place}/inner/{place}-{number}", 40)
        held += done if isinstance(done, int) else 0
hold(held)
time.sleep(2)
""",
    "nameless files of a program that was executed": """
code = '''
import os, time
held = 0
for number in range(5):
    descriptor = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
    for _ in range(40):
        os.write(descriptor, bytes(1 << 20))
    held += 40
print("HELD", held, flush=True)
time.sleep(1.5)
'''
subprocess.run([sys.executable, "-c", code])
""",
    "a home beside the folder": """
held = attempt(lambda: sum(fill(f"{os.environ['HOME']}/h{number}", 40) for number in range(5)))
hold(held if os.environ["HOME"] != "/tmp" and isinstance(held, int) else 0)
""",
    "files that many write": """
for child in range(5):
    orphan(lambda: fill(f"c{child}", 40))
time.sleep(3)
""",
}
TIME = {
    "threads": "for _ in range(6):\n    threading.Thread(target=lambda: [None for _ in iter(int, 1)]).start()",
    "orphans, in turns": """
while True:
    def work():
        end = time.process_time() + 0.3
        while time.process_time() < end:
            pass
        os._exit(0)
    attempt(orphan, work)
    time.sleep(0.01)
""",
    "children without a signal at their end": """
while True:
    pid = LIBC.syscall(ctypes.c_long(56 if X86 else 220), ctypes.c_long(0), None, None, None, None)
    if pid == 0:
        end = time.process_time() + 0.2
        while time.process_time() < end:
            pass
        os._exit(0)
    time.sleep(0.05)
""",
}


@pytest.fixture(params=["control groups", pytest.param("none are seen", marks=pytest.mark.soak)])
def groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "control groups":
        monkeypatch.setattr(choose_sandbox, "find_control_groups", lambda: ControlGroups((), reason="hidden"))


async def run(open_tool, tmp_path, code: str, limits: ToolLimits = LIMITS):
    result = await (await open_tool()).call({"code": KIT + code}, FolderWorkspace(tmp_path / "w"), limits)
    return result, sum(map(int, re.findall(r"HELD (\d+)", result.stdout))) * MB


@pytest.mark.soak
@pytest.mark.parametrize("way", MEMORY)
async def test_memory(groups, open_tool, tmp_path, way):
    result, held = await run(open_tool, tmp_path, MEMORY[way])
    assert "[stopped: the program and what it started" in result.stderr or held <= 1.5 * LIMITS.memory_bytes, (
        held,
        result,
    )


@pytest.mark.soak
@pytest.mark.parametrize("way", DISK)
async def test_disk(groups, open_tool, tmp_path, way):
    result, held = await run(open_tool, tmp_path, DISK[way])
    stopped = re.search(r"\[stopped: (files took|there were more|a process did not)", result.stderr)
    is_polled = "disk" in result.watched
    assert (is_polled and stopped) or held <= 1.5 * LIMITS.workspace_bytes, (held, result)


@pytest.mark.soak
@pytest.mark.parametrize("way", TIME)
async def test_time(groups, open_tool, tmp_path, way):
    result, _ = await run(open_tool, tmp_path, TIME[way], ToolLimits(wall_s=25.0, cpu_s=2.0))
    assert result.status == "timeout" and "of CPU time]" in result.stderr, result
    assert result.seconds < 20
