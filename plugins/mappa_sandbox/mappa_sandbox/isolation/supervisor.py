"""The supervisor: prepares one program, waits for its job, runs it, and replies once none of its processes are left."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

from mappa_sandbox.isolation import control_groups, disk, kernel
from mappa_sandbox.isolation.backends import CONFINEMENTS, ForkedBackend, SandboxBackend
from mappa_sandbox.isolation.bubblewrap import BubblewrapBackend
from mappa_sandbox.isolation.control_groups import ControlGroup
from mappa_sandbox.isolation.job import Assignment, SandboxConfig, SandboxJob
from mappa_sandbox.isolation.memory_workspace import spare_bytes
from mappa_sandbox.isolation.monitor import WALL, LimitChecker, ProgramMonitor
from mappa_sandbox.isolation.output import OutputCapture, open_one_way, read_available
from mappa_sandbox.isolation.program_process import ProgramProcess, assign, limit_machinery
from mappa_sandbox.isolation.signal_pipe import open_signal_pipe
from mappa_sandbox.isolation.zygote import Zygote

BEGUN = b"!"
"""What a supervisor tells the fork server before it lets a program begin: what happens to it from then on may be the
program's doing."""


def send_reply(channel: socket.socket, **reply: Any) -> None:
    with contextlib.suppress(OSError):  # the driver no longer waits
        channel.sendall(json.dumps(reply).encode() + b"\n")


@dataclass(frozen=True)
class PreparedProgram:
    """A sandbox, and in it a process that waits for its assignment. `outputs` are the ends that its standard output and
    error are read from."""

    sandbox: SandboxBackend
    process: ProgramProcess
    outputs: tuple[int, int]
    group: ControlGroup | None
    inherited_memory: int


def supervise(jobs: socket.socket, fork_server: int, config: SandboxConfig, zygote: Zygote | None) -> None:
    """Prepare a program, wait for the channel of a driver from `jobs`, read a job from it, run it, reply. In rooms of
    bubblewrap the program is a fork of the `zygote`."""
    signals = open_signal_pipe(signal.SIGCHLD, signal.SIGTERM)
    kernel.die_with_parent(signal.SIGTERM)
    kernel.become_subreaper()
    if os.getppid() != fork_server:  # it ended before this process asked for a signal at its end
        return
    sandbox = (
        ForkedBackend(config, CONFINEMENTS[config.backend]) if zygote is None else BubblewrapBackend(config, zygote)
    )
    received, reply = None, None
    try:
        with ExitStack() as ended:
            try:
                prepared = prepare_program(sandbox, config, ended)
            finally:  # also where that failed: the reply says why
                received = receive_job(jobs, signals)
            if received is not None:
                jobs.send(BEGUN)
                reply = run_job(received.job, prepared, received.channel, signals)
    except OSError as error:
        reply = {"fault": f"cannot run the program: {error}"}
    if received is not None and reply is not None:
        send_reply(received.channel, **reply)


def prepare_program(sandbox: SandboxBackend, config: SandboxConfig, ended: ExitStack) -> PreparedProgram:
    """Build the sandbox, in a control group where there are any, and fork the program. When `ended` closes, no process
    of it is left."""
    limit_machinery()
    # What is registered last is undone first: when folders and group are removed, no process is left in them.
    group = ControlGroup(config.control_base, config.held) if config.control_base else None
    if group is not None:
        ended.callback(group.remove)
    ended.callback(sandbox.clean_up)
    ended.callback(sandbox.kill_all)
    inherited_memory = sandbox.inherited_memory()
    sandbox.build()
    kernel.die_with_parent(signal.SIGTERM)  # entering a sandbox may have undone it
    (stdout, their_stdout), (stderr, their_stderr) = open_one_way(), open_one_way()
    process = sandbox.start_program((their_stdout, their_stderr), group)
    # An output ends when the last process that could write to it has closed it: this one must not be among them.
    os.close(their_stdout)
    os.close(their_stderr)
    return PreparedProgram(sandbox, process, (stdout, stderr), group, inherited_memory)


class ReceivedJob(NamedTuple):
    """A job, and the channel of the driver that waits for the reply."""

    job: SandboxJob
    channel: socket.socket


def receive_job(jobs: socket.socket, signals: int) -> ReceivedJob | None:
    """Wait for a job; None if there will be none, as the fork server or the driver is gone."""
    poller = select.poll()
    poller.register(jobs, select.POLLIN)
    poller.register(signals, select.POLLIN)
    while jobs.fileno() not in {fd for fd, _ in poller.poll()}:
        if signal.SIGTERM in (read_available(signals) or b""):
            return None
    message, descriptors, _, _ = socket.recv_fds(jobs, 8, 1)
    if not message:
        return None
    os.set_inheritable(descriptors[0], False)
    channel = socket.socket(fileno=descriptors[0])
    with channel.makefile("rb") as lines:
        line = lines.readline()
    return ReceivedJob(SandboxJob.from_json(line), channel) if line else None


def run_job(job: SandboxJob, prepared: PreparedProgram, channel: socket.socket, signals: int) -> dict[str, Any] | None:
    """Run `job` and return the reply; None if nobody waits for it any more. No process of the program is left."""
    sandbox, group = prepared.sandbox, prepared.group
    assignment = sandbox.admit(job)
    if group is not None:
        file_bytes = spare_bytes(job) if sandbox.holds_files else 0
        control_groups.limit_group(group, job, prepared.inherited_memory, file_bytes)
    checker = LimitChecker(sandbox, job, prepared.inherited_memory, group)
    ending = run_monitored(assignment, prepared, channel, signals, checker)
    disk.make_readable(sandbox.folder)  # before it is measured: a program may have locked folders
    if ending is not None and (limit := checker.exceeded_at_end()) is not None:
        disk.trim(sandbox.folder, checker.max_bytes, checker.max_entries)
        if ending["limit"] is None:
            ending |= {"exit": None, "limit": limit}
    if ending is not None:
        sandbox.bring_back()
    return ending


def run_monitored(
    assignment: Assignment,
    prepared: PreparedProgram,
    channel: socket.socket,
    signals: int,
    checker: LimitChecker,
) -> dict[str, Any] | None:
    """Let the program begin, wait until it ends or reaches a limit, and kill what it left. Returns how it ended, and
    its output; None if nobody waits for it any more."""
    job = assignment.job
    outputs = [OutputCapture(end, job.head_bytes, job.tail_bytes) for end in prepared.outputs]
    started = time.monotonic()
    try:
        assign(prepared.process, assignment)
        ending = ProgramMonitor(prepared.process, signals, channel, outputs, checker).wait_until(started + job.wall_s)
        seconds = time.monotonic() - started
    finally:
        prepared.sandbox.kill_all()
    for output in outputs:
        output.drain()
    if ending is None:
        return None
    return {
        **ending,
        "watched": [WALL, *checker.watched],
        "stdout": outputs[0].to_reply(),
        "stderr": outputs[1].to_reply(),
        "seconds": seconds,
    }
