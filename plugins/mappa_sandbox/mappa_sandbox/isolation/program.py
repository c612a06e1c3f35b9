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
_OWN_PACKAGES = ("mappa_core", "mappa_sandbox", "lazy_loader")
_own_modules: list[str] = []


def run_program(source: str, arguments: Sequence[str] = ()) -> int:
    """Run `source` as `__main__`, finalize as an interpreter does, and return the exit code. The caller only has to
    call `os._exit`: tearing down the interpreter takes longer than most programs."""
    sys.argv = [FILENAME, *arguments]
    sys.path.insert(0, "")
    reset_inherited_state()
    return finalize(run_script(source))


def record_own_modules() -> None:
    """Record the fork server's own modules, before it forks. Searching for them in a fork would touch the names of all
    modules, and so copy their memory pages."""
    _own_modules[:] = [name for name in sys.modules if name.partition(".")[0] in _OWN_PACKAGES]


def reset_inherited_state() -> None:
    """Reset the state that a fork shares with its siblings: random generators seeded before the fork, the temporary
    folder chosen by `tempfile`, and the modules of the fork server."""
    for name in _own_modules:
        sys.modules.pop(name, None)
    for name, seed in (("random", "seed"), ("numpy.random", "seed"), ("torch", "seed")):
        if name in sys.modules:
            getattr(sys.modules[name], seed)()
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]


def run_script(source: str) -> int:
    """Run the script only; returns the exit code. Tracebacks show its lines and no frames of this file."""
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
        return report_exception(error.with_traceback(None))
    try:
        exec(code, module.__dict__)
    except BaseException as error:  # noqa: BLE001 - reported as an interpreter does
        assert error.__traceback__ is not None  # its first entry is this frame
        return report_exception(error.with_traceback(error.__traceback__.tb_next))
    return 0


def report_exception(error: BaseException) -> int:
    """Handle an uncaught exception as an interpreter does; returns the exit code."""
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        sys.stderr.write(f"{error.code}\n")
        return 1
    sys.excepthook(type(error), error, error.__traceback__)
    if isinstance(error, KeyboardInterrupt):
        # An interpreter dies of the signal, so that the process that waits for it sees an interruption and no error.
        finalize(0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return 1


def show_exception(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    # The interpreter's own hook looks for the lines of the script on disk only.
    flush(sys.stdout)
    traceback.print_exception(kind, error, trace)


def show_thread_exception(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not SystemExit:
        name = args.thread.name if args.thread is not None else threading.get_ident()
        sys.stderr.write(f"Exception in thread {name}:\n")
        traceback.print_exception(args.exc_type, args.exc_value, args.exc_traceback)


def finalize(status: int) -> int:
    """Wait for threads, run exit functions, finalize the objects of the script, flush; returns the exit code."""
    # In the order of the interpreter's own Py_FinalizeEx.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.modules.pop("__main__", None)
    gc.collect()
    for thing in gc.get_objects():
        if isinstance(thing, io.TextIOWrapper | io.BufferedWriter | io.BufferedRandom):
            flush(thing)
    flushed = [flush(stream) for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)]
    return status if all(flushed) else 120  # the interpreter's exit code for output that could not be written


def flush(stream: Any) -> bool:
    """Flush `stream`, or what the script put in its place; returns False if that failed."""
    if stream is None or getattr(stream, "closed", False):
        return True
    try:
        stream.flush()
    except Exception:  # noqa: BLE001 - the script's own code
        return False
    return True
