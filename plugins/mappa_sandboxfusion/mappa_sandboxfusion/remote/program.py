"""Runs on the server: one program under its supervisor, and the end of all that it started."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from mappa_sandboxfusion.remote.incoming import remove

STACK_BYTES = 8 << 20
PR_SET_CHILD_SUBREAPER = 36
THREAD_BYTES = 1 << 20


def run(job: dict[str, Any]) -> dict[str, Any]:
    """The runner's reply. Afterwards nothing that the program started is alive."""
    with open("order.json", "w", encoding="utf-8") as order:
        json.dump(job["order"], order)
    scratch = f"{job['root']}/{job['folder']}/scratch"
    os.makedirs(scratch, exist_ok=True)
    prepare()
    open("started", "w").close()
    command = [sys.executable, "archive.zip", "order.json", "reply.json"]
    env = environment(job["environment"], scratch)
    with open("runner.err", "w+b") as errors:
        runner = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        ended = ends_within(runner, job["order"]["wall_s"] + job["grace_s"])
        stopped = not ended and any(state_of(pid) == "T" for pid in [runner.pid, *descendants(runner.pid)])
        code = runner.returncode if ended else None
        sweep()
        errors.seek(0)
        said = errors.read()[-2000:].decode(errors="replace")
    if os.listdir(scratch):
        remove(scratch)
    if code is None:
        return {"killed": signal.SIGSTOP} if stopped else {"fault": "the runner did not end the program in time"}
    if code < 0:
        return {"killed": -code}
    try:
        with open("reply.json", encoding="utf-8") as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer
    except (OSError, ValueError):
        return {"fault": f"the runner ended with exit code {code} and no reply: {said}"}


def prepare() -> None:
    """Orphans come to this process, those of a killed runner too. The stack is as large as usual: the server's limit of
    memory makes that of every new thread as large as all memory, so that none can start."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    most = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (most, hard))
    threading.stack_size(THREAD_BYTES)  # of this process, which got its own when it began


def ends_within(runner: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether the runner ended within the time. It is waited for in a thread: `Popen.wait` with a time limit polls."""
    waiting = threading.Thread(target=runner.wait, daemon=True)
    waiting.start()
    waiting.join(seconds)
    return not waiting.is_alive()


def environment(variables: dict[str, str], scratch: str) -> dict[str, str]:
    """Nothing of the server's but its Python comes first."""
    folders = [os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"]
    return {**variables, "PATH": os.pathsep.join(folders), "HOME": scratch, "TMPDIR": scratch}


def children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as listed:
                found += [int(child) for child in listed.read().split()]
    return found


def descendants(pid: int) -> list[int]:
    found = children(pid)
    for child in found:
        found += children(child)
    return found


def state_of(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as status:
        return status.read().rpartition(")")[2].split()[0]
    return ""


def sweep() -> None:
    """Kill what is left: orphans come to this process, so that killing its children ends with none."""
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        for pid in children(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)
