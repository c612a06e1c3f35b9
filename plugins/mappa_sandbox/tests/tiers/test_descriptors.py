"""Whatever a program does to its descriptors changes its own result alone, and is no fault of the machinery."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mappa_core import ToolLimits
from mappa_core.sandbox import FolderWorkspace

DRAIN = """
import os, threading, time

def drain(number):
    try:
        stolen = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        try:
            os.read(stolen, 1)
        except OSError:
            pass

threads = [threading.Thread(target=drain, args=(number,)) for number in (1, 2) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(500):
    os.write(1, b"x")
    os.write(2, b"y")
for thread in threads:
    thread.join()
"""

ANYTHING = """
import fcntl, os, random, signal, socket, sys, threading, time
rng = random.Random(SEED)
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
opened = []
MODES = [os.O_RDONLY, os.O_WRONLY, os.O_RDWR]
FLAGS = [0, os.O_NONBLOCK, os.O_ASYNC, os.O_DIRECT, os.O_APPEND]
LISTED = ["/proc/self/fd", "/proc/1/fd", "/proc/thread-self/fd", f"/proc/{os.getppid()}/fd"]

def number():
    return rng.choice([0, 1, 2, 1, 2, 3, 4, 5, *opened[-4:]])

def act():
    at = number()
    what = rng.randrange(16)
    if what == 0: os.close(at)
    elif what == 1: os.dup2(at, number())
    elif what == 2: opened.append(os.dup(at))
    elif what == 3: opened.append(os.open(f"{rng.choice(LISTED)}/{at}", rng.choice(MODES) | os.O_NONBLOCK))
    elif what == 4: fcntl.fcntl(at, fcntl.F_SETFL, rng.choice(FLAGS))
    elif what == 5: os.set_blocking(at, False); os.read(at, rng.choice([1, 65536]))
    elif what == 6: os.set_blocking(at, False); os.write(at, b"z" * rng.choice([0, 1, 100, 70000]))
    elif what == 7: socket.socket(fileno=os.dup(at)).shutdown(rng.choice([0, 1, 2]))
    elif what == 8: os.ftruncate(at, 0)
    elif what == 9: os.lseek(at, 0, 0)
    elif what == 10: fcntl.flock(at, fcntl.LOCK_EX | fcntl.LOCK_NB)
    elif what == 11: opened.extend(os.pipe())
    elif what == 12: os.fchmod(at, 0)
    elif what == 13: fcntl.fcntl(at, fcntl.F_SETOWN, os.getpid()); fcntl.fcntl(at, 10, 0)
    elif what == 14: os.kill(rng.choice([os.getppid(), -1]), rng.choice([0, signal.SIGWINCH]))
    elif what == 15: opened.extend(end.detach() for end in socket.socketpair())

for _ in range(150):
    try:
        act()
    except (OSError, ValueError, OverflowError):
        pass
os._exit(rng.choice([0, 0, 3]))
"""
LIMITS = ToolLimits(wall_s=30.0, cpu_s=20.0)


async def test_output_that_a_program_reads_itself_is_no_fault_and_is_not_lost(open_tool, tmp_path):
    tool = await open_tool()
    for attempt in range(3):
        result = await tool.call({"code": DRAIN}, FolderWorkspace(tmp_path / str(attempt)), LIMITS)
        assert result.status == "ok" and set(result.stdout) <= {"x"} and set(result.stderr) <= {"y"}
        assert len(result.stdout) == len(result.stderr) == 500, "the program read what it had written"


async def check_seeds(tool, folder: Path, seeds: range) -> None:
    async def run(seed: int) -> None:
        code = ANYTHING.replace("SEED", str(seed))
        result = await tool.call({"code": code}, FolderWorkspace(folder / f"anything{seed}"), LIMITS)
        assert result.status in ("ok", "error"), (seed, result)  # a signal that it sent itself is one of its endings

    await asyncio.gather(*map(run, seeds))
    after = await tool.call({"code": "print('alive')"}, FolderWorkspace(folder / "after"), LIMITS)
    assert (after.status, after.stdout, after.stderr) == ("ok", "alive\n", "")


async def test_whatever_a_program_does_to_its_descriptors_is_its_own_result(open_tool, tmp_path):
    await check_seeds(await open_tool(), tmp_path, range(40))


@pytest.mark.soak
async def test_whatever_thousands_of_programs_do_to_their_descriptors_is_their_own_result(open_tool, tmp_path):
    tool = await open_tool()
    for first in range(0, 3_000, 100):
        await check_seeds(tool, tmp_path / str(first), range(first, first + 100))


@pytest.mark.parametrize("path", ["/proc/self/fd/1", "/dev/stdout", "/dev/fd/2", "/proc/self/fd/0"])
async def test_an_output_cannot_be_opened_again(open_tool, tmp_path, path):
    """Standard input is /dev/null, which can."""
    code = f"import os\ntry:\n    os.open({path!r}, os.O_RDONLY)\n    print('opened')\nexcept OSError:\n    print('no')"
    result = await (await open_tool()).call({"code": code}, FolderWorkspace(tmp_path / "w"), LIMITS)
    assert (result.stdout == "opened\n") is path.endswith("/0"), result
