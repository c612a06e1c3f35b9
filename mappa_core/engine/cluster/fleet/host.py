"""The actor around every actor: builds what was asked for, calls its methods, and shows that the process lives."""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from structlog.contextvars import bound_contextvars

from mappa_core.engine.process import this_process
from mappa_core.records import Process


class Host:
    """What Ray starts in a worker process; it holds one object of the class that was asked for.

    The object is built and called in the same thread (or in several, where it was started so), which is not the main
    one. `beat` and `fate` have threads of their own, so that a busy object is told from a process that hangs.
    """

    def process(self, role: str, libraries: Sequence[str]) -> Process:
        """The process that the object is going to be in."""
        return this_process(role, *libraries)

    def build(self, context: Mapping[str, Any], actor: type, *args: Any, **kwargs: Any) -> None:
        """Make the object. Lines that it logs bear the fields of `context`, those of the driver's call."""
        try:
            with bound_contextvars(**context):
                self._actor = actor(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever it is goes to the driver
            raise portable(error) from None

    def invoke(self, context: Mapping[str, Any], method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the object, with `context` as in `build`. Ray puts values in the place of references among
        the arguments."""
        try:
            with bound_contextvars(**context):
                return getattr(self._actor, method)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever it is goes to the driver
            raise portable(error) from None

    def beat(self) -> None:
        """Answer."""

    def fate(self) -> None:
        """Never answer: what waits for it is told when this process is gone."""
        threading.Event().wait()


def portable(error: Exception) -> Exception:
    """`error` with its traceback as a note, as tracebacks do not travel; a RuntimeError that tells of it where the
    error itself does not travel either."""
    told = f"Raised in an actor:\n{traceback.format_exc().rstrip()}"
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  code of foreign classes runs here
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(told)
    return error
