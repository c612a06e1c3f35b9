"""What tests of the cage need: a child process to lock in, as the locks are for ever."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

STRANGER = 54321
"""A user that nothing else runs as."""


@pytest.fixture
def in_child() -> Callable[[Callable[[], Any]], Any]:
    """What a function returns in a fork of this process. Its exceptions are raised here, with their traceback as a
    note; a signal that ended it is a ChildProcessError. What is returned must be shorter than a pipe is long."""

    def in_child(function: Callable[[], Any]) -> Any:
        readable, writable = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            try:
                outcome: tuple[Any, BaseException | None, str] = (function(), None, "")
            except BaseException as error:  # noqa: BLE001 - carried to the parent
                outcome = (None, error, traceback.format_exc())
            os.write(writable, pickle.dumps(outcome))
            os._exit(0)
        os.close(writable)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # whom it left behind would hold the pipe open
        with open(readable, "rb") as pipe:
            answer = pipe.read()
        if code:
            raise ChildProcessError(code, f"ended with {code}")
        value, error, trace = pickle.loads(answer)
        if error is not None:
            error.add_note(trace)
            raise error
        return value

    return in_child


@pytest.fixture
def refused() -> Callable[..., int]:
    """The errno of the OSError that a call raises; 0 if it succeeds."""

    def refused(function: Callable[..., Any], *arguments: Any, **options: Any) -> int:
        try:
            function(*arguments, **options)
        except OSError as error:
            assert error.errno is not None
            return error.errno
        return 0

    return refused


@pytest.fixture(params=["as it is", "as a stranger"])
def uid(request: pytest.FixtureRequest) -> int | None:
    """None, or the user to become."""
    if request.param == "as it is":
        return None
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    return STRANGER


@pytest.fixture
def stranger() -> int:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    return STRANGER
