"""The driver's side of an actor: calls under way, and what became of the process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import structlog

from mappa_core.errors import ActorLate, ActorLost, EngineLost
from mappa_core.records import Process

log = structlog.get_logger()

WATCH = "watch"
"""The concurrency group that answers while an actor works."""

LAST_LINES = 20
"""Lines of a dead process's standard error that a message quotes."""


class Actor:
    """One process of the fleet. `fault` says why it is no longer of use, None as long as it is."""

    def __init__(self, name: str, handle: Any, logs: Path | None) -> None:
        self.name = name
        self.handle = handle
        self.process: Process | None = None
        self.fault: EngineLost | None = None
        self.ended = False
        self._logs = logs
        self._pending: set[Call] = set()
        self._fate = self._watched("fate")
        self._fate.add_done_callback(self._died)
        self._beat: Future[Any] | None = None
        self._asked = 0.0
        self._owed = 0

    @property
    def gone(self) -> bool:
        """Whether the process is no more. On machines of others Ray is believed, which kills a stopped one seconds
        later."""
        if self.process is None or self._logs is None:
            return self._fate.done()
        return self._fate.done() and not psutil.pid_exists(self.process.pid)

    def call(self, method: str, *args: Any, **kwargs: Any) -> Call:
        """Start a method of the actor's object; `Fleet.ask` waits for what it gives."""
        return self._started(method, self.handle.invoke.remote(self._context(), method, *args, **kwargs))

    def build(self, *args: Any, **kwargs: Any) -> Call:
        """Start to make the actor's object."""
        return self._started("__init__", self.handle.build.remote(self._context(), *args, **kwargs))

    def introduce(self, role: str, libraries: Sequence[str]) -> Call:
        """Ask which process this is."""
        return self._started("process", self.handle.process.remote(role, libraries))

    def check(self, patience: int) -> None:
        """Ask for a sign of life; one that is still owed at the `patience`-th next check makes the actor late.

        Checks are counted, not seconds: a driver that was suspended itself must not take its actors for hung.
        """
        if self._beat is None or self._beat.done():
            self._owed = 0
            self._asked = time.monotonic()
            self._beat = self._watched("beat")
            return
        self._owed += 1
        if self._owed >= patience:
            silence = time.monotonic() - self._asked
            self._fail(ActorLate(f"{self} gave no sign of life for {silence:.0f} s: it hangs", actor=self.name))

    def kill(self) -> None:
        """Have the process killed, and do not wait for it."""
        import ray

        ray.kill(self.handle, no_restart=True)
        if self._logs is not None and self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)

    def __str__(self) -> str:
        if self.process is None:
            return f"the actor {self.name}"
        return f"the actor {self.name} (process {self.process.pid} on {self.process.host})"

    def _started(self, method: str, ref: Any) -> Call:
        call = Call(self, method)
        self._pending.add(call)
        if self.fault is not None:
            call.fail(self.fault)
        ref.future().add_done_callback(call.settle)
        return call

    def _context(self) -> dict[str, Any]:
        """What lines of the log say of where they come from, in this process and in the actor's."""
        return {**structlog.contextvars.get_contextvars(), "actor": self.name}

    def forget(self, call: Call) -> None:
        """A call that has ended."""
        self._pending.discard(call)

    def _watched(self, method: str) -> Future[Any]:
        """Call a method in the threads that are kept for the watch."""
        called = getattr(self.handle, method).options(concurrency_group=WATCH).remote()
        future: Future[Any] = called.future()
        return future

    def _died(self, fate: Future[Any]) -> None:
        error = fate.exception()
        assert error is not None  # `fate` never returns
        self._fail(self.lost("died", error))

    def lost(self, how: str, error: BaseException) -> ActorLost:
        """The error that says how this actor was lost, and what Ray says of it."""
        return ActorLost(f"{self} {how}: {reason(error)}{self._last_words()}", actor=self.name)

    def _fail(self, fault: EngineLost) -> None:
        # A hung actor that is then killed was late, not lost: the first reason is the one that explains.
        if self.fault is None:
            self.fault = fault
            if not self.ended:
                log.warning("an actor is of no use any more", actor=self.name, reason=str(fault))
        for call in list(self._pending):
            call.fail(self.fault)

    def _last_words(self) -> str:
        """The end of what the process wrote to its standard error, where that is on this machine."""
        if self._logs is None or self.process is None:
            return ""
        lines = [
            line
            for path in self._logs.glob(f"worker-*-{self.process.pid}.err")
            for line in path.read_text(errors="replace").splitlines()
            if not line.startswith((":job_id:", ":actor_name:"))
        ]
        return "\n".join(["\nIts last words:", *lines[-LAST_LINES:]]) if lines else ""


class Call:
    """A method of an actor that was started."""

    def __init__(self, actor: Actor, method: str) -> None:
        self.actor = actor
        self.method = method
        self.future: Future[Any] = Future()

    def settle(self, done: Future[Any]) -> None:
        """Take over what Ray says of the call."""
        self.actor.forget(self)
        error = done.exception()
        with suppress(InvalidStateError):
            if error is None:
                self.future.set_result(done.result())
            else:
                self.future.set_exception(own_error(error, self))

    def fail(self, fault: EngineLost) -> None:
        """End the wait: the actor is of no use any more."""
        self.actor.forget(self)
        with suppress(InvalidStateError):
            self.future.set_exception(type(fault)(str(fault), actor=fault.actor))


def own_error(error: BaseException, call: Call) -> BaseException:
    """What the actor's program raised; or ActorLost where Ray has no answer of it."""
    from ray.exceptions import RayError, RayTaskError

    if isinstance(error, RayTaskError):
        own: BaseException = error.cause
        return own
    if isinstance(error, RayError):
        fault = call.actor.fault or call.actor.lost(f"gave no answer to {call.method}", error)
        return type(fault)(str(fault), actor=fault.actor)
    return error


def reason(error: BaseException) -> str:
    """The one sentence of Ray's long messages that says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith("The actor is dead because")), lines[0] if lines else "")
    sentence, _, detail = told.partition(" Worker exit type: ")
    detail = detail.partition("Worker exit detail: ")[2].partition(" Some common causes")[0]
    return " ".join(part for part in (sentence, detail) if part) or f"Ray gives no reason ({type(error).__name__})"
