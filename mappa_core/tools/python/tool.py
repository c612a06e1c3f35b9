"""The tool `python`."""

from __future__ import annotations

import asyncio
import base64
import codecs
import os
import re
from collections.abc import Mapping
from typing import Any, Literal

from mappa_core.errors import ConfigError
from mappa_core.protocols import Workspace
from mappa_core.records import ToolLimits, ToolResult, ToolSpec
from mappa_core.tools.cut import cut_note, ends
from mappa_core.tools.python.driver import WardenProcess
from mappa_core.tools.python.options import PythonOptions

SUPERVISOR_LOST = "[the program killed or stopped the process that watches it; its output is lost]"
_CONTINUATION = bytes(range(0x80, 0xC0))
_ADDRESS = re.compile(r"(?<= at )0x[0-9a-f]{6,16}(?=>)")


class PythonTool:
    """Implements protocols.Tool: runs each program in a fresh process, in the workspace's folder.

    A program is run as a plain interpreter runs a script: same exit code, same stdout and stderr, an empty stdin, the
    interpreter's own packages, `import` from the workspace. It gets nothing of this process's environment, has the
    limits of the call (CPU, memory and file size hold for each process that it starts; output for stdout and stderr
    each), and when it ends or is stopped every process that it left is killed.

    So that runs can be compared, the output is normalised: the workspace's path reads `.`, and the address in a
    default repr reads `0x0`.

    ToolResult: `ok` is exit code 0; `timeout` is a limit of wall or CPU time, named in the last line of stderr, and
    has no exit code; all else is `error`, with the negative number of the signal as exit code where one ended it. A
    program that kills or stops its supervisor is an `error` without exit code: it is the program's own doing. A warden
    that dies is a ToolError for the programs under way, and is started again for the next one.

    This is hygiene, not a cage: programs can read and write what this process's user can.
    """

    spec = ToolSpec(
        name="python",
        description="Run a Python program and return what it prints. Files in the working folder are kept between "
        "programs, variables are not.",
        schema={
            "type": "object",
            "properties": {"code": {"type": "string", "description": "the whole program"}},
            "required": ["code"],
            "additionalProperties": False,
        },
    )

    def __init__(self, options: PythonOptions) -> None:
        workers = max(2, os.cpu_count() or 2) if options.workers is None else options.workers
        if workers < 1:
            raise ConfigError(f"workers of the tool python must be at least 1, not {workers}")
        self._slots = asyncio.Semaphore(workers)
        self._warden: WardenProcess | None = None

    async def call(self, arguments: Mapping[str, Any], workspace: Workspace, limits: ToolLimits) -> ToolResult:
        """Run `arguments["code"]`. Waits for its turn where all workers are busy; that time does not count.

        Raises:
            ToolError: the program could not be run, or was lost with the warden.
        """
        head, tail = ends(limits.output_bytes)
        request = {
            "code": arguments["code"],
            "cwd": str(workspace.path.resolve()),
            "wall_s": limits.wall_s,
            "cpu_s": limits.cpu_s,
            "memory_bytes": limits.memory_bytes,
            "file_bytes": limits.file_bytes,
            "head_bytes": head,
            "tail_bytes": tail,
        }
        async with self._slots:
            warden = await self._running()
            reply = await warden.run(request, wall_s=limits.wall_s, reply_bytes=4 * limits.output_bytes + 4096)
        files = await asyncio.to_thread(workspace.changes)
        if "killed" in reply:
            return ToolResult(tool=self.spec.name, status="error", stderr=SUPERVISOR_LOST, files=files)
        stdout, stderr = (_text(reply[name], request["cwd"]) for name in ("stdout", "stderr"))
        if reply["limit"] is not None:
            stderr = _with_line(stderr, _why_stopped(reply["limit"], limits))
        return ToolResult(
            tool=self.spec.name,
            status=_status(reply),
            exit_code=reply["exit"],
            stdout=stdout,
            stderr=stderr,
            files=files,
            truncated=reply["stdout"]["cut"] > 0 or reply["stderr"]["cut"] > 0,
            seconds=reply["seconds"],
        )

    async def _running(self) -> WardenProcess:
        lost = None
        if self._warden is not None and not self._warden.alive:
            lost, self._warden = self._warden, None
        if self._warden is None:
            self._warden = WardenProcess()
        warden = self._warden
        if lost is not None:
            await asyncio.to_thread(lost.close)
        return warden

    async def close(self) -> None:
        """End the warden and every program under way. A later call starts a new one."""
        warden, self._warden = self._warden, None
        if warden is not None:
            await asyncio.to_thread(warden.close)


def _status(reply: Mapping[str, Any]) -> Literal["ok", "error", "timeout"]:
    if reply["limit"] is not None:
        return "timeout"
    return "ok" if reply["exit"] == 0 else "error"


def _why_stopped(limit: str, limits: ToolLimits) -> str:
    seconds, clock = (limits.wall_s, "wall time") if limit == "wall" else (limits.cpu_s, "CPU time")
    return f"[stopped: the program used more than {seconds:g} s of {clock}]\n"


def _with_line(text: str, line: str) -> str:
    return text + line if not text or text.endswith("\n") else f"{text}\n{line}"


def _text(kept: Mapping[str, Any], folder: str) -> str:
    """What a program wrote, as text: bytes that are not UTF-8 are replaced, a cut is marked."""
    head, tail = base64.b64decode(kept["head"]), base64.b64decode(kept["tail"])
    if kept["cut"]:
        # A character that the cut goes through is left out, not replaced.
        before = codecs.getincrementaldecoder("utf-8")("replace").decode(head)
        after = tail.lstrip(_CONTINUATION) if tail[:4].lstrip(_CONTINUATION) else tail
        text = before + cut_note(kept["cut"], "bytes") + after.decode(errors="replace")
    else:
        text = (head + tail).decode(errors="replace")
    if folder in text:
        text = re.sub(rf"(?<![\w.-]){re.escape(folder)}(?![\w.-])", ".", text)
    return _ADDRESS.sub("0x0", text)
