"""The driver's handle of an actor: its pending calls and the state of its process."""

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

from mappa_core.engine import EngineLost, Process
from mappa_engine.cluster.errors import ActorLost, ActorTimeout, NodeLost

log = structlog.get_logger()

WATCH_GROUP = "watch"
"""Ray's concurrency group for health checks: it answers while the actor is busy."""

MAX_STDERR_LINES = 20
"""Lines of a dead process's standard error that an error message quotes."""


class Actor:
    """One actor process. `failure` is why it cannot be used any more, None while it is healthy."""

    def __init__(self, name: str, handle: Any, logs: Path | None, *, node: str | None = None) -> None:
        self.name = name
        self.node = node
        """Address of the node that it is bound to; None where it may be anywhere."""
        self.handle = handle
        self.process: Process | None = None
        self.failure: EngineLost | None = None
        self.stopping = False
        self._logs = logs
        self._pending: set[ActorCall] = set()
        self._exit_future = self._call_in_watch_group("wait_for_exit")
        self._exit_future.add_done_callback(self._on_exit)
        self._heartbeat: Future[Any] | None = None
        self._heartbeat_asked_at = 0.0
        self._missed = 0

    @property
    def exited(self) -> bool:
        """Whether the process has exited. On other machines this is what Ray reports, which kills a stopped process
        seconds later."""
        if self.process is None or self._logs is None:
            return self._exit_future.done()
        return self._exit_future.done() and not psutil.pid_exists(self.process.pid)

    def call(self, method: str, *args: Any, **kwargs: Any) -> ActorCall:
        """Call a method of the actor's object; `RayActors.wait_for` waits for its result."""
        return self._track_call(method, self.handle.invoke.remote(self._context(), method, *args, **kwargs))

    def build(self, *args: Any, **kwargs: Any) -> ActorCall:
        """Start to construct the actor's object."""
        return self._track_call("__init__", self.handle.build.remote(self._context(), *args, **kwargs))

    def identify(self, role: str, libraries: Sequence[str]) -> ActorCall:
        """Ask the actor for its process id, host and library versions."""
        return self._track_call("process", self.handle.process.remote(role, libraries))

    def check_heartbeat(self, max_missed: int) -> None:
        """Send a heartbeat request; the actor fails as late once `max_missed` further checks found it unanswered.

        Checks are counted, not seconds: a driver that was suspended itself must not treat its actors as hung. A process
        that has not answered yet may be waiting for its packages: its start has a deadline of its own.
        """
        if self.process is None:
            return
        if self._heartbeat is None or self._heartbeat.done():
            self._missed = 0
            self._heartbeat_asked_at = time.monotonic()
            self._heartbeat = self._call_in_watch_group("heartbeat")
            return
        self._missed += 1
        if self._missed >= max_missed:
            silence = time.monotonic() - self._heartbeat_asked_at
            self._fail(ActorTimeout(f"{self} gave no sign of life for {silence:.0f} s: it hangs", actor=self.name))

    def lose_node(self) -> None:
        """Fail: its node is gone. Ray would wait for the node, to start the process there."""
        self._fail(NodeLost(f"{self} is lost: its node {self.node} is gone", actor=self.name))

    def kill(self) -> None:
        """Kill the process without waiting for its exit."""
        import ray

        ray.kill(self.handle, no_restart=True)
        if self._logs is not None and self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)

    def __str__(self) -> str:
        if self.process is None:
            return f"the actor {self.name}"
        return f"the actor {self.name} (process {self.process.pid} on {self.process.host})"

    def _track_call(self, method: str, ref: Any) -> ActorCall:
        call = ActorCall(self, method)
        self._pending.add(call)
        if self.failure is not None:
            call.fail(self.failure)
        ref.future().add_done_callback(call.complete)
        return call

    def _context(self) -> dict[str, Any]:
        """Context fields of log lines, in this process and in the actor's."""
        return {**structlog.contextvars.get_contextvars(), "actor": self.name}

    def drop_call(self, call: ActorCall) -> None:
        """Remove a call that has ended from the pending ones."""
        self._pending.discard(call)

    def _call_in_watch_group(self, method: str) -> Future[Any]:
        """Call a method in the threads that are reserved for health checks."""
        called = getattr(self.handle, method).options(concurrency_group=WATCH_GROUP).remote()
        future: Future[Any] = called.future()
        return future

    def _on_exit(self, exit_future: Future[Any]) -> None:
        error = exit_future.exception()
        assert error is not None  # `wait_for_exit` never returns
        self._fail(self.lost_error("died", error))

    def lost_error(self, how: str, error: BaseException) -> ActorLost:
        """Build the error that says how this actor was lost, with Ray's explanation."""
        return ActorLost(f"{self} {how}: {death_reason(error)}{self._stderr_tail()}", actor=self.name)

    def _fail(self, failure: EngineLost) -> None:
        # A hung actor that is then killed was late, not lost: the first reason is the one that explains.
        if self.failure is None:
            self.failure = failure
            if not self.stopping:
                log.warning("an actor is of no use any more", actor=self.name, reason=str(failure))
        for call in list(self._pending):
            call.fail(self.failure)

    def _stderr_tail(self) -> str:
        """Return the last lines of the process's standard error, empty where it ran on another machine."""
        if self._logs is None or self.process is None:
            return ""
        lines = [
            line
            for path in self._logs.glob(f"worker-*-{self.process.pid}.err")
            for line in path.read_text(errors="replace").splitlines()
            if not line.startswith((":job_id:", ":actor_name:"))
        ]
        return "\n".join(["\nIts last words:", *lines[-MAX_STDERR_LINES:]]) if lines else ""


class ActorCall:
    """A pending method call of an actor."""

    def __init__(self, actor: Actor, method: str) -> None:
        self.actor = actor
        self.method = method
        self.future: Future[Any] = Future()

    def complete(self, done: Future[Any]) -> None:
        """Set the future from Ray's result or error."""
        self.actor.drop_call(self)
        error = done.exception()
        with suppress(InvalidStateError):
            if error is None:
                self.future.set_result(done.result())
            else:
                self.future.set_exception(original_error(error, self))

    def fail(self, failure: EngineLost) -> None:
        """Fail the call: the actor cannot be used any more."""
        self.actor.drop_call(self)
        with suppress(InvalidStateError):
            self.future.set_exception(type(failure)(str(failure), actor=failure.actor))


def original_error(error: BaseException, call: ActorCall) -> BaseException:
    """Return what the actor's own code raised, or ActorLost where Ray got no answer from it."""
    from ray.exceptions import RayError, RayTaskError

    if isinstance(error, RayTaskError):
        own: BaseException = error.cause
        return own
    if isinstance(error, RayError):
        failure = call.actor.failure or call.actor.lost_error(f"gave no answer to {call.method}", error)
        return type(failure)(str(failure), actor=failure.actor)
    return error


def death_reason(error: BaseException) -> str:
    """Extract the sentence that gives the cause of death from Ray's long message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith("The actor is dead because")), lines[0] if lines else "")
    sentence, _, detail = told.partition(" Worker exit type: ")
    detail = detail.partition("Worker exit detail: ")[2].partition(" Some common causes")[0]
    return " ".join(part for part in (sentence, detail) if part) or f"Ray gives no reason ({type(error).__name__})"
