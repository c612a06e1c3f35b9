"""Many programs at once, some of them hostile: nothing is lost and nothing is left."""

import asyncio
import gc
import os
import tempfile
from pathlib import Path

import pytest

from mappa_core import ToolLimits
from mappa_core.sandbox import FolderWorkspace
from mappa_core.tools.owned_folder import OWNER
from mappa_sandbox.isolation import processes
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

AT_ONCE = 8
HOSTILE = (
    "import os\nfor _ in range(200):\n    if os.fork() == 0:\n        import time; time.sleep(60); os._exit(0)",
    "held = []\nwhile len(held) < 400: held.append(bytearray(b'x') * (4 << 20))",
    "while True: pass",
    "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(os.getpid(), signal.SIGSTOP)",
    "import subprocess\nfor _ in range(5): subprocess.Popen(['setsid', 'sleep', '300'])",
    "import sys\nwhile True: sys.stdout.write('x' * 65536)",
    "import os\nfor _ in range(300):\n    os.mkdir('d'); os.chdir('d')",
    "import os\nos.symlink('/etc/passwd', 'link'); os.mkfifo('pipe'); os.mkdir('closed', 0)",
    "open('a', 'wb').truncate(1 << 24)\nfor n in range(500): open(f'f{n}', 'w').write('x' * 50000)",
)
LIMITS = ToolLimits(wall_s=60.0, cpu_s=1.0, memory_bytes=128 << 20, processes=16, workspace_bytes=8 << 20)


def resident(pid: int) -> int:
    """Bytes of memory of its own that a process holds."""
    return processes.read_process_usage(pid).memory


async def wait_for_supervisors(fork_server: int, backend: str) -> None:
    """Wait until supervisors that have answered are gone, and the others have prepared a program each, no more than
    ran at once: in a container two processes of bwrap and `cat` hold it, and the program is a child of the zygote."""
    zygotes, prepared = (1, 5) if backend == "bubblewrap" else (0, 2)
    async with asyncio.timeout(30):
        while True:
            waiting = len(processes.children_of(fork_server)) - zygotes
            if waiting <= AT_ONCE and len(processes.descendants_of(fork_server)) == zygotes + waiting * prepared:
                return
            await asyncio.sleep(0.01)


@pytest.fixture
def scratch(monkeypatch, tmp_path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir(mode=0o711)
    return tmp_path / "scratch"


async def play(count: int, hostile_every: int, scratch: Path, tmp_path: Path) -> None:
    tool = PythonTool(PythonOptions(workers=AT_ONCE))
    others = set(processes.children_of(os.getpid()))
    backend = (await tool.open()).name
    (fork_server,) = set(processes.children_of(os.getpid())) - others

    async def one(number: int) -> None:
        workspace = FolderWorkspace(tmp_path / f"w{number}")
        attack, place = divmod(number, hostile_every)
        if place == 0:
            await tool.call({"code": HOSTILE[attack % len(HOSTILE)]}, workspace, LIMITS)
        else:
            code = f"open('out', 'w').write('{number}' * 9)\nprint({number} ** 2)"
            result = await tool.call({"code": code}, workspace, LIMITS)
            assert (result.status, result.stdout) == ("ok", f"{number**2}\n"), result
            assert [(change.path, change.size) for change in result.files] == [("out", 9 * len(str(number)))]

    async def batch(numbers: range) -> None:
        await asyncio.gather(*(one(number) for number in numbers))

    await batch(range(1, AT_ONCE * 2))  # until everything that is made once is made
    await wait_for_supervisors(fork_server, backend)
    before = len(os.listdir("/proc/self/fd")), resident(os.getpid()), resident(fork_server)  # noqa: PTH208
    for first in range(0, count, 200):
        await batch(range(first, min(first + 200, count)))
    await wait_for_supervisors(fork_server, backend)
    gc.collect()
    after = len(os.listdir("/proc/self/fd")), resident(os.getpid()), resident(fork_server)  # noqa: PTH208
    assert after[0] <= before[0]
    assert after[1] - before[1] < 32 << 20 and after[2] - before[2] < 4 << 20
    assert [path for folder in scratch.iterdir() for path in folder.iterdir() if path.name != OWNER] == []
    await tool.close()
    assert set(processes.children_of(os.getpid())) <= others and list(scratch.iterdir()) == []


@pytest.mark.slow
async def test_a_hundred_programs(scratch, tmp_path):
    await play(100, 10, scratch, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_two_thousand_programs(scratch, tmp_path):
    await play(2000, 50, scratch, tmp_path)
