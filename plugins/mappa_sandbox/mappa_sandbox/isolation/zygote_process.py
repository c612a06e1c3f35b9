"""The process that is the zygote: preloads modules, and forks programs into containers."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from mappa_sandbox.isolation import kernel, processes
from mappa_sandbox.isolation.bubblewrap import Container, enter_container
from mappa_sandbox.isolation.job import SandboxConfig
from mappa_sandbox.isolation.output import read_available
from mappa_sandbox.isolation.preload import preload, settle_memory
from mappa_sandbox.isolation.program_process import become_program
from mappa_sandbox.isolation.signal_pipe import open_signal_pipe
from mappa_sandbox.isolation.zygote import Zygote

MAX_DESCRIPTORS = 6
"""Of a request: for the answer, for the assignment, the container, two outputs, and the control group."""


def start_zygote(config: SandboxConfig, close_inherited: Callable[[], None]) -> tuple[Zygote, dict[str, Any]]:
    """Fork the zygote and wait until it has preloaded; returns it, and the greeting for the driver."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            kernel.die_with_parent(signal.SIGKILL)
            close_inherited()
            ours.close()
            if os.getppid() == parent:  # else the fork server ended before this process asked for a signal at its end
                _become_zygote(config, theirs)
        except BaseException:  # noqa: BLE001 - a fork must not go on as a second fork server
            traceback.print_exc()
        os._exit(1)
    theirs.close()
    answer = ours.recv(1 << 16)
    if not answer:
        raise OSError("the process that preloads modules ended at its start")
    greeting: dict[str, Any] = json.loads(answer)
    return Zygote(pid, ours, greeting.pop("memory", 0)), greeting


def _become_zygote(config: SandboxConfig, requests: socket.socket) -> NoReturn:
    greeting = preload(config)
    if "fault" not in greeting:
        settle_memory()
        greeting["memory"] = processes.own_memory_bytes()
    requests.send(json.dumps(greeting).encode())
    if "fault" not in greeting:
        ZygoteProcess(requests).serve()
    os._exit(0)


class ZygoteProcess:
    """Forks programs, and tells their supervisors how they ended."""

    def __init__(self, requests: socket.socket) -> None:
        self.requests = requests
        self.signals = open_signal_pipe(signal.SIGCHLD)
        self.running: dict[int, socket.socket] = {}

    def serve(self) -> None:
        """Serve until the fork server has ended, with all supervisors."""
        poller = select.poll()
        poller.register(self.requests, select.POLLIN)
        poller.register(self.signals, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poller.poll()}
            if self.signals in ready:
                read_available(self.signals)
                self._reap()
            if self.requests.fileno() in ready and not self._accept():
                return

    def _accept(self) -> bool:
        """Fork the next program; returns False if nobody is left who asks."""
        message, descriptors, _, _ = socket.recv_fds(self.requests, 8, MAX_DESCRIPTORS)
        if not message:
            return False
        answer, *others = descriptors
        channel = socket.socket(fileno=answer)
        try:
            # This moves future children alone: the zygote stays where it is, and goes elsewhere before the next fork.
            kernel.enter_namespaces(others[1], kernel.CLONE_NEWPID)
            pid = os.fork()
        except OSError as error:
            _answer(channel, fault=f"cannot fork the program: {error}")
        else:
            if pid == 0:
                self._become_program(others)
            self.running[pid] = channel
        for descriptor in others:
            os.close(descriptor)
        return True

    def _become_program(self, descriptors: list[int]) -> NoReturn:
        try:
            assignments, inside, stdout, stderr, *group = descriptors
            for other in (self.requests, *self.running.values()):
                other.close()
            enter_container(inside)
            become_program(assignments, Container, (stdout, stderr), group[0] if group else None)
        except BaseException:  # noqa: BLE001 - a fork must not go on as a second zygote
            traceback.print_exc()
        os._exit(1)

    def _reap(self) -> None:
        while self.running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            _answer(self.running.pop(pid), exit=os.waitstatus_to_exitcode(status))


def _answer(channel: socket.socket, **answer: Any) -> None:
    with channel:
        try:
            channel.send(json.dumps(answer).encode())
        except OSError:
            return  # the supervisor is gone
