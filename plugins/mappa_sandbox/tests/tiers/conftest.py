"""What holds in every tier: a tool of that tier, the bait that attacks look for, and a look around afterwards.

Tiers that do not work here are skipped with the reason. Where `MAPPA_REQUIRE_TIERS` names them (`bubblewrap,landlock`),
or `CI` is set and it is bubblewrap on Linux, they are failures instead.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mappa_core import ConfigError, ToolLimits, ToolResult
from mappa_core.sandbox import FolderWorkspace
from mappa_sandbox.options import PythonOptions
from mappa_sandbox.tool import PythonTool

ATTACKS = Path(__file__).with_name("attacks")
PR_SET_CHILD_SUBREAPER = 36
MB = 1 << 20
LIMITS = {
    "wall_s": 120.0,
    "cpu_s": 60.0,
    "memory_bytes": 256 * MB,
    "file_bytes": 10 * MB,
    "processes": 32,
    "workspace_bytes": 30 * MB,
    "workspace_files": 2000,
}
NEIGHBOUR = """
import ctypes, pathlib, time
key = "{secret}"
pathlib.Path("own.txt").write_text(key)
ctypes.CDLL(None).prctl(15, b"{name}", 0, 0, 0)  # a name that is seen from outside: it is up
while not pathlib.Path("stop").read_text():
    time.sleep(0.02)
print("unharmed", pathlib.Path("own.txt").read_text() == key, sorted(p.name for p in pathlib.Path().iterdir()))
"""
OpenTool = Callable[..., Awaitable[PythonTool]]


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def open_cage() -> Callable[[PythonTool, str], Awaitable[None]]:
    """Open a tool; the test is skipped where its tier does not work and need not."""

    async def open_cage(tool: PythonTool, backend: str) -> None:
        try:
            await tool.open()
        except ConfigError as error:
            required = os.environ.get("MAPPA_REQUIRE_TIERS", "bubblewrap" if os.environ.get("CI") else "")
            if backend not in required.split(","):
                pytest.skip(f"the backend {backend} does not work here: {error}")
            raise

    return open_cage


@pytest.fixture
async def open_tool(backend: str, open_cage: Callable[[PythonTool, str], Awaitable[None]]) -> AsyncIterator[OpenTool]:
    """Make and open a tool of the tier; `PythonOptions` by keyword."""
    tools = []

    async def open_tool(**options: Any) -> PythonTool:
        tools.append(PythonTool(PythonOptions(sandbox=backend, **options)))
        await open_cage(tools[-1], backend)
        return tools[-1]

    yield open_tool
    for tool in tools:
        await tool.close()


class Bait:
    """What an attack may be after, planted on this machine, and what must not have changed afterwards."""

    def __init__(self, root: Path) -> None:
        root.chmod(0o755)
        self.root = root
        self.mark = f"mark{secrets.token_hex(6)}"
        kinds = ("environment", "file", "private", "bystander", "own", "code", "shm")
        self.secrets = {kind: f"planted-secret-{secrets.token_hex(8)}" for kind in kinds}
        self.home, self.open, self.inputs = root / "home", root / "open", root / "data"
        for folder, mode in ((self.home, 0o755), (self.open, 0o777), (self.inputs, 0o755), (root / "work", 0o755)):
            folder.mkdir()
            folder.chmod(mode)
        self._plant_files()
        self._plant_sockets()
        self.bystander = subprocess.Popen(
            [sys.executable, "-S", "-c", "import signal; signal.pause()", self.secrets["bystander"]],
            env={"API_KEY": self.secrets["bystander"]},
            start_new_session=True,
        )
        self.before = self.host()

    def _plant_files(self) -> None:
        for path, text, mode in (
            (self.home / ".env", self.secrets["file"], 0o644),
            (self.home / "key", self.secrets["private"], 0o600),
            (self.open / "shared.txt", "host\n", 0o666),
            (self.open / "run.db", "host\n", 0o644),
            (self.inputs / "train.csv", "a,b\n1,2\n", 0o644),
            (self.inputs / "writable.csv", "a,b\n1,2\n", 0o666),
        ):
            path.write_text(text)
            path.chmod(mode)
        self.in_memory = Path("/dev/shm") / f"planted-{self.mark}"
        self.in_memory.write_text(self.secrets["shm"])

    def _plant_sockets(self) -> None:
        self.sockets = {
            "tcp": _socket(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp": _socket(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "unix": _socket(socket.AF_UNIX, socket.SOCK_STREAM, str(self.open / "s")),
            "unix_datagram": _socket(socket.AF_UNIX, socket.SOCK_DGRAM, str(self.open / "d")),
            "abstract": _socket(socket.AF_UNIX, socket.SOCK_STREAM, f"\0planted-{self.mark}-s"),
            "abstract_datagram": _socket(socket.AF_UNIX, socket.SOCK_DGRAM, f"\0planted-{self.mark}-d"),
        }
        for path in (self.open / "s", self.open / "d"):
            path.chmod(0o777)

    def told(self) -> dict[str, Any]:
        """What an attack is told: where things are, never a secret."""
        return {
            "mark": self.mark,
            "secret_files": [str(path) for path in (self.home / ".env", self.home / "key", self.in_memory)],
            "private_folders": [str(self.home), str(self.root / "work")],
            "open_folders": [str(self.open)],
            "host_files": [str(self.open / "shared.txt"), str(self.open / "run.db")],
            "inputs": [str(path) for path in sorted(self.inputs.iterdir())],
            "processes": [os.getpid(), self.bystander.pid],
            "groups": [os.getpgrp(), self.bystander.pid],
            "ipc_key": int(self.mark[-6:], 16) | 1,
            "tcp": self.sockets["tcp"].getsockname()[1],
            "udp": self.sockets["udp"].getsockname()[1],
            "unix": str(self.open / "s"),
            "unix_datagram": str(self.open / "d"),
            "abstract": f"planted-{self.mark}-s",
            "abstract_datagram": f"planted-{self.mark}-d",
        }

    def host(self) -> dict[str, object]:
        """What can be seen of the bait and of the interpreter's files."""
        planted = [path for folder in (self.home, self.open, self.inputs) for path in (folder, *folder.rglob("*"))]
        paths = [*planted, self.in_memory, Path(os.__file__), Path(sys.executable), Path("/etc/passwd")]
        return {str(path): _seen(path) for path in paths}

    def left(self) -> list[str]:
        """What attacks left outside their workspaces."""
        paths = sysconfig.get_paths()
        places = {
            *map(
                Path, ("/", "/tmp", "/var/tmp", "/dev", "/dev/shm", "/dev/mqueue", "/run", "/run/lock", "/etc", "/home")
            ),
            *map(Path, (sys.prefix, sys.base_prefix, paths["stdlib"], paths["purelib"], paths["scripts"])),
            *(Path.cwd(), Path.home(), self.root, self.home, self.open, self.inputs, self.root / "work"),
        }
        found = [str(path) for place in places for path in _listed(place) if self.mark in path.name]
        found.remove(str(self.in_memory))
        keys = [line.split()[0] for kind in ("shm", "sem", "msg") for line in _lines(f"/proc/sysvipc/{kind}")[1:]]
        return found + [f"System V object {key}" for key in keys if key == str(self.told()["ipc_key"])]

    def called(self) -> list[str]:
        """Sockets on which somebody called."""
        return [name for name, opened in self.sockets.items() if _was_called(opened)]

    def leaks(self, *texts: str, folders: tuple[Path, ...] = ()) -> list[str]:
        """Which secrets stand in what programs printed or wrote."""
        said = "\n".join(texts).encode(errors="replace")
        for folder in folders:
            said += b"".join(_contents(str(folder)))
        return [what for what, secret in self.secrets.items() if secret.encode() in said]

    def close(self) -> None:
        self.bystander.kill()
        self.bystander.wait()
        for opened in self.sockets.values():
            opened.close()
        self.in_memory.unlink()


@pytest.fixture
def bait(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bait]:
    # Not in pytest's own folder, whose parents only its user may enter: it is the cage that must keep programs out.
    root = Path(tempfile.mkdtemp(prefix="mappa-bait-"))
    bait = Bait(root)
    monkeypatch.setenv("PLANTED_API_KEY", bait.secrets["environment"])
    yield bait
    bait.close()
    # Folders may be closed, and deeper than shutil can go.
    subprocess.run(["chmod", "-R", "u+rwX", "--", root], stderr=subprocess.DEVNULL)
    subprocess.run(["rm", "-rf", "--", root], check=True)


@pytest.fixture
def nothing_left(bait: Bait) -> Iterator[None]:
    """Orphans of anything below come to this process; at the end there must be none, nor an open descriptor more."""
    _subreaper(True)
    before = set(_descendants()), _descriptors()
    yield
    alive = set(_descendants()) - before[0]
    descriptors = _descriptors()
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    _subreaper(False)
    marked = [pid for pid in _marked(bait.mark) if pid != bait.bystander.pid]
    assert (alive, marked) == (set(), []), "processes outlived the tool"
    assert descriptors == before[1], "descriptors outlived the tool"
    assert bait.bystander.poll() is None, "a process of the host was killed"


class Arena:
    """Runs attacks beside an innocent neighbour, after an innocent predecessor, and looks around afterwards."""

    def __init__(self, bait: Bait, tool: PythonTool) -> None:
        self.bait = bait
        self.tool = tool
        self.results: list[ToolResult] = []
        self.workspaces: list[FolderWorkspace] = []

    def workspace(self, name: str, **told: Any) -> FolderWorkspace:
        """A workspace with the attack's tools in it."""
        inputs = {f"{path.stem}.csv": path for path in self.bait.inputs.iterdir()}
        workspace = FolderWorkspace(self.bait.root / "work" / name, self.bait.root / "archive", inputs=inputs)
        shutil.copy(ATTACKS / "kit.py", workspace.path)
        told = {**self.bait.told(), "inputs_here": sorted(inputs), "name": name, **told}
        (workspace.path / "bait.json").write_text(json.dumps(told))
        workspace.changes()
        self.workspaces.append(workspace)
        return workspace

    async def run(self, name: str, workspace: FolderWorkspace, **limits: Any) -> ToolResult:
        """Run the attack `name`."""
        code = (ATTACKS / f"{name}.py").read_text()
        result = await self.tool.call({"code": code}, workspace, ToolLimits(**{**LIMITS, **limits}))
        self.results.append(result)
        return result

    async def attack(self, name: str, told: Mapping[str, Any] | None = None, **limits: Any) -> ToolResult:
        """Run the attack `name` beside a neighbour; all that must hold of any attack holds afterwards."""
        bounds = {name: value for name, value in {**LIMITS, **limits}.items() if name.endswith(("bytes", "_s"))}
        workspace = self.workspace("attacker", **bounds, **(told or {}))
        await self._predecessor()
        neighbour = await self._neighbour()
        result = await self.run(name, workspace, **limits)
        await self._is_unharmed(neighbour)
        alive = await self.tool.call({"code": "print('alive')"}, workspace, ToolLimits())
        assert (alive.status, alive.stdout) == ("ok", "alive\n"), "the tool does not go on after the attack"
        self.assert_nothing_escaped()
        return result

    def assert_nothing_escaped(self) -> None:
        """No result says so, no secret was told, the host is as before."""
        said = [text for result in self.results for text in (result.stdout, result.stderr)]
        lines = [line for text in said for line in text.splitlines()]
        assert [line for line in lines if line.startswith("ESCAPED")] == []
        folders = (*(workspace.path for workspace in self.workspaces), self.bait.root / "archive")
        assert self.bait.leaks(*said, folders=folders) == []
        assert self.bait.left() == []
        assert self.bait.called() == []
        assert self.bait.host() == self.bait.before

    async def _predecessor(self) -> None:
        code = f"words = ['{self.bait.secrets['code']}' * 3]\nprint(len(words))"
        workspace = FolderWorkspace(self.bait.root / "work" / "before")
        assert (await self.tool.call({"code": code}, workspace, ToolLimits())).stdout == "1\n"

    async def _neighbour(self) -> tuple[Path, asyncio.Task[ToolResult]]:
        stop = self.bait.root / "stop"
        stop.write_text("")
        workspace = FolderWorkspace(self.bait.root / "work" / "neighbour", inputs={"stop": stop})
        name = f"up-{secrets.token_hex(6)}"
        code = NEIGHBOUR.format(secret=self.bait.secrets["own"], name=name)
        task = asyncio.create_task(self.tool.call({"code": code}, workspace, ToolLimits(wall_s=280.0)))
        async with asyncio.timeout(120):
            while [name] not in (_lines(f"{folder}/comm") for folder in Path("/proc").iterdir()):
                assert not task.done(), await task
                await asyncio.sleep(0.01)
        return stop, task

    async def _is_unharmed(self, neighbour: tuple[Path, asyncio.Task[ToolResult]]) -> None:
        stop, task = neighbour
        stop.write_text("stop")
        result = await task
        said = (result.status, result.stdout, result.stderr)
        assert said == ("ok", "unharmed True ['own.txt', 'stop']\n", ""), "the neighbour was harmed"


@pytest.fixture
def make_arena(bait: Bait) -> Callable[[PythonTool], Arena]:
    return lambda tool: Arena(bait, tool)


@pytest.fixture
async def arena(bait: Bait, nothing_left: None, open_tool: OpenTool) -> Arena:
    return Arena(bait, await open_tool(workers=4))


def _socket(family: int, kind: int, address: Any) -> socket.socket:
    opened = socket.socket(family, kind)
    opened.bind(address)
    if kind == socket.SOCK_STREAM:
        opened.listen()
    opened.setblocking(False)
    return opened


def _was_called(opened: socket.socket) -> bool:
    try:
        if opened.type == socket.SOCK_STREAM:
            opened.accept()[0].close()
        else:
            opened.recv(1)
    except BlockingIOError:
        return False
    return True


def _seen(path: Path) -> object:
    if not os.path.lexists(path):
        return None
    status = path.lstat()
    kept = [status.st_mode, status.st_uid, status.st_gid, status.st_size]
    if stat.S_ISDIR(status.st_mode):
        return (*kept[:3], sorted(entry.name for entry in path.iterdir()))
    attributes = os.listxattr(path, follow_symlinks=False)
    content = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
    return (*kept, status.st_mtime_ns, attributes, content)


def _contents(folder: str) -> Iterator[bytes]:
    """What is in the files below a folder that a program left: links are not followed, nothing is recursive."""
    waiting = [folder]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield Path(entry.path).read_bytes()


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _subreaper(on: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def _descriptors() -> dict[str, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[entry.name] = str(entry.readlink())
        except OSError:
            continue
    return {name: target for name, target in found.items() if "/proc/" not in target}


def _descendants() -> list[int]:
    """Living processes that descend from this one."""
    parents, waiting, found = {}, [os.getpid()], []
    for folder in Path("/proc").iterdir():
        fields = "".join(_lines(f"{folder}/stat")).rpartition(")")[2].split() if folder.name.isdigit() else []
        if fields and fields[0] not in "ZX":
            parents[int(folder.name)] = int(fields[1])
    while waiting:
        parent = waiting.pop()
        below = [pid for pid, above in parents.items() if above == parent]
        found += below
        waiting += below
    return found


def _marked(mark: str) -> list[int]:
    """Living processes whose command line or environment holds `mark`."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        for name in ("cmdline", "environ"):
            try:
                if mark.encode() in (folder / name).read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found
