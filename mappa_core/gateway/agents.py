"""The programs of agents: a function in a thread of its own, or a command in a process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from mappa_core.errors import ConfigError, WorkflowError
from mappa_core.records import Task
from mappa_core.store.codec import to_json
from mappa_core.tools.cut import cut_middle

LAST_WORDS = 2000
"""Characters of a command's standard error that the record of its failure holds."""
LOCAL = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What an agent is given. `task` holds no truth. A client of `base_url` and `api_key` reaches the policies; `model`
    names the agent where there are several. `seed` is the same in every replay of the trajectory: an agent that draws
    should draw by it."""

    task: Task
    base_url: str
    api_key: str
    seed: int


Start = Callable[[Assignment], Awaitable[str | None]]
"""Runs an agent to its end: its answer, None where it gives none."""


def named(name: str, where: str) -> Callable[..., Any]:
    """The function `module:function`. Raises ConfigError where it cannot be had; `where` is the key that names it."""
    # As a script would see it: programs of the user lie in the working directory.
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


def by_function(function: Callable[[Assignment], Any]) -> Start:
    """Every call has a thread of its own, as an agent may block, and where actions go in waves all agents must be able
    to ask at once. A thread cannot be ended: one that is given up is refused every further request."""

    async def start(assignment: Assignment) -> str | None:
        return _text(await _in_thread(lambda: _called(function, assignment), f"agent of {assignment.task.id}"))

    return start


def by_command(command: Sequence[str]) -> Start:
    """Every trajectory has a process of its own, which is killed with all of its group when it ends or is given up."""
    if shutil.which(command[0]) is None:
        raise ConfigError(f"workflow.options.command: there is no program {command[0]!r}")

    async def start(assignment: Assignment) -> str | None:
        with tempfile.TemporaryDirectory(prefix="mappa-agent-") as folder:
            task = Path(folder) / "task.json"
            task.write_bytes(to_json({"task": assignment.task, "seed": assignment.seed}))
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=_environment(assignment, task),
                start_new_session=True,
            )
            try:
                printed, errors = await process.communicate(assignment.task.prompt.encode(errors="replace"))
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode != 0:
            said = cut_middle(errors.decode(errors="replace").strip(), LAST_WORDS)
            raise WorkflowError(f"the agent's command ended with exit code {process.returncode}: {said}")
        return printed.decode(errors="replace").strip() or None

    return start


def _called(function: Callable[[Assignment], Any], assignment: Assignment) -> Any:
    try:
        result = function(assignment)
        return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result
    except SystemExit as error:
        raise WorkflowError(f"the agent ended itself: SystemExit({error.code!r})") from error


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


async def _in_thread(work: Callable[[], Any], name: str) -> Any:
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the boundary of agents: handed over to whoever waits
            done.set_exception(error)

    # The end of this process does not wait for an agent that was given up.
    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(done)


def _text(answer: Any) -> str | None:
    if answer is None or isinstance(answer, str):
        return answer
    raise TypeError(f"the agent returned {type(answer).__name__}, not text or None")


def _environment(assignment: Assignment, task: Path) -> Mapping[str, str]:
    """The user's own, with the way to the gateway: past any proxy."""
    direct = ",".join(filter(None, (os.environ.get("NO_PROXY"), LOCAL)))
    return {
        **os.environ,
        "OPENAI_BASE_URL": assignment.base_url,
        "OPENAI_API_KEY": assignment.api_key,
        "MAPPA_TASK": str(task),
        "NO_PROXY": direct,
        "no_proxy": direct,
    }
