"""What a program writes: read as it comes, kept from both ends."""

from __future__ import annotations

import base64
import contextlib
import os
from typing import Any

CHUNK = 1 << 16


class Ends:
    """Reads a pipe to its end and keeps the first and the last bytes of what came."""

    def __init__(self, pipe: int, head: int, tail: int) -> None:
        self.pipe = pipe
        self.limits = head, tail
        self.head, self.tail, self.total = bytearray(), bytearray(), 0
        os.set_blocking(pipe, False)

    def take(self) -> bool:
        """Read once; False at the end of the file."""
        data = os.read(self.pipe, CHUNK)
        self.total += len(data)
        head, tail = self.limits
        room = head - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > tail + CHUNK:
            del self.tail[: len(self.tail) - tail]
        return bool(data)

    def drain(self) -> None:
        """Read what is still in the pipe, and close it. Its writers are dead; where they may not be, it is read a
        bounded number of times and never waited for."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(64):
                if not self.take():
                    break
        os.close(self.pipe)

    def kept(self) -> dict[str, Any]:
        tail = self.tail[max(0, len(self.tail) - self.limits[1]) :]
        cut = self.total - len(self.head) - len(tail)
        return {"head": base64.b64encode(self.head).decode(), "tail": base64.b64encode(tail).decode(), "cut": cut}
