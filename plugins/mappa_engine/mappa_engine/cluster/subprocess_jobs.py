"""Runs the jobs of a sweep on the machines of a running Ray cluster, each as a `mappa` subprocess."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mappa_core import ConfigError
from mappa_core.engine import EngineLost
from mappa_core.files import open_log
from mappa_engine.cluster.actors import Actor, RayActors, ReservedBundle

RESERVE_TIMEOUT_S = 120.0
START_TIMEOUT_S = 300.0
"""Seconds that a machine may take to receive the packages and start the actor."""
STOP_TIMEOUT_S = 30.0
"""Seconds from SIGTERM to SIGKILL."""
MAX_RUN_S = 365 * 86_400.0
"""Runs have no real deadline: heartbeats of the actor show whether it is alive."""


class SubprocessActor:
    """Actor that runs one subprocess. `stop` may be called while it runs."""

    def __init__(self, folder: str) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        if not Path(folder).is_dir():
            raise ConfigError(
                f"{folder} is not on {os.uname().nodename}: the folder of a sweep must be one that all machines share "
                "under the same path (--folder)"
            )

    def run(self, arguments: Sequence[str], log: str) -> int:
        """Run `mappa` with these arguments, append its output to the file `log`, and return its exit code."""
        # Packages that were uploaded to Ray are on the path of this process alone.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "mappa", *arguments]
        with open_log(Path(log).parent, Path(log).name) as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )
            if self._stopped.is_set():
                self._process.terminate()
            return self._process.wait()

    def stop(self) -> None:
        """Terminate the subprocess; kill it where it does not end in time."""
        self._stopped.set()
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
            self._process.kill()


class SubprocessJobs:
    """Runs subprocesses on reserved bundles of a cluster, at most one per bundle at a time.

    They get the environment in which Ray was started on their machine, including API keys of coaches, and of this
    process's environment only the variables that are valid on every machine (`remote_actor_environment`).
    """

    def __init__(
        self, ray_actors: RayActors, slots: Sequence[ReservedBundle], folder: Path, *, cpus: int, gpus: float
    ) -> None:
        self._ray_actors = ray_actors
        self._folder = folder
        self._cpus, self._gpus = cpus, gpus
        self._free: asyncio.Queue[ReservedBundle] = asyncio.Queue()
        for slot in slots:
            self._free.put_nowait(slot)

    @classmethod
    async def open(cls, address: str, folder: Path, *, jobs: int, cpus: int, gpus: float) -> SubprocessJobs:
        """Reserve `jobs` bundles of `cpus` CPUs and `gpus` GPUs each, spread over the machines of the Ray at `address`
        (auto or HOST:PORT). Raises ConfigError where there is no Ray, or too little is free."""
        bundle = {"CPU": float(cpus), **({"GPU": gpus} if gpus else {})}
        ray_actors = await RayActors.open(address, address_setting="--ray")
        try:
            slots = await ray_actors.reserve([bundle] * jobs, deadline_s=RESERVE_TIMEOUT_S, strategy="SPREAD")
        except BaseException:
            await ray_actors.close()
            raise
        return cls(ray_actors, slots, folder, cpus=cpus, gpus=gpus)

    async def run(self, arguments: Sequence[str], log: Path) -> int:
        """Run `mappa` with these arguments on a free bundle, append its output to `log`, and return its exit code.

        On cancellation the subprocess is stopped first. Raises ConfigError where the machine cannot see the sweep's
        folder, EngineLost where the machine was lost.
        """
        slot = await self._free.get()
        try:
            actor = await self._start_actor(slot, name=log.stem)
            try:
                return await self._wait_for_exit(actor, arguments, log)
            finally:
                await self._ray_actors.end(actor)
        finally:
            self._free.put_nowait(slot)

    async def _start_actor(self, slot: ReservedBundle, name: str) -> Actor:
        return await self._ray_actors.start(
            SubprocessActor,
            str(self._folder),
            name=name,
            role="run",
            deadline_s=START_TIMEOUT_S,
            slot=slot,
            cpus=self._cpus,
            gpus=self._gpus,
            threads=2,
        )

    async def _wait_for_exit(self, actor: Actor, arguments: Sequence[str], log: Path) -> int:
        try:
            code: int = await self._ray_actors.wait_for(
                actor.call("run", tuple(arguments), str(log)), deadline_s=MAX_RUN_S, what="run"
            )
        except asyncio.CancelledError:
            with suppress(EngineLost):
                await self._ray_actors.wait_for(actor.call("stop"), deadline_s=2 * STOP_TIMEOUT_S, what="stop")
            raise
        return code

    async def close(self) -> None:
        """End running subprocesses and release the bundles; Ray itself keeps running."""
        await self._ray_actors.close()
