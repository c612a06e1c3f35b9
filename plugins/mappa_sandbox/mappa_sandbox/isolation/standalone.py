"""Run one job without a fork server, on a machine that has nothing of Mappa but this package.

    python RUNNER.zip JOB.json REPLY.json

There is no sandbox: a program can do all that its user may do on the machine. Limits, monitoring and cleanup are the
same as in every backend.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from mappa_core.safe_walk import remove_tree
from mappa_sandbox.isolation import kernel, processes, program
from mappa_sandbox.isolation.backends import ForkedBackend, Unconfined
from mappa_sandbox.isolation.job import SandboxConfig, SandboxJob
from mappa_sandbox.isolation.signal_pipe import open_signal_pipe
from mappa_sandbox.isolation.supervisor import prepare_program, run_job, send_reply


def main() -> None:
    """Run the job in the first file named on the command line; write the reply to the second."""
    del sys.path[0]  # the archive
    with open(sys.argv[1], "rb") as text:
        job = SandboxJob.from_json(text.read())
    scratch = tempfile.mkdtemp(prefix="mappa-python-")
    kernel.become_subreaper()
    program.record_own_modules()
    ours, theirs = socket.socketpair()
    # The supervisor is another process, as the program may kill it: this process then reports that.
    supervisor = os.fork()
    if supervisor == 0:
        ours.close()
        _supervise(job, scratch, theirs)
    theirs.close()
    reply = ours.makefile("rb").read()
    _, status = os.waitpid(supervisor, 0)
    if status != 0:
        reply = b'{"killed": %d}' % abs(os.waitstatus_to_exitcode(status))
    processes.kill_descendants()
    remove_tree(Path(scratch))
    with open(sys.argv[2], "wb") as target:
        target.write(reply)


def _supervise(job: SandboxJob, scratch: str, channel: socket.socket) -> NoReturn:
    signals = open_signal_pipe(signal.SIGCHLD, signal.SIGTERM)
    config = SandboxConfig(backend="none", scratch=scratch)
    try:
        with ExitStack() as ended:
            prepared = prepare_program(ForkedBackend(config, Unconfined), config, ended)
            reply = run_job(job, prepared, channel, signals)
    except OSError as error:
        reply = {"fault": f"cannot run the program: {error}"}
    send_reply(channel, **(reply or {"fault": "the runner was stopped"}))
    os._exit(0)
