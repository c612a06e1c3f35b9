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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappa_core.errors import ToolError

SCRIPT = Path(__file__).with_name("warden.py")
GRACE_S = 15.0
"""Seconds beyond its wall limit after which a run counts as stuck: for a busy machine to kill what is left."""
CLOSE_S = 10.0
CHUNK = 1 << 16


def clean_environment() -> dict[str, str]:
    """All that programs find in their environment beside HOME and TMPDIR, a folder of their own that goes with them.

    Nothing is taken from the driver's. Numeric libraries get one thread: each would reserve address space, which is
    limited, and results would depend on the machine. No bytecode is written, as it would count as a file of the agent.
    """
    folders = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    return {
        "PATH": os.pathsep.join(folders),
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONNOUSERSITE": "1",
        "PYTHONUTF8": "1",
        **dict.fromkeys(threads, "1"),
    }


class WardenProcess:
    """A running warden. Programs under way are lost with it."""

    def __init__(self) -> None:
        self._scratch = tempfile.mkdtemp(prefix="mappa-python-")
        self._control, control = socket.socketpair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        command = [sys.executable, "-P", str(SCRIPT), str(control.fileno()), self._scratch]
        try:
            self._process = subprocess.Popen(
                command,
                env=clean_environment(),
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

    @property
    def alive(self) -> bool:
        """Whether it takes programs. One that is ending has closed its end of the socket, though it may not be gone."""
        hung_up = select.poll()
        hung_up.register(self._control, 0)
        return not self._lost and not hung_up.poll(0)

    async def run(self, request: Mapping[str, Any], *, wall_s: float, reply_bytes: int) -> dict[str, Any]:
        """The reply of the supervisor to `request`, at most `reply_bytes` long. Cancelling ends the program.

        Raises:
            ToolError: the warden ended, could not start the program, or does not answer.
        """
        ours, theirs = socket.socketpair()
        with ours, theirs:
            try:
                socket.send_fds(self._control, [struct.pack("<d", wall_s + GRACE_S)], [theirs.fileno()])
                theirs.close()  # only the other side's end is left, so that its death is seen as the end of the file
                async with asyncio.timeout(wall_s + 2 * GRACE_S):
                    reply = await _exchange(ours, request, reply_bytes)
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


async def _exchange(channel: socket.socket, request: Mapping[str, Any], most: int) -> bytes:
    """Send `request` as a line; the line that comes back, or what came of it before it ended or grew over `most`."""
    loop = asyncio.get_running_loop()
    channel.setblocking(False)
    await loop.sock_sendall(channel, json.dumps(request).encode() + b"\n")
    reply = bytearray()
    while not reply.endswith(b"\n") and len(reply) <= most:
        data = await loop.sock_recv(channel, CHUNK)
        if not data:
            break
        reply += data
    return bytes(reply)
