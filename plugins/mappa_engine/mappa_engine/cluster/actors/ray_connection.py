"""The driver's connection to Ray: starts a Ray on this machine for the run, or connects to a running one."""

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

from mappa_core import ConfigError
from mappa_core.engine import EngineLost
from mappa_engine.cluster.actors.actor_environment import (
    NO_TELEMETRY,
    local_actor_environment,
    remote_actor_environment,
)
from mappa_engine.cluster.actors.deadlines import wait_all
from mappa_engine.cluster.actors.py_modules import py_module_paths

log = structlog.get_logger()

MAX_MESSAGE_CHARS = 200
"""Characters of one of Ray's own messages that are logged."""

HEAD_MODULE = "mappa_engine.cluster.actors.ray_head"

PRIORITY = {"RAY_worker_niceness": "0"}
"""Gives actors the driver's priority. Ray's own is a niceness of 15, with which other programs of the machine, those of
agents among them, keep learners and samplers from giving a sign of life."""

MAX_FOLDER_LENGTH = 40
"""Maximum length of the path of Ray's folder: with session and socket names it must fit a Unix socket's 107 bytes."""

CONNECT_TIMEOUT_S = 10.0
"""Seconds to wait until a machine accepts a connection."""

CLOSE_TIMEOUT_S = 60.0
"""Seconds that a Ray started here may take to end before it is killed."""


@dataclass(slots=True, kw_only=True)
class RayConnection:
    """An open connection to Ray.

    Every actor gets `variables` in addition to the environment that it inherits. `logs` is the log folder of workers on
    this machine, None where it is unknown. `head` is the process that runs Ray and `folder` its files; both are None
    where Ray was not started here. `previous_environment` is restored on close.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    head: subprocess.Popen[str] | None = None
    folder: Path | None = None
    logs: Path | None = None
    previous_environment: Mapping[str, str | None] = field(default_factory=dict)

    async def close(self) -> None:
        """Disconnect, and end Ray if it was started here."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        import ray

        ray.shutdown()
        if self.head is not None and self.folder is not None:
            end_head(self.head)
            # After a failure of Ray this process wrote to its logs until now, and a killed head removed nothing.
            shutil.rmtree(self.folder, ignore_errors=True)
        _set_environment(self.previous_environment)


async def connect(address: str | None, *, address_setting: str, deadline_s: float, **settings: Any) -> RayConnection:
    """Connect to the Ray at `address`, or start one on this machine (None) with the head's `settings`. Error messages
    call the address `address_setting`."""
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        raise ConfigError("this process is connected to Ray already, and can be only once; call ray.shutdown() before")
    if address is None:
        return await _start_local(deadline_s, settings)
    return await _connect_to_running(address, address_setting, deadline_s)


async def _connect_to_running(address: str, address_setting: str, deadline_s: float) -> RayConnection:
    """Connect to a running Ray, and upload the packages that actors need."""
    setting = f"{address_setting} is {address!r}"
    host, _, port = address.rpartition(":")
    if address != "auto" and not (host and "/" not in host and port.isdecimal()):
        raise ConfigError(f"{setting}; it can be auto or HOST:PORT, as `ray start --head` prints it")
    connection = RayConnection(
        variables=remote_actor_environment(os.environ), previous_environment=_set_environment(NO_TELEMETRY)
    )
    try:
        if address != "auto":
            # Ray itself would retry for many minutes.
            async with asyncio.timeout(min(deadline_s, CONNECT_TIMEOUT_S)):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.close()
        await _init_with_deadline(
            address, {"py_modules": py_module_paths(), "env_vars": dict(connection.variables)}, deadline_s
        )
    except TimeoutError:
        await connection.close()
        raise ConfigError(
            f"{setting}, where no Ray answers. Start one with `ray start --head`, or leave the option out"
        ) from None
    except (OSError, RuntimeError, ValueError) as error:
        await connection.close()
        raise ConfigError(
            f"{setting}, where no Ray can be reached: {error}. Start one with `ray start --head`, or leave the option "
            "out"
        ) from error
    return connection


async def _start_local(deadline_s: float, settings: Mapping[str, Any]) -> RayConnection:
    """Start a Ray on this machine, in an environment without secrets, and connect to it.

    A separate process runs it and ends it when this process ends, however that happens. Connections need its token,
    which is in a file that only this user can read.
    """
    folder = _make_folder()
    auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(_write_token(folder))}
    head = _spawn(auth)
    connection = RayConnection(
        head=head, folder=folder, previous_environment=_set_environment({**NO_TELEMETRY, **auth})
    )
    try:
        answer = _send_settings(head, {"folder": str(folder), **settings})
        await asyncio.to_thread(importlib.import_module, "ray")  # takes as long as Ray takes to start
        await wait_all([answer], deadline_s)
        there = json.loads(answer.result() or '{"error": "the program that holds it ended"}')
        if "error" in there:
            raise EngineLost(f"Ray did not start on this machine: {there['error']}")
        connection.logs = Path(there["logs"])
        await _init_with_deadline(there["address"], None, deadline_s)
    except BaseException as error:
        await connection.close()
        if isinstance(error, TimeoutError):
            raise EngineLost(f"Ray did not start on this machine within {deadline_s:g} s") from None
        raise
    return connection


def _spawn(auth: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", HEAD_MODULE],
        env={**local_actor_environment(os.environ), **PRIORITY, **auth},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # errors are in its answer
        text=True,
        start_new_session=True,  # Ctrl-C reaches the run alone, which ends its actors in order
    )


def _send_settings(head: subprocess.Popen[str], settings: Mapping[str, Any]) -> Future[str]:
    """Send the head its settings; the future gets the line that it answers with, empty where it ended."""
    assert head.stdin is not None and head.stdout is not None
    head.stdin.write(json.dumps(settings) + "\n")
    head.stdin.flush()
    answer: Future[str] = Future()
    output = head.stdout
    Thread(target=lambda: answer.set_result(output.readline()), name="ray head output", daemon=True).start()
    return answer


async def _init_with_deadline(address: str, runtime_env: Mapping[str, Any] | None, deadline_s: float) -> None:
    """Connect, in a thread, as Ray's own connection has no timeout. Raises TimeoutError.

    Ray installs a SIGTERM handler that ends the process at once; the previous handler is restored.
    """
    done: Future[None] = Future()

    def work() -> None:
        try:
            _init_ray(address, runtime_env)
        except BaseException as error:  # noqa: BLE001  it is raised where it is waited for
            done.set_exception(error)
        else:
            done.set_result(None)

    Thread(target=work, name="fleet connection", daemon=True).start()
    await wait_all([done], deadline_s)
    done.result()
    handler = signal.getsignal(signal.SIGTERM)
    if current_thread() is main_thread() and handler is not None:
        signal.signal(signal.SIGTERM, handler)


def _init_ray(address: str, runtime_env: Mapping[str, Any] | None) -> None:
    import ray
    from ray._private import worker
    from ray._raylet import AuthenticationTokenLoader, Config

    # Ray read the environment when it was imported, perhaps for another cluster: reload it.
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    logging.getLogger("ray").setLevel(logging.ERROR)
    worker.print_to_stdstream = _log_ray_message
    ray.init(
        address=address,
        runtime_env=runtime_env,
        log_to_driver=False,
        configure_logging=False,
    )


def _log_ray_message(report: Mapping[str, Any], **_: Any) -> None:
    """Log what Ray would print on standard output, which is for results. Deaths of workers are reported by `Actor`."""
    for line in report["lines"]:
        if not line.startswith("A worker died"):
            log.warning("Ray reports", message=line[:MAX_MESSAGE_CHARS])


def end_head(head: subprocess.Popen[str]) -> None:
    """Let the head process end Ray; kill both after `CLOSE_TIMEOUT_S`."""
    assert head.stdin is not None
    head.stdin.close()
    try:
        head.wait(CLOSE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(head.pid, signal.SIGKILL)
        head.wait()


def _make_folder() -> Path:
    place = Path(tempfile.mkdtemp(prefix="mappa-"))
    if len(str(place)) > MAX_FOLDER_LENGTH:
        place.rmdir()
        place = Path(tempfile.mkdtemp(prefix="mappa-", dir="/tmp"))
    return place


def _write_token(folder: Path) -> Path:
    path = folder / "token"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return path


def _set_environment(variables: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set variables of this process, or delete those that are None; returns their previous values."""
    previous_environment = {name: os.environ.get(name) for name in variables}
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return previous_environment
