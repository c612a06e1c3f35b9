"""The supervisor: runs the one job it reads from its channel, and replies once none of its processes are left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from mappa_sandbox.isolation import control_groups, disk, kernel
from mappa_sandbox.isolation.backends import LandlockBackend, NoSandbox, SandboxBackend, SeatbeltBackend
from mappa_sandbox.isolation.bubblewrap import BubblewrapBackend
from mappa_sandbox.isolation.control_groups import ControlGroup
from mappa_sandbox.isolation.job import SandboxConfig, SandboxJob
from mappa_sandbox.isolation.monitor import WALL, LimitChecker, ProgramMonitor
from mappa_sandbox.isolation.output import OutputCapture, open_one_way
from mappa_sandbox.isolation.program_process import limit_machinery
from mappa_sandbox.isolation.signal_pipe import open_signal_pipe
from mappa_sandbox.isolation.zygote import Zygote

BACKENDS: Mapping[str, Callable[[SandboxConfig, SandboxJob], SandboxBackend]] = {
    "landlock": LandlockBackend,
    "seatbelt": SeatbeltBackend,
    "none": NoSandbox,
}
"""Backends whose programs are forks of their supervisor."""


def send_reply(channel: socket.socket, **reply: Any) -> None:
    with contextlib.suppress(OSError):  # the driver no longer waits
        channel.sendall(json.dumps(reply).encode() + b"\n")


def supervise(channel: socket.socket, fork_server: int, config: SandboxConfig, zygote: Zygote | None) -> None:
    """Read a job from `channel`, run it, reply. In rooms of bubblewrap the program is a fork of the `zygote`."""
    signals = open_signal_pipe(signal.SIGCHLD, signal.SIGTERM)
    kernel.die_with_parent(signal.SIGTERM)
    kernel.become_subreaper()
    with channel.makefile("rb") as lines:
        line = lines.readline()
    if os.getppid() != fork_server or not line:
        return
    job = SandboxJob.from_json(line)
    try:
        sandbox = BACKENDS[config.backend](config, job) if zygote is None else BubblewrapBackend(config, job, zygote)
        reply = run_in_group(job, sandbox, config, channel, signals)
    except OSError as error:
        reply = {"fault": f"cannot run the program: {error}"}
    if reply is not None:
        send_reply(channel, **reply)


def run_in_group(
    job: SandboxJob, sandbox: SandboxBackend, config: SandboxConfig, channel: socket.socket, signals: int
) -> dict[str, Any] | None:
    """Run `job` in a control group of its own where there are any; as `run_job` otherwise."""
    if not config.control_base:
        return run_job(job, sandbox, channel, signals, None)
    group = control_groups.make_group(config.control_base, job, config.held, sandbox.inherited_memory())
    try:
        return run_job(job, sandbox, channel, signals, group)
    finally:
        group.remove()


def run_job(
    job: SandboxJob, sandbox: SandboxBackend, channel: socket.socket, signals: int, group: ControlGroup | None
) -> dict[str, Any] | None:
    """Run `job` and return the reply; None if nobody waits for it any more. No process of the program is left."""
    inherited_memory = sandbox.inherited_memory() if kernel.LINUX else 0
    try:
        limit_machinery(job)
        sandbox.build()
        kernel.die_with_parent(signal.SIGTERM)  # entering a sandbox may have undone it
        checker = LimitChecker(sandbox, job, inherited_memory, group) if kernel.LINUX else None
        ending = run_monitored(job, sandbox, channel, signals, checker)
        disk.make_readable(sandbox.folder)
        if ending is not None and checker is not None and (limit := checker.exceeded_at_end()) is not None:
            disk.trim(sandbox.folder, checker.max_bytes, checker.max_entries)
            if ending["limit"] is None:
                ending |= {"exit": None, "limit": limit}
        return ending
    finally:
        sandbox.kill_all(0)
        sandbox.clean_up()


def run_monitored(
    job: SandboxJob, sandbox: SandboxBackend, channel: socket.socket, signals: int, checker: LimitChecker | None
) -> dict[str, Any] | None:
    """Start the program, wait until it ends or reaches a limit, and kill what it left. Returns how it ended, and its
    output; None if nobody waits for it any more."""
    outputs, ends = open_outputs(job)
    started = time.monotonic()
    process = sandbox.start_program(ends, checker.group if checker is not None else None)
    for end in ends:
        os.close(end)
    try:
        ending = ProgramMonitor(process, signals, channel, outputs, checker).wait_until(started + job.wall_s)
        seconds = time.monotonic() - started
    finally:
        sandbox.kill_all(process.pid)
    for output in outputs:
        output.drain()
    if ending is None:
        return None
    watched = [WALL, *(checker.watched if checker is not None else ())]
    return {
        **ending,
        "watched": watched,
        "stdout": outputs[0].to_reply(),
        "stderr": outputs[1].to_reply(),
        "seconds": seconds,
    }


def open_outputs(job: SandboxJob) -> tuple[list[OutputCapture], list[int]]:
    """Create the captures of standard output and error, and the ends that the program writes to."""
    pairs = [open_one_way(), open_one_way()]
    return [OutputCapture(ours, job.head_bytes, job.tail_bytes) for ours, _ in pairs], [theirs for _, theirs in pairs]
