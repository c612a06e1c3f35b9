"""One program without a warden: how an order is run on a machine that has nothing of Mappa but this room.

    python RUNNER.zip ORDER.json REPLY.json

There is no cage: what the machine lets its user do, a program can do. Limits, the watch and the cleaning up are those
of every tier.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from mappa_core.tools.cage import kernel, processes, program
from mappa_core.tools.cage.cages import Bare
from mappa_core.tools.cage.order import Order, Setup
from mappa_core.tools.cage.supervisor import answer, run, watch_signals
from mappa_core.tools.cage.walk import remove


def main() -> None:
    """Run the order in the first file named on the command line; the reply goes to the second."""
    del sys.path[0]  # the archive
    with open(sys.argv[1], "rb") as text:
        order = Order.from_json(text.read())
    scratch = tempfile.mkdtemp(prefix="mappa-python-")
    kernel.become_subreaper()
    program.note_modules()
    ours, theirs = socket.socketpair()
    # The supervisor is another process, as the program may kill it: this one then says so.
    supervisor = os.fork()
    if supervisor == 0:
        ours.close()
        _supervise(order, scratch, theirs)
    theirs.close()
    reply = ours.makefile("rb").read()
    _, status = os.waitpid(supervisor, 0)
    if status != 0:
        reply = b'{"killed": %d}' % abs(os.waitstatus_to_exitcode(status))
    processes.sweep()
    remove(Path(scratch))
    with open(sys.argv[2], "wb") as target:
        target.write(reply)


def _supervise(order: Order, scratch: str, channel: socket.socket) -> NoReturn:
    signals = watch_signals(signal.SIGCHLD, signal.SIGTERM)
    try:
        reply = run(order, Bare(Setup(tier="none", scratch=scratch), order), channel, signals)
    except OSError as error:
        reply = {"fault": f"cannot run the program: {error}"}
    answer(channel, **(reply or {"fault": "the runner was stopped"}))
    os._exit(0)
