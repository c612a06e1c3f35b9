"""Capture the output of a program while it runs, keeping the head and the tail."""

from __future__ import annotations

import base64
import contextlib
import os
from typing import Any

PIPE_CHUNK_BYTES = 1 << 16


class OutputCapture:
    """Reads a pipe to its end and keeps the first and the last bytes."""

    def __init__(self, pipe: int, head: int, tail: int) -> None:
        self.pipe = pipe
        self.limits = head, tail
        self.head, self.tail, self.total = bytearray(), bytearray(), 0
        os.set_blocking(pipe, False)

    def read(self) -> bool:
        """Read one chunk; returns False at the end of the file."""
        data = os.read(self.pipe, PIPE_CHUNK_BYTES)
        self.total += len(data)
        head, tail = self.limits
        room = head - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > tail + PIPE_CHUNK_BYTES:
            del self.tail[: len(self.tail) - tail]
        return bool(data)

    def drain(self) -> None:
        """Read what is still in the pipe, and close it. Its writers are dead; in case some are not, this reads a
        bounded number of times and never waits."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):
                if not self.read():
                    break
        os.close(self.pipe)

    def to_reply(self) -> dict[str, Any]:
        """Return the kept head and tail, base64-encoded, and the number of bytes cut out between them."""
        tail = self.tail[max(0, len(self.tail) - self.limits[1]) :]
        cut = self.total - len(self.head) - len(tail)
        return {"head": base64.b64encode(self.head).decode(), "tail": base64.b64encode(tail).decode(), "cut": cut}
