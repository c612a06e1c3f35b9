"""Launchers of external agents: a function in its own thread, or a command in its own process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import shutil
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from mappa_core import ConfigError, Task, WorkflowError
from mappa_core.codec import to_json
from mappa_core.redaction import redact
from mappa_core.sandbox import OwnedFolder, cut_middle

MAX_STDERR_CHARACTERS = 2000
"""Maximum characters of a command's standard error in the record of its failure."""
LOOPBACK = "127.0.0.1"
TURN_S = 2.0
"""Seconds after which an event loop that did not take its turn counts as blocked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Input of an agent. `task` does not contain the truth. A client with `base_url` (of Anthropic: `root_url`, to
    which it appends the path itself) and `api_key` reaches the policies; `model` names the agent if there are several.
    `seed` is the same in every replay of the trajectory: an agent that uses random numbers should use this seed."""

    task: Task
    base_url: str
    root_url: str
    api_key: str
    seed: int


AgentLauncher = Callable[[Assignment], Awaitable[str | None]]
"""Runs an agent until it ends; returns its answer, None if it gives none."""


def import_function(name: str, where: str) -> Callable[..., Any]:
    """Import `module:function`. Raises ConfigError if that fails; `where` is the config key that names it."""
    # As for a script: the user's modules are in the working directory.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    if ":" not in name:
        raise ConfigError(f"{where}: {name!r} is not of the form module:function")
    try:
        function = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{where}: {name!r} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise ConfigError(f"{where}: {name!r} is no function")
    return function  # type: ignore[no-any-return]


class AgentLoop:
    """The event loop that all asynchronous agents share, in a thread of its own, from the first of them to `close`: a
    client that an agent keeps between its tasks is bound to the loop in which it was first used."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run an agent to its end. If the caller is cancelled, so is the agent."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            # A daemon, so that the end of this process does not wait for an agent that blocks.
            threading.Thread(target=self._loop.run_forever, name="agents", daemon=True).start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    async def is_blocked(self) -> bool:
        """Whether an agent keeps the loop from going on."""
        if self._loop is None:
            return False
        turn = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self._loop))
        await asyncio.wait((turn,), timeout=TURN_S)
        return not turn.done()

    async def close(self) -> None:
        """Stop the loop. What is left of abandoned agents is cancelled, unless one of them blocks the loop."""
        if self._loop is None:
            return
        loop, self._loop = self._loop, None
        ending = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_end_tasks(), loop))
        await asyncio.wait((ending,), timeout=TURN_S)
        # It is not closed: clients that are forgotten later still say goodbye to it.
        loop.call_soon_threadsafe(loop.stop)


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def function_launcher(function: Callable[[Assignment], Any], loop: AgentLoop) -> AgentLauncher:
    """Call the function in a thread of its own, as an agent may block, and with actions in waves all agents must be
    able to send requests at once. What it awaits runs in `loop`. A thread cannot be killed: an abandoned one is refused
    every further request."""

    async def start(assignment: Assignment) -> str | None:
        result = await _run_in_thread(lambda: _call_agent(function, assignment), f"agent of {assignment.task.id}")
        return _check_answer(await loop.run(_await_result(result)) if inspect.isawaitable(result) else result)

    return start


def command_launcher(command: Sequence[str]) -> AgentLauncher:
    """Run every trajectory in its own process, which is killed with its whole group when it ends or is abandoned."""
    if shutil.which(command[0]) is None:
        raise ConfigError(f"workflow.options.command: there is no program {command[0]!r}")

    async def start(assignment: Assignment) -> str | None:
        with closing(OwnedFolder("mappa-agent-")) as folder:
            task = folder.path / "task.json"
            task.write_bytes(to_json({"task": assignment.task, "seed": assignment.seed}))
            code, printed, errors = await _run_command(command, assignment, task)
        if code != 0:
            tail = cut_middle(redact(errors.strip()), MAX_STDERR_CHARACTERS)
            raise WorkflowError(f"the agent's command ended with exit code {code}: {tail}")
        return redact(printed.strip()) or None

    return start


async def _run_command(command: Sequence[str], assignment: Assignment, task: Path) -> tuple[int, str, str]:
    """Run a command to its end and kill its group; return its exit code and what it printed, on both outputs. These
    are files: what it leaves behind would hold pipes open after its end."""
    read, printed, errors = (task.with_name(name) for name in ("stdin", "stdout", "stderr"))
    read.write_bytes(assignment.task.prompt.encode(errors="replace"))
    with read.open("rb") as stdin, printed.open("wb") as stdout, errors.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=_environment(assignment, task),
            start_new_session=True,
        )
    try:
        await process.wait()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        code = await process.wait()
    return code, printed.read_text("utf-8", errors="replace"), errors.read_text("utf-8", errors="replace")


def _call_agent(function: Callable[[Assignment], Any], assignment: Assignment) -> Any:
    with _exits_as_failures():
        return function(assignment)


async def _await_result(result: Awaitable[Any]) -> Any:
    with _exits_as_failures():
        return await result


@contextmanager
def _exits_as_failures() -> Iterator[None]:
    try:
        yield
    except SystemExit as error:
        raise WorkflowError(f"the agent ended itself: SystemExit({error.code!r})") from error


async def _run_in_thread(work: Callable[[], Any], name: str) -> Any:
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the boundary of agents: passed on to the waiting caller
            done.set_exception(error)

    # A daemon, so that the end of this process does not wait for an abandoned agent.
    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(done)


def _check_answer(answer: Any) -> str | None:
    if answer is None or isinstance(answer, str):
        return answer and redact(answer)
    raise TypeError(f"the agent returned {type(answer).__name__}, not text or None")


def _environment(assignment: Assignment, task: Path) -> Mapping[str, str]:
    """The user's environment, with the address of the gateway, which bypasses any proxy."""
    direct = ",".join(filter(None, (os.environ.get("NO_PROXY"), LOOPBACK)))
    return {
        **os.environ,
        "OPENAI_BASE_URL": assignment.base_url,
        "OPENAI_API_KEY": assignment.api_key,
        "ANTHROPIC_BASE_URL": assignment.root_url,
        "ANTHROPIC_AUTH_TOKEN": assignment.api_key,
        # A key of the user's would be preferred to the token.
        "ANTHROPIC_API_KEY": assignment.api_key,
        "MAPPA_TASK": str(task),
        "NO_PROXY": direct,
        "no_proxy": direct,
    }
