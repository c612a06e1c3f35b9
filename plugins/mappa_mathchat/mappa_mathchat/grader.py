r"""Rule-based grading: compares the last boxed expression of a text with the known answer.

Plain answers are compared in this process (`equality`). A worker process (`algebra`) compares what needs algebra, with
a CPU and memory limit for each comparison; an expression that exceeds a limit counts as wrong.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import structlog

from mappa_core import ToolError
from mappa_mathchat.equality import answers_equal
from mappa_mathchat.extract_answer import extract_final_answer

MAX_COMPARISON_SECONDS = 5.0
"""CPU limit of one comparison."""
MAX_MEMORY_BYTES = 1 << 30
"""Address space of the worker and of each comparison."""

_PROGRAM = Path(__file__).with_name("algebra.py")
_CLOSED = "this grader is closed"
_KEPT_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "TMPDIR")


class AlgebraWorker:
    """The algebra process: started at the first comparison, restarted when lost. A lock serialises its threads."""

    def __init__(self, seconds: float = MAX_COMPARISON_SECONDS) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._log = structlog.get_logger()

    def equal(self, answer: str, reference: str) -> bool:
        """Whether two LaTeX expressions are equal; False where a limit was reached.

        Raises:
            ToolError: the process does not start, was lost twice, or this worker is closed.
        """
        with self._lock:
            reply = self._exchange(answer, reference) or self._exchange(answer, reference)
        if reply is None:
            raise ToolError("the process that compares answers was lost twice; is the machine out of memory?")
        if reply.startswith("undecided"):
            self._log.info("grading.undecided", answer=answer, reference=reference, reason=reply)
        return reply == "equal"

    def _exchange(self, answer: str, reference: str) -> str | None:
        """Send one pair and return the reply; None where the process was lost."""
        process = self._ensure_process()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps([answer, reference]) + "\n")
            process.stdin.flush()
            reply = process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if reply.endswith("\n"):
            return reply.strip()
        self._stop()
        return None

    def _ensure_process(self) -> subprocess.Popen[str]:
        if self._closed:
            raise ToolError(_CLOSED)
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM), str(self._seconds), str(MAX_MEMORY_BYTES)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ},
            )
            assert self._process.stdout is not None
            if self._process.stdout.readline() != "ready\n":
                code = self._process.wait()
                self._stop()
                why = f"the process that compares answers did not start (exit code {code}; see above)"
                raise ToolError(_CLOSED if self._closed else why)
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def close(self) -> None:
        """End the process. A comparison under way ends with a ToolError."""
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._stop()


class _NeedsAlgebra(Exception):
    """Raised by a comparison in the event loop that would have to wait for algebra."""


def _refuse_algebra(_answer: str, _reference: str) -> bool:
    raise _NeedsAlgebra


class Grader:
    """Grades concurrently without blocking the event loop."""

    def __init__(self, seconds: float = MAX_COMPARISON_SECONDS) -> None:
        self._worker = AlgebraWorker(seconds)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grader")

    async def is_correct(self, text: str, reference: str) -> bool:
        r"""Whether the last `\boxed{}` of `text` outside think text equals `reference`; False without one."""
        answer = extract_final_answer(text)
        return answer is not None and await self.are_equal(answer, reference)

    async def are_equal(self, answer: str, reference: str) -> bool:
        """Whether two extracted answers are equal by the same rules."""
        try:
            return answers_equal(answer, reference, _refuse_algebra)
        except _NeedsAlgebra:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._thread, answers_equal, answer, reference, self._worker.equal)

    async def close(self) -> None:
        """End the worker process; pending comparisons fail."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._worker.close)


@cache
def _shared_worker() -> AlgebraWorker:
    worker = AlgebraWorker()
    atexit.register(worker.close)
    return worker


def is_correct(text: str, reference: str) -> bool:
    r"""Whether the last `\boxed{}` of `text` outside think text equals `reference`; False without one.

    Blocks for at most a few seconds (the worker's limits) where algebra is needed. In an event loop use Grader.
    """
    answer = extract_final_answer(text)
    return answer is not None and answers_equal(answer, reference, _shared_worker().equal)
