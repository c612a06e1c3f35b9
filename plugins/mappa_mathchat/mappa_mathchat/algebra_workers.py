"""Worker processes that compare expressions by algebra (`algebra`), and the budget of CPU time that an answer has."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from queue import LifoQueue

import structlog

from mappa_core import ToolError
from mappa_mathchat.equality import answers_equal

MAX_ANSWER_SECONDS = 2.0
"""CPU time of all comparisons that one answer needs. Honest answers take hundredths."""
MAX_MEMORY_BYTES = 1 << 30
"""Address space of a worker and of each comparison."""
WORKERS = 4
"""Answers that are compared at once; a process is started when all others are busy."""
_KNOWN_ANSWERS = 1 << 14
"""Results that are kept: samples of one task give the same answers again and again."""

_PROGRAM = Path(__file__).with_name("algebra.py")
_CLOSED = "this grader is closed"
_KEPT_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "TMPDIR")

log = structlog.get_logger()


class AlgebraPool:
    """Compares answers of many threads, up to `WORKERS` at once, each within `seconds` of CPU time."""

    def __init__(self, seconds: float = MAX_ANSWER_SECONDS) -> None:
        self._seconds = seconds
        self._workers = [AlgebraWorker() for _ in range(WORKERS)]
        # Last in, first out: a process that was started is used again before another is started.
        self._idle: LifoQueue[AlgebraWorker] = LifoQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self.answers_equal = lru_cache(maxsize=_KNOWN_ANSWERS)(self._answers_equal)
        """Whether an answer equals a reference (`equality`), with results kept. Raises ToolError as the workers do."""

    def _answers_equal(self, answer: str, reference: str) -> bool:
        worker = self._idle.get()
        try:
            return answers_equal(answer, reference, AnswerBudget(worker, self._seconds).equal)
        finally:
            self._idle.put(worker)

    def close(self) -> None:
        """End the processes. Comparisons under way end with a ToolError."""
        for worker in self._workers:
            worker.close()


class AnswerBudget:
    """The comparisons of one answer, which share `seconds` of CPU time."""

    def __init__(self, worker: AlgebraWorker, seconds: float) -> None:
        self._worker = worker
        self._left = seconds

    def equal(self, answer: str, reference: str) -> bool:
        """Whether two LaTeX expressions are equal; False where the budget is spent. Raises ToolError."""
        if self._left > 0.0:
            reply, used = self._worker.compare(answer, reference, self._left)
            self._left -= used
            if not reply.startswith("undecided"):
                return reply == "equal"
            log.info("grading.undecided", answer=answer, reference=reference)
            self._left = 0.0
        return False


class AlgebraWorker:
    """One algebra process: started at the first comparison, restarted when lost. A lock serialises its threads."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def compare(self, answer: str, reference: str, seconds: float) -> tuple[str, float]:
        """Compare two LaTeX expressions within `seconds` of CPU time. Returns `equal`, `different` or `undecided`, and
        the CPU time that was used.

        Raises:
            ToolError: the process does not start, was lost twice, or this worker is closed.
        """
        request = json.dumps([answer, reference, seconds])
        with self._lock:
            reply = self._exchange(request) or self._exchange(request)
        if reply is None:
            raise ToolError("the process that compares answers was lost twice; is the machine out of memory?")
        decision, used = reply.split()
        return decision, float(used)

    def _exchange(self, request: str) -> str | None:
        """Send one request and return the reply; None where the process was lost."""
        process = self._ensure_process()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(request + "\n")
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
                [sys.executable, "-P", str(_PROGRAM), str(MAX_MEMORY_BYTES)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ},
                start_new_session=True,
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
            _kill(process)
            process.communicate()

    def close(self) -> None:
        """End the process. A comparison under way ends with a ToolError."""
        self._closed = True
        process = self._process
        if process is not None:
            _kill(process)
        with self._lock:
            self._stop()


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and the fork that compares: it would compute on, with the pipe of replies open."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
