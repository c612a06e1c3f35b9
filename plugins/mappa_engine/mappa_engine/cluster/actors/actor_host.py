"""Ray actor that wraps every actor: constructs the object, calls its methods, and answers heartbeats."""

from __future__ import annotations

import pickle
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from structlog.contextvars import bound_contextvars

from mappa_core.engine import Process
from mappa_engine.process_info import process_info


class ActorHost:
    """Runs in a worker process of Ray and holds one object of the requested class.

    The object is constructed and called in one thread (several where it was started with more), which is not the main
    thread. `heartbeat` and `wait_for_exit` have threads of their own, to distinguish a busy object from a hung process.
    """

    def process(self, role: str, libraries: Sequence[str]) -> Process:
        """Describe this process, before the object is built."""
        return process_info(role, *libraries)

    def build(self, context: Mapping[str, Any], actor: type, *args: Any, **kwargs: Any) -> None:
        """Construct the object. Its log lines carry the fields of `context`, those of the driver's call."""
        try:
            with bound_contextvars(**context):
                self._actor = actor(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  any error goes to the driver
            raise picklable(error) from None

    def invoke(self, context: Mapping[str, Any], method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the object, with `context` as in `build`. Ray replaces references among the arguments by
        their values."""
        try:
            with bound_contextvars(**context):
                return getattr(self._actor, method)(*args, **kwargs)
        except Exception as error:  # noqa: BLE001  any error goes to the driver
            raise picklable(error) from None

    def heartbeat(self) -> None:
        """Return at once, as a sign of life."""

    def wait_for_exit(self) -> None:
        """Never return: Ray fails this call when the process exits."""
        threading.Event().wait()


def picklable(error: Exception) -> Exception:
    """Return `error` with its traceback as a note, as tracebacks are not pickled; or a RuntimeError with its text where
    the error itself cannot be pickled."""
    traceback_note = f"Raised in an actor:\n{traceback.format_exc().rstrip()}"
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001  pickling runs code of third-party classes
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(traceback_note)
    return error
