"""The zygote, as supervisors know it: the process of which programs in containers are forks.

It has imported the modules to preload, and so is large, while a supervisor is small: a program costs one fork of a
large process. Requests are packets on one socket, which all supervisors share; each brings the end of a socket of its
own for the answer, which comes when the program has ended, and of a pipe through which the program gets its assignment.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from mappa_sandbox.isolation.control_groups import ControlGroup

MAX_ANSWER_BYTES = 4096


@dataclass(frozen=True)
class Zygote:
    """The zygote with its id, the socket for requests, and the bytes of its `memory`, which programs inherit."""

    pid: int
    requests: socket.socket
    memory: int

    def fork_program(self, inside: int, outputs: Sequence[int], group: ControlGroup | None) -> ZygoteProgram:
        """Let a program be forked into the container that the process of the descriptor `inside` is in."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        source, assignments = os.pipe()
        groups = () if group is None else (group.folder,)
        with theirs:
            # One byte, as an empty packet would look like the end of the socket.
            socket.send_fds(self.requests, [b"!"], [theirs.fileno(), source, inside, *outputs, *groups])
        os.close(source)
        return ZygoteProgram(ours, assignments)


class ZygoteProgram:
    """A program that is a fork of the zygote."""

    def __init__(self, answers: socket.socket, assignments: int) -> None:
        self._answers = answers
        self.assignments = assignments
        self.descriptor = answers.fileno()

    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs.

        Raises:
            OSError: the program could not be forked, or the zygote has ended.
        """
        try:
            data = self._answers.recv(MAX_ANSWER_BYTES)
        except BlockingIOError:
            return None
        answer = json.loads(data) if data else {"fault": "the fork server ended"}
        if "fault" in answer:
            raise OSError(answer["fault"])
        return int(answer["exit"])
