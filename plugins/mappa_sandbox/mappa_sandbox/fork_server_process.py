"""The driver's side of the fork server: start it, send it jobs, notice when it is gone."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mappa_core
from mappa_core import ConfigError, ToolError
from mappa_core.sandbox import own_folder
from mappa_sandbox.environment import clean_environment, launch_environment
from mappa_sandbox.isolation.job import SandboxConfig, SandboxJob

PACKAGE_ROOTS = (Path(__file__).parents[1], Path(mappa_core.__file__).parents[1])
"""The folders that `mappa_sandbox` and `mappa_core` are imported from, as the fork server must find the same."""
BOOTSTRAP = """
import sys
sys.path[:0] = sys.argv.pop(1), sys.argv.pop(1)
from mappa_sandbox.isolation.fork_server import main
del sys.path[:2]
main()
"""
FORK_SERVER_ENVIRONMENT = {"PYTHONMALLOC": "malloc"}
"""Variables of the fork server alone: Python's own allocator scatters objects over arenas of 1 MiB, which do not fit
into huge pages (`isolation.huge_pages`)."""
KILL_GRACE_S = 60.0
"""Seconds beyond its wall limit after which a run counts as stuck: time for a busy machine to kill what is left, and to
copy the files of the workspace into memory and back."""
_CLOSE_TIMEOUT_S = 10.0
STARTUP_TIMEOUT_S = 300.0
"""Seconds that the fork server may take to preload modules."""
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class Greeting:
    """What a fork server tells when it is ready: the number of `threads` that preloading started, which programs lack,
    and whether the kernel holds the files of a workspace to their limits."""

    threads: int
    holds_files: bool


class ForkServerProcess:
    """A running fork server. When it ends, running programs are lost and `config.scratch` is removed."""

    def __init__(self, config: SandboxConfig) -> None:
        self._scratch = config.scratch
        self._owner = own_folder(Path(config.scratch))
        self._control, control = socket.socketpair()
        # A file and no pipe: nobody reads it while programs run, and a full pipe would stop the fork server.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `close`
        environment = clean_environment(config.backend, config.scratch) | FORK_SERVER_ENVIRONMENT
        # The launcher needs variables of this user to find systemd; the fork server must not get them.
        launcher = [*config.launcher, "/usr/bin/env", "-i", *(f"{name}={value}" for name, value in environment.items())]
        command = [
            *(launcher if config.launcher else []),
            sys.executable,
            "-P",
            "-c",
            BOOTSTRAP,
            *map(str, PACKAGE_ROOTS),
            str(control.fileno()),
            config.to_json(),
        ]
        try:
            self._process = subprocess.Popen(
                command,
                env=launch_environment() if config.launcher else environment,
                pass_fds=(control.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C in the terminal is for the driver, which then ends it
            )
        finally:
            control.close()  # held by the fork server alone, its end shows that it is gone
        self._control.setblocking(False)
        self._lost = False

    async def wait_ready(self) -> Greeting:
        """Wait until all modules are preloaded; returns what there is to know of it.

        Raises:
            ConfigError: a module cannot be imported.
            ToolError: the sandbox does not work here, the fork server ended, or takes too long.
        """
        try:
            async with asyncio.timeout(STARTUP_TIMEOUT_S):
                greeting = await _read_line(self._control, _CHUNK_BYTES)
        except TimeoutError as error:
            raise ToolError(f"the python tool's fork server was not ready after {STARTUP_TIMEOUT_S:g} s") from error
        if not greeting.endswith(b"\n"):
            raise ToolError(f"the python tool's fork server ended at its start{self._stderr_tail()}")
        answer: dict[str, Any] = json.loads(greeting)
        if "broken" in answer:
            raise ToolError(answer["broken"])
        if "fault" in answer:
            raise ConfigError(answer["fault"])
        return Greeting(threads=answer["threads"], holds_files=answer["holds_files"])

    @property
    def is_alive(self) -> bool:
        """Whether it accepts jobs. A fork server that is ending has closed its socket, though it may not be gone
        yet."""
        hung_up = select.poll()
        hung_up.register(self._control, 0)
        return not self._lost and not hung_up.poll(0)

    async def run(self, job: SandboxJob) -> dict[str, Any]:
        """Run `job` and return the reply of its supervisor. Cancelling ends the program.

        Raises:
            ToolError: the fork server ended, could not start the program, or does not answer.
        """
        ours, theirs = socket.socketpair()
        # Two outputs in base64, which takes 4 bytes for 3; and the other fields.
        wall_s, max_bytes = job.wall_s, 4 * (job.head_bytes + job.tail_bytes) + 4096
        with ours, theirs:
            try:
                socket.send_fds(self._control, [struct.pack("<d", wall_s + KILL_GRACE_S)], [theirs.fileno()])
                theirs.close()  # now only the other side holds it, so that its death is seen as the end of the file
                # Twice the grace: the fork server's own deadline comes first, and can say why.
                async with asyncio.timeout(wall_s + 2 * KILL_GRACE_S):
                    reply = await _exchange(ours, job, max_bytes)
            except TimeoutError as error:
                self._lost = True
                self._process.kill()
                raise ToolError("the python tool's fork server does not answer; it was killed") from error
            except OSError as error:
                self._lost = True
                raise ToolError(f"the python tool lost its fork server: {error}{self._stderr_tail()}") from error
        return self._parse_reply(reply)

    def _parse_reply(self, reply: bytes) -> dict[str, Any]:
        if not reply.endswith(b"\n"):
            self._lost = True
            raise ToolError(f"the python tool's fork server ended without an answer{self._stderr_tail()}")
        answer: dict[str, Any] = json.loads(reply)
        if "fault" in answer:
            raise ToolError(f"the python tool failed: {answer['fault']}{self._stderr_tail()}")
        return answer

    def _stderr_tail(self) -> str:
        """End of the fork server's stderr, for error messages."""
        if self._errors.closed:
            return ""
        size = os.fstat(self._errors.fileno()).st_size
        text = os.pread(self._errors.fileno(), 2000, max(0, size - 2000)).decode(errors="replace").strip()
        return f"\n{text}" if text else ""

    def close(self) -> None:
        """End the fork server and all running programs; returns when they are gone. Blocks for milliseconds."""
        self._control.close()
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.close(self._owner)


async def _exchange(channel: socket.socket, job: SandboxJob, max_bytes: int) -> bytes:
    """Send `job` as a line; returns the line that comes back."""
    channel.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(channel, job.to_json().encode() + b"\n")
    return await _read_line(channel, max_bytes)


async def _read_line(channel: socket.socket, max_bytes: int) -> bytes:
    """Read one line, or its beginning if the channel closed or the line grew over `max_bytes`."""
    loop = asyncio.get_running_loop()
    line = bytearray()
    while not line.endswith(b"\n") and len(line) <= max_bytes:
        data = await loop.sock_recv(channel, _CHUNK_BYTES)
        if not data:
            break
        line += data
    return bytes(line)
