"""The driver's connection to Ray: one that is started on this machine for the run, or one that runs already."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread, current_thread, main_thread
from typing import Any

import structlog

from mappa_core.engine.cluster.fleet.environment import ALWAYS, of_any_machine, of_this_machine
from mappa_core.engine.cluster.fleet.shipped import packages
from mappa_core.engine.cluster.fleet.waiting import settled
from mappa_core.errors import ConfigError, EngineLost

log = structlog.get_logger()

REPORT = 200
"""Characters of one of Ray's own messages that are worth a line."""

HEAD = "mappa_core.engine.cluster.fleet.head"

SOCKET_ROOM = 40
"""Longest path of Ray's folder: with the names of a session and a socket it must fit a Unix socket's 107 bytes."""

REACH_S = 10.0
"""Seconds that a machine may take to accept a connection."""

CLOSE_S = 60.0
"""Seconds that a Ray of our own may take to end before it is killed."""


@dataclass(slots=True, kw_only=True)
class Cluster:
    """A connection. `variables` go to every actor beside what it inherits; `logs` is where workers on this machine
    write, None where that is not known; `head` is the program that holds Ray, and `folder` what it keeps on disk, None
    where it is not ours."""

    variables: Mapping[str, str] = field(default_factory=dict)
    head: subprocess.Popen[str] | None = None
    folder: Path | None = None
    logs: Path | None = None
    before: Mapping[str, str | None] = field(default_factory=dict)

    async def close(self) -> None:
        """Disconnect, and end a Ray of our own."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        import ray

        ray.shutdown()
        if self.head is not None and self.folder is not None:
            end_head(self.head)
            # Where Ray broke, this process wrote to its logs to the last; a head that was killed tidied nothing up.
            shutil.rmtree(self.folder, ignore_errors=True)
        _set_environment(self.before)


async def connect(address: str | None, *, asked: str, deadline_s: float, **settings: Any) -> Cluster:
    """Connect to the Ray at `address`, or start one on this machine (None) with `settings` as the head takes them.
    `asked` is the setting that names the address."""
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        raise ConfigError("this process is connected to Ray already, and can be only once; call ray.shutdown() before")
    if address is None:
        return await _start(deadline_s, settings)
    return await _join(address, asked, deadline_s)


async def _join(address: str, asked: str, deadline_s: float) -> Cluster:
    """Connect to a Ray that runs already, and send it the packages that actors need."""
    said = f"{asked} is {address!r}"
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and "/" not in host and port.isdecimal()):
        raise ConfigError(f"{said}; it can be auto or HOST:PORT, as `ray start --head` prints it")
    cluster = Cluster(variables=of_any_machine(os.environ), before=_set_environment(ALWAYS))
    try:
        if address != "auto":
            # Ray itself would try for many minutes.
            async with asyncio.timeout(min(deadline_s, REACH_S)):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.close()
        await _init(address, {"py_modules": packages(), "env_vars": dict(cluster.variables)}, deadline_s)
    except TimeoutError:
        await cluster.close()
        raise ConfigError(f"{said}, where no Ray answers") from None
    except (OSError, RuntimeError, ValueError) as error:
        await cluster.close()
        raise ConfigError(f"{said}, where no Ray can be reached: {error}") from error
    return cluster


async def _start(deadline_s: float, settings: Mapping[str, Any]) -> Cluster:
    """Start a Ray on this machine, in an environment without secrets, and connect to it.

    It is held by a program of its own, which ends it when this process ends, however that happens. Only who has its
    token can connect, and the token is in a file that only this user can read.
    """
    folder = _folder()
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(_token(folder))}
    head = _spawn(auth)
    cluster = Cluster(head=head, folder=folder, before=_set_environment({**ALWAYS, **auth}))
    try:
        told = _ask(head, {"folder": str(folder), **settings})
        await asyncio.to_thread(importlib.import_module, "ray")  # takes as long as Ray takes to start
        await settled([told], deadline_s)
        there = json.loads(told.result() or '{"error": "the program that holds it ended"}')
        if "error" in there:
            raise EngineLost(f"Ray did not start on this machine: {there['error']}")
        cluster.logs = Path(there["logs"])
        await _init(there["address"], None, deadline_s)
    except BaseException as error:
        await cluster.close()
        if isinstance(error, TimeoutError):
            raise EngineLost(f"Ray did not start on this machine within {deadline_s:g} s") from None
        raise
    return cluster


def _spawn(auth: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", HEAD],
        env={**of_this_machine(os.environ), **auth},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # what it has to say is in its answer
        text=True,
        start_new_session=True,  # an interrupt at the terminal is for the run, which ends its actors in order
    )


def _ask(head: subprocess.Popen[str], settings: Mapping[str, Any]) -> Future[str]:
    """Tell the head its settings; the line that it answers with, empty where it ended."""
    assert head.stdin is not None and head.stdout is not None
    head.stdin.write(json.dumps(settings) + "\n")
    head.stdin.flush()
    answer: Future[str] = Future()
    output = head.stdout
    Thread(target=lambda: answer.set_result(output.readline()), name="fleet head", daemon=True).start()
    return answer


async def _init(address: str, runtime_env: Mapping[str, Any] | None, deadline_s: float) -> None:
    """Connect, in a thread: Ray cannot be told how long to try. Raises TimeoutError.

    Ray takes over SIGTERM, at which it ends the process on the spot; whoever handled it before gets it back.
    """
    done: Future[None] = Future()

    def work() -> None:
        try:
            _init_here(address, runtime_env)
        except BaseException as error:  # noqa: BLE001  it is raised where it is waited for
            done.set_exception(error)
        else:
            done.set_result(None)

    Thread(target=work, name="fleet connection", daemon=True).start()
    await settled([done], deadline_s)
    done.result()
    handler = signal.getsignal(signal.SIGTERM)
    if current_thread() is main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


def _init_here(address: str, runtime_env: Mapping[str, Any] | None) -> None:
    import ray
    from ray._private import worker
    from ray._raylet import AuthenticationTokenLoader, Config

    # What Ray read of the environment when it was imported, perhaps for another cluster, is read again.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    logging.getLogger("ray").setLevel(logging.ERROR)
    worker.print_to_stdstream = _log
    ray.init(
        address=address,
        runtime_env=runtime_env,
        log_to_driver=False,
        configure_logging=False,
    )


def _log(report: Mapping[str, Any], **_: Any) -> None:
    """What Ray would print on standard output, where results of the run belong. The fleet says itself who died."""
    for line in report["lines"]:
        if not line.startswith("A worker died"):
            log.warning("Ray reports", message=line[:REPORT])


def end_head(head: subprocess.Popen[str]) -> None:
    """Let the program that holds Ray end it; kill what is left of both after `CLOSE_S`."""
    assert head.stdin is not None
    head.stdin.close()
    try:
        head.wait(CLOSE_S)
    except subprocess.TimeoutExpired:
        os.killpg(head.pid, signal.SIGKILL)
        head.wait()


def _folder() -> Path:
    place = Path(tempfile.mkdtemp(prefix="mappa-"))
    if len(str(place)) > SOCKET_ROOM:
        place.rmdir()
        place = Path(tempfile.mkdtemp(prefix="mappa-", dir="/tmp"))
    return place


def _token(folder: Path) -> Path:
    path = folder / "token"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return path


def _set_environment(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set or (None) delete variables of this process; what they were before."""
    before = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before
