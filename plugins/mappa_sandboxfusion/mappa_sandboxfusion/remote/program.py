"""Runs on the server: runs one program under its supervisor, and kills every process that it started."""

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

from mappa_sandboxfusion.remote.apply_files import remove_tree

STACK_BYTES = 8 << 20
PR_SET_CHILD_SUBREAPER = 36
THREAD_BYTES = 1 << 20


def run_program(job: dict[str, Any]) -> dict[str, Any]:
    """Run the program and return the runner's reply. Afterwards no process that the program started is alive."""
    with open("order.json", "w", encoding="utf-8") as order:
        json.dump(job["order"], order)
    scratch = f"{job['root']}/{job['folder']}/scratch"
    os.makedirs(scratch, exist_ok=True)
    prepare_process()
    open("started", "w").close()
    command = [sys.executable, "archive.zip", "order.json", "reply.json"]
    env = build_environment(job["environment"], scratch)
    with open("runner.err", "w+b") as errors:
        runner = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
        ended = ends_within(runner, job["order"]["wall_s"] + job["grace_s"])
        stopped = not ended and any(process_state(pid) == "T" for pid in [runner.pid, *descendants(runner.pid)])
        code = runner.returncode if ended else None
        kill_leftovers()
        errors.seek(0)
        error_output = errors.read()[-2000:].decode(errors="replace")
    if os.listdir(scratch):
        remove_tree(scratch)
    if code is None:
        return {"killed": signal.SIGSTOP} if stopped else {"fault": "the runner did not end the program in time"}
    if code < 0:
        return {"killed": -code}
    try:
        with open("reply.json", encoding="utf-8") as reply:
            answer: dict[str, Any] = json.load(reply)
            return answer
    except (OSError, ValueError):
        return {"fault": f"the runner ended with exit code {code} and no reply: {error_output}"}


def prepare_process() -> None:
    """Make this process the reaper of orphans, those of a killed runner too, and reset the stack size: under the
    server's memory limit the stack of a new thread would be as large as all memory, and no thread could start."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    most = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (most, hard))
    threading.stack_size(THREAD_BYTES)  # of this process, which got its own when it began


def ends_within(runner: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether the runner ended in time. Waits in a thread, because `Popen.wait` with a timeout polls."""
    waiting = threading.Thread(target=runner.wait, daemon=True)
    waiting.start()
    waiting.join(seconds)
    return not waiting.is_alive()


def build_environment(variables: dict[str, str], scratch: str) -> dict[str, str]:
    """Build the environment: the job's variables, and none of the server's but its Python first in PATH."""
    folders = [os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"]
    return {**variables, "PATH": os.pathsep.join(folders), "HOME": scratch, "TMPDIR": scratch}


def children(pid: int) -> list[int]:
    pids: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as listed:
                pids += [int(child) for child in listed.read().split()]
    return pids


def descendants(pid: int) -> list[int]:
    pids = children(pid)
    for child in pids:
        pids += children(child)
    return pids


def process_state(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as status:
        return status.read().rpartition(")")[2].split()[0]
    return ""


def kill_leftovers() -> None:
    """Kill the remaining processes: orphans become children of this process, so killing its children ends with none."""
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
