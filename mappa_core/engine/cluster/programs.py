"""Programs on the machines of a Ray cluster that runs already: the runs of a sweep, each a `mappa` of its own."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mappa_core.engine.cluster.fleet import Actor, Fleet, Slot
from mappa_core.errors import ConfigError, EngineLost

RESERVE_S = 120.0
START_S = 300.0
"""Seconds that a machine may take to have the packages and begin."""
STOP_S = 30.0
"""Seconds that a program has to end in when it is asked to."""
LONGEST_S = 365 * 86_400.0
"""No run is given up: its actor's signs of life say whether it is still there."""


class Runner:
    """Runs one program. `stop` may be called while it runs."""

    def __init__(self, folder: str) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()
        if not Path(folder).is_dir():
            raise ConfigError(
                f"{folder} is not on {os.uname().nodename}: the folder of a sweep must be one that all machines share "
                "under the same path (--folder)"
            )

    def run(self, arguments: Sequence[str], log: str) -> int:
        """Run `mappa` with these arguments; what it prints is appended to the file `log`. Its exit code."""
        # The packages that Ray was sent are on the path of this process alone.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "mappa_core", *arguments]
        with Path(log).open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
            )
            if self._stopped.is_set():
                self._process.terminate()
            return self._process.wait()

    def stop(self) -> None:
        """Ask the program to end, and end it where it does not."""
        self._stopped.set()
        if self._process is not None:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_S)
            self._process.kill()


class Programs:
    """As many programs at a time as shares of the cluster were reserved.

    Programs see the environment in which Ray was started on their machine, keys of coaches for example, and of this
    one's only settings that hold everywhere (`fleet.environment`).
    """

    def __init__(self, fleet: Fleet, slots: Sequence[Slot], folder: Path, *, cpus: int, gpus: float) -> None:
        self._fleet = fleet
        self._folder = folder
        self._cpus, self._gpus = cpus, gpus
        self._free: asyncio.Queue[Slot] = asyncio.Queue()
        for slot in slots:
            self._free.put_nowait(slot)

    @classmethod
    async def open(cls, address: str, folder: Path, *, jobs: int, cpus: int, gpus: float) -> Programs:
        """Reserve `jobs` shares of so many CPUs and GPUs each, spread over the machines of the Ray at `address` (auto
        or HOST:PORT). Raises ConfigError where there is no Ray, or too little is free."""
        share = {"CPU": float(cpus), **({"GPU": gpus} if gpus else {})}
        fleet = await Fleet.open(address, asked="--ray")
        try:
            slots = await fleet.reserve([share] * jobs, deadline_s=RESERVE_S, strategy="SPREAD")
        except BaseException:
            await fleet.close()
            raise
        return cls(fleet, slots, folder, cpus=cpus, gpus=gpus)

    async def run(self, arguments: Sequence[str], log: Path) -> int:
        """Run `mappa` with these arguments on some machine, which appends what it prints to `log`; its exit code.

        Where this is cancelled the program is asked to stop first. Raises ConfigError where the machine does not see
        the sweep's folder, EngineLost where the machine was lost.
        """
        slot = await self._free.get()
        try:
            actor = await self._begun(slot, name=log.stem)
            try:
                return await self._end_of(actor, arguments, log)
            finally:
                await self._fleet.end(actor)
        finally:
            self._free.put_nowait(slot)

    async def _begun(self, slot: Slot, name: str) -> Actor:
        return await self._fleet.start(
            Runner,
            str(self._folder),
            name=name,
            role="run",
            deadline_s=START_S,
            slot=slot,
            cpus=self._cpus,
            gpus=self._gpus,
            threads=2,
        )

    async def _end_of(self, actor: Actor, arguments: Sequence[str], log: Path) -> int:
        try:
            code: int = await self._fleet.ask(
                actor.call("run", tuple(arguments), str(log)), deadline_s=LONGEST_S, what="run"
            )
        except asyncio.CancelledError:
            with suppress(EngineLost):
                await self._fleet.ask(actor.call("stop"), deadline_s=2 * STOP_S, what="stop")
            raise
        return code

    async def close(self) -> None:
        """End what still runs and give the shares back; the Ray goes on."""
        await self._fleet.close()
