"""Messages between the tool `python` and the machine that runs its programs: build a job, convert the reply.

The same for local sandboxes and remote servers.
"""

from __future__ import annotations

import base64
import codecs
import inspect
import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mappa_core import ToolLimits, ToolResult, ToolSpec, safe_walk
from mappa_core.sandbox import FileChange, cut_note, split_limit
from mappa_sandbox import isolation
from mappa_sandbox.isolation.job import SandboxJob

PYTHON_SPEC = ToolSpec(
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


SUPERVISOR_LOST = "[the program killed or stopped the process that watches it; its output is lost]"
MAX_LISTED_LEFT_BEHIND = 5
_CONTINUATION = bytes(range(0x80, 0xC0))
_ADDRESS = re.compile(r"(?<= at )0x[0-9a-f]{6,16}(?=>)")
_ENTRY = "from mappa_sandbox.isolation.standalone import main\n\nmain()\n"


def program_job(
    code: str, limits: ToolLimits, *, folder: str, arguments: Sequence[str] = (), inputs: Sequence[str] = ()
) -> SandboxJob:
    """Build the job for one program in `folder`, which may read the files `inputs`."""
    head, tail = split_limit(limits.output_bytes)
    return SandboxJob(
        code=code,
        folder=folder,
        arguments=tuple(arguments),
        inputs=tuple(inputs),
        wall_s=limits.wall_s,
        cpu_s=limits.cpu_s,
        memory_bytes=limits.memory_bytes,
        file_bytes=limits.file_bytes,
        processes=limits.processes,
        workspace_bytes=limits.workspace_bytes,
        workspace_files=limits.workspace_files,
        head_bytes=head,
        tail_bytes=tail,
    )


def program_runner() -> bytes:
    """Build a zip archive that runs a job on another machine: `python RUNNER.zip JOB.json REPLY.json`, with Python 3.10
    or newer and nothing else. Programs have their limits there, but no sandbox."""
    folder = Path(isolation.__file__).parent
    packages = ("mappa_core", "mappa_sandbox")
    texts = {
        "__main__.py": _ENTRY,
        **dict.fromkeys((f"{package}/__init__.py" for package in packages), ""),
        **{f"mappa_sandbox/isolation/{path.name}": path.read_text() for path in sorted(folder.glob("*.py"))},
        "mappa_core/safe_walk.py": inspect.getsource(safe_walk),
    }
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, text in texts.items():
            # Without the time of writing: the same code is the same archive, byte for byte.
            zipped.writestr(zipfile.ZipInfo(name), text, zipfile.ZIP_DEFLATED)
    return archive.getvalue()


def program_result(
    reply: Mapping[str, Any],
    limits: ToolLimits,
    *,
    folder: str,
    files: tuple[FileChange, ...],
    irregular_files: Sequence[str],
    sandbox: str,
) -> ToolResult:
    """Convert a reply without a fault to the result of the call.

    Status `ok` is exit code 0; `timeout` is a limit of wall or CPU time; all else is `error`; the exit code is negative
    for a signal. If a limit was reached, the last line of stderr names it and there is no exit code. To make runs
    comparable, `folder` is replaced by `.`, and the address in a default repr by `0x0`.
    """
    if "killed" in reply:
        return ToolResult(tool=PYTHON_SPEC.name, status="error", stderr=SUPERVISOR_LOST, files=files, sandbox=sandbox)
    stdout, stderr = (_decode_output(reply[name], folder) for name in ("stdout", "stderr"))
    if reply["limit"] is not None:
        stderr = _with_line(stderr, f"[stopped: {_why_stopped(reply['limit'], limits)}]")
    if irregular_files:
        stderr = _with_line(stderr, f"[not kept, as these are no regular files: {_format_names(irregular_files)}]")
    return ToolResult(
        tool=PYTHON_SPEC.name,
        status=_status(reply),
        exit_code=reply["exit"],
        stdout=stdout,
        stderr=stderr,
        files=files,
        truncated=reply["stdout"]["cut"] > 0 or reply["stderr"]["cut"] > 0,
        seconds=reply["seconds"],
        sandbox=sandbox,
        limit=reply["limit"],
        watched=tuple(reply["watched"]),
    )


def _status(reply: Mapping[str, Any]) -> Literal["ok", "error", "timeout"]:
    if reply["limit"] in ("wall", "cpu"):
        return "timeout"
    return "ok" if reply["exit"] == 0 else "error"


def _why_stopped(limit: str, limits: ToolLimits) -> str:
    return {
        "wall": f"the program used more than {limits.wall_s:g} s of wall time",
        "cpu": f"the program used more than {limits.cpu_s:g} s of CPU time",
        "memory": f"the program and what it started used more than {_size(limits.memory_bytes)} of memory",
        "processes": f"more than {limits.processes} processes and threads were running",
        "disk": f"files took more than {_size(limits.workspace_bytes)}; the newest are removed",
        "files": f"there were more than {limits.workspace_files} files and folders, or some out of reach; "
        "the newest are removed",
        "hidden": "a process could not be inspected, and so not held to its limits",
    }[limit]


def _size(count: int) -> str:
    return f"{count / (1 << 20):g} MiB"


def _format_names(names: Sequence[str]) -> str:
    more = len(names) - MAX_LISTED_LEFT_BEHIND
    shown = ", ".join(names[:MAX_LISTED_LEFT_BEHIND])
    return f"{shown} and {more} more" if more > 0 else shown


def _with_line(text: str, line: str) -> str:
    return f"{text}{line}\n" if not text or text.endswith("\n") else f"{text}\n{line}\n"


def _decode_output(output: Mapping[str, Any], folder: str) -> str:
    """Decode captured output: bytes that are not UTF-8 are replaced, a cut is marked."""
    head, tail = base64.b64decode(output["head"]), base64.b64decode(output["tail"])
    if output["cut"]:
        # A character that was cut in two is dropped, not replaced.
        before = codecs.getincrementaldecoder("utf-8")("replace").decode(head)
        # A character has at most three such bytes: where there are four, this is no UTF-8, and nothing is dropped.
        after = tail.lstrip(_CONTINUATION) if tail[:4].lstrip(_CONTINUATION) else tail
        text = before + cut_note(output["cut"], "bytes") + after.decode(errors="replace")
    else:
        text = (head + tail).decode(errors="replace")
    if folder in text:
        # Not where it is part of a longer name: /tmp/a in /tmp/ab.
        text = re.sub(rf"(?<![\w.-]){re.escape(folder)}(?![\w.-])", ".", text)
    return _ADDRESS.sub("0x0", text)
