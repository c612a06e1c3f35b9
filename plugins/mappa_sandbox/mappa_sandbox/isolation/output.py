"""Capture the output of a program while it runs, keeping the head and the tail.

The program writes to one end of a pair of sockets. Unlike a pipe, a socket cannot be opened again through /proc: only
this process reads what was written, and whatever the program does to its end changes its own output alone.
"""

from __future__ import annotations

import base64
import os
import socket
from typing import Any

CHUNK_BYTES = 1 << 16


def read_available(descriptor: int) -> bytes | None:
    """Read what is there, empty at the end of the file; None if there is nothing now, whatever a poll said before."""
    try:
        return os.read(descriptor, CHUNK_BYTES)
    except (BlockingIOError, InterruptedError):
        return None


def open_one_way() -> tuple[int, int]:
    """Open a pair of connected sockets; return the end to read from, which does not block, and the end to write to."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.shutdown(socket.SHUT_WR)
    ours.setblocking(False)
    return ours.detach(), theirs.detach()


class OutputCapture:
    """Reads an output to its end and keeps the first and the last bytes."""

    def __init__(self, end: int, head: int, tail: int) -> None:
        self.end = end
        self.limits = head, tail
        self.head, self.tail, self.total = bytearray(), bytearray(), 0

    def read(self) -> bool:
        """Read one chunk, if there is one; returns False at the end of the file."""
        data = read_available(self.end)
        if data is None:
            return True
        self.total += len(data)
        head, tail = self.limits
        room = head - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        # Not after every read, as cutting at the front moves all that stays.
        if len(self.tail) > tail + CHUNK_BYTES:
            del self.tail[: len(self.tail) - tail]
        return bool(data)

    def drain(self) -> None:
        """Read what is still there, and close the end. Its writers are dead; in case some are not, this reads a bounded
        number of times and never waits."""
        for _ in range(64):  # 4 MiB, many times what the buffers of a pair of sockets hold
            before = self.total
            if not self.read() or self.total == before:
                break
        os.close(self.end)

    def to_reply(self) -> dict[str, Any]:
        """Return the kept head and tail, base64-encoded, and the number of bytes cut out between them."""
        tail = self.tail[max(0, len(self.tail) - self.limits[1]) :]
        cut = self.total - len(self.head) - len(tail)
        return {"head": base64.b64encode(self.head).decode(), "tail": base64.b64encode(tail).decode(), "cut": cut}
