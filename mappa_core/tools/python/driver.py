"""The driver's side of the warden: start it, hand it programs, notice when it is gone."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mappa_core.errors import ConfigError, ToolError
from mappa_core.tools.cage.order import Order, Setup
from mappa_core.tools.python.exchange import PROGRAM_ENVIRONMENT

ROOT = Path(__file__).parents[3]
START = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from mappa_core.tools.cage.warden import main
del sys.path[0]
main()
"""
GRACE_S = 15.0
"""Seconds beyond its wall limit after which a run counts as stuck: for a busy machine to kill what is left."""
CLOSE_S = 10.0
START_S = 300.0
"""Seconds that the warden may take to import what is to be preloaded."""
CHUNK = 1 << 16


def clean_environment(tier: str, home: str) -> dict[str, str]:
    """All that programs find in their environment, but for HOME and TMPDIR, which are then their own.

    Nothing is taken from the driver's."""
    folders = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    # Without /dev/shm joblib has to be told before it is imported, or it fails when it starts a process.
    serial = {"JOBLIB_MULTIPROCESSING": "0"} if tier == "landlock" else {}
    return {
        "PATH": os.pathsep.join(folders),
        "HOME": home,
        "TMPDIR": home,
        **PROGRAM_ENVIRONMENT,
        **serial,
    }


class WardenProcess:
    """A running warden. Programs under way are lost with it. `setup.scratch` goes with it."""

    def __init__(self, setup: Setup) -> None:
        self._scratch = setup.scratch
        self._control, control = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        command = [sys.executable, "-P", "-c", START, str(ROOT), str(control.fileno()), setup.to_json()]
        try:
            self._process = subprocess.Popen(
                command,
                env=clean_environment(setup.tier, setup.scratch),
                pass_fds=(control.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,
            )
        finally:
            control.close()
        self._control.setblocking(False)
        self._lost = False

    async def ready(self) -> int:
        """Wait until everything is preloaded; how many threads that has started, which programs will lack.

        Raises:
            ConfigError: a module cannot be imported.
            ToolError: the warden ended, or takes too long.
        """
        try:
            async with asyncio.timeout(START_S):
                greeting = await _line(self._control, CHUNK)
        except TimeoutError as error:
            raise ToolError(f"the python tool's warden was not ready after {START_S:g} s") from error
        if not greeting.endswith(b"\n"):
            raise ToolError(f"the python tool's warden ended at its start{self._last_words()}")
        answer: dict[str, Any] = json.loads(greeting)
        if "fault" in answer:
            raise ConfigError(answer["fault"])
        return int(answer["threads"])

    @property
    def alive(self) -> bool:
        """Whether it takes programs. One that is ending has closed its end of the socket, though it may not be gone."""
        hung_up = select.poll()
        hung_up.register(self._control, 0)
        return not self._lost and not hung_up.poll(0)

    async def run(self, order: Order) -> dict[str, Any]:
        """The reply of the supervisor to `order`. Cancelling ends the program.

        Raises:
            ToolError: the warden ended, could not start the program, or does not answer.
        """
        ours, theirs = socket.socketpair()
        wall_s, most = order.wall_s, 4 * (order.head_bytes + order.tail_bytes) + 4096
        with ours, theirs:
            try:
                socket.send_fds(self._control, [struct.pack("<d", wall_s + GRACE_S)], [theirs.fileno()])
                theirs.close()  # only the other side's end is left, so that its death is seen as the end of the file
                async with asyncio.timeout(wall_s + 2 * GRACE_S):
                    reply = await _exchange(ours, order, most)
            except TimeoutError as error:
                self._lost = True
                self._process.kill()
                raise ToolError("the python tool's warden does not answer; it was killed") from error
            except OSError as error:
                self._lost = True
                raise ToolError(f"the python tool lost its warden: {error}{self._last_words()}") from error
        return self._understood(reply)

    def _understood(self, reply: bytes) -> dict[str, Any]:
        if not reply.endswith(b"\n"):
            self._lost = True
            raise ToolError(f"the python tool's warden ended without an answer{self._last_words()}")
        answer: dict[str, Any] = json.loads(reply)
        if "fault" in answer:
            raise ToolError(f"the python tool failed: {answer['fault']}{self._last_words()}")
        return answer

    def _last_words(self) -> str:
        """What the warden wrote on stderr, for the message of an error."""
        if self._errors.closed:
            return ""
        size = os.fstat(self._errors.fileno()).st_size
        text = os.pread(self._errors.fileno(), 2000, max(0, size - 2000)).decode(errors="replace").strip()
        return f"\n{text}" if text else ""

    def close(self) -> None:
        """End the warden and all programs under way; returns when they are gone. Blocks for milliseconds."""
        self._control.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        shutil.rmtree(self._scratch, ignore_errors=True)


async def _exchange(channel: socket.socket, order: Order, most: int) -> bytes:
    """Send `order` as a line; the line that comes back."""
    channel.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(channel, order.to_json().encode() + b"\n")
    return await _line(channel, most)


async def _line(channel: socket.socket, most: int) -> bytes:
    """The line that comes, or what came of it before it ended or grew over `most` bytes."""
    loop = asyncio.get_running_loop()
    line = bytearray()
    while not line.endswith(b"\n") and len(line) <= most:
        data = await loop.sock_recv(channel, CHUNK)
        if not data:
            break
        line += data
    return bytes(line)
