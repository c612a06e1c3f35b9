"""Run one script in this process, once, as a plain interpreter would."""

from __future__ import annotations

import atexit
import builtins
import gc
import io
import linecache
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Sequence
from typing import Any

FILENAME = "<python>"
PACKAGE = __name__.partition(".")[0]
_own: list[str] = []


def run(source: str, arguments: Sequence[str] = ()) -> int:
    """Run `source` as `__main__` and do all that is done at an interpreter's end; the exit code. What is left to the
    caller is `os._exit`: taking the interpreter apart takes longer than most programs."""
    sys.argv = [FILENAME, *arguments]
    sys.path.insert(0, "")
    start_afresh()
    return finish(run_script(source))


def note_modules() -> None:
    """Remember which modules are the warden's own, before it forks. A fork that looked for them would touch the name of
    every module there is, and copy the pages that these lie on."""
    _own[:] = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]


def start_afresh() -> None:
    """Undo what a fork has in common with its siblings: random generators that were seeded before it, the folder that
    `tempfile` has settled on, and the modules of the warden."""
    for name in _own:
        sys.modules.pop(name, None)
    for name, seed in (("random", "seed"), ("numpy.random", "seed"), ("torch", "seed")):
        if name in sys.modules:
            getattr(sys.modules[name], seed)()
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]


def run_script(source: str) -> int:
    """The script alone. Tracebacks show its lines and none of this file's frames."""
    if not source.endswith("\n"):
        source += "\n"  # as when a file is read: without it some errors in the last line are marked elsewhere
    linecache.cache[FILENAME] = (len(source), None, list(io.StringIO(source, newline=None)), FILENAME)
    sys.excepthook = sys.__excepthook__ = show_exception
    threading.excepthook = threading.__excepthook__ = show_thread_exception
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    try:
        code = compile(source, FILENAME, "exec", dont_inherit=True)
    except BaseException as error:  # noqa: BLE001 - reported as an interpreter does
        return report(error.with_traceback(None))
    try:
        exec(code, module.__dict__)
    except BaseException as error:  # noqa: BLE001 - reported as an interpreter does
        assert error.__traceback__ is not None  # its first entry is this frame
        return report(error.with_traceback(error.__traceback__.tb_next))
    return 0


def report(error: BaseException) -> int:
    """What an interpreter does with an exception that nobody caught; the exit code."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return 1
    sys.excepthook(type(error), error, error.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        finish(0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 1


def show_exception(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    # The interpreter's own hook looks for the script's lines on the disk only.
    flush(sys.stdout)
    traceback.print_exception(kind, error, trace)


def show_thread_exception(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not SystemExit:
        name = args.thread.name if args.thread is not None else threading.get_ident()
        sys.stderr.write(f"Exception in thread {name}:\n")
        traceback.print_exception(args.exc_type, args.exc_value, args.exc_traceback)


def finish(status: int) -> int:
    """Wait for threads, run exit functions, finalise what the script made, flush."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.modules.pop("__main__", None)
    gc.collect()
    for thing in gc.get_objects():
        if isinstance(thing, io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            flush(thing)
    flushed = [flush(stream) for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)]
    return status if all(flushed) else 120


def flush(stream: Any) -> bool:
    """Whether `stream`, or whatever the script put in its place, has nothing left to write."""
    if stream is None or getattr(stream, "closed", False):
        return True
    try:
        stream.flush()
    except Exception:  # noqa: BLE001 - the script's own code
        return False
    return True
