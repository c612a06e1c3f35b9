"""The library in a process of its own. Some of its data sets draw by Python's hashes, which differ from process to
process without a fixed seed; and a grader may evaluate what a model wrote, compute on it for hours, fill the memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mappa_core import ConfigError, ToolError

_PROGRAM = Path(__file__).with_name("library_process.py")
_KEPT_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "TMPDIR")
# One thread, since the process forks for every answer.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class Library:
    """Answers requests one after another, in a process that starts with the first and ends with this object."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def ask(self, do: str, **request: Any) -> Mapping[str, Any]:
        """Return the reply to a request.

        Raises:
            ConfigError: the library has no such data set, or it does not take these parameters.
            ToolError: the process does not start or is lost.
        """
        with self._lock:
            reply = json.loads(self._exchange(json.dumps({"do": do, **request})))
        if "wrong" in reply:
            raise ConfigError(reply["wrong"])
        return dict(reply)

    def _exchange(self, request: str) -> str:
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(request + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):
            self._process = None
            raise ToolError(f"the process of reasoning-gym ended (exit code {process.wait()}; see above)")
        return line

    def _start(self) -> subprocess.Popen[str]:
        kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
        process = subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**kept, **_ENVIRONMENT},
            start_new_session=True,
        )
        self._process = process
        weakref.finalize(self, _end, process)
        return process


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@cache
def shared_library() -> Library:
    """The one that all task sources of this process share: it takes seconds to import."""
    return Library()
