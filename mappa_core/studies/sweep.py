"""Seeds times settings: every run a process of its own, what is finished never run again, what failed shown.

<folder>/sweep.json        what is to be run, and what came of it
<folder>/config.yaml       the settings that all runs share, as they were resolved when the sweep began
<folder>/<arm>-s<seed>/    a run folder
<folder>/logs/             what every run printed
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from mappa_core.config.compose import Composed, compose
from mappa_core.config.text import read_yaml, scalar
from mappa_core.errors import ConfigError, EngineLost, RunError
from mappa_core.plugins import Registry
from mappa_core.store.files import read_versioned, write_atomic
from mappa_core.store.folder import CONFIG
from mappa_core.store.summary import NAME as SUMMARY
from mappa_core.store.summary import read_summary
from mappa_core.studies.compare import Compared, compare
from mappa_core.studies.results import Result, read_result

NAME = "sweep.json"
SCHEMA = 1
LOGS = "logs"
STOP_S = 30.0
"""Seconds that a run has to end in when the sweep is stopped."""
_TOLD = ("Error: ", "Stopped: ")
"""How the command line begins to say why a run ended."""

Status = Literal["waiting", "running", "done", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepArm:
    """One setting: what it changes, as `key=value` words. `name` begins its folders."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """One run of a sweep: its folder there, and how it stands; `error` is why it failed."""

    arm: str
    seed: int
    folder: str
    status: Status = "waiting"
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The whole of `sweep.json`."""

    schema: int = SCHEMA
    plugin: str
    recipe: str
    blocked: tuple[str, ...]
    arms: tuple[SweepArm, ...]
    runs: tuple[SweepRun, ...]

    def setting(self, run: SweepRun) -> str:
        """The setting that a run is of, in words; `all` where there is but one."""
        (arm,) = (arm for arm in self.arms if arm.name == run.arm)
        return " ".join(arm.words) or "all"

    def at(self, status: Status) -> tuple[SweepRun, ...]:
        """The runs that stand so."""
        return tuple(run for run in self.runs if run.status == status)


def arms_of(grid: Sequence[str]) -> tuple[SweepArm, ...]:
    """Every combination of `KEY=[VALUE, VALUE]` words, each value being YAML of its own, whatever it holds.

    Raises:
        ConfigError: a word has no list of two or more different values, or a key comes twice.
    """
    axes: dict[str, list[str]] = {}
    for word in grid:
        key, equals, text = word.partition("=")
        how = f"--vary {word}: write KEY=[VALUE, VALUE], for example --vary 'train.learning_rate=[2e-4, 5e-4]'"
        if not (key and equals):
            raise ConfigError(how)
        values = read_yaml(f"values: {text}", f"--vary {key}").fields["values"].plain
        if not isinstance(values, list) or len(values) < 2:
            raise ConfigError(how)
        if key in axes:
            raise ConfigError(f"--vary {key} comes twice: give all its values in one list")
        axes[key] = [scalar(value) for value in values]
        if len(set(axes[key])) < len(values):
            raise ConfigError(f"--vary {word}: a value stands there twice, which would be one setting twice")
    combined = product(*([f"{key}={value}" for value in values] for key, values in axes.items()))
    return tuple(SweepArm(name=f"arm{number}", words=words) for number, words in enumerate(combined, start=1))


def begin(
    folder: Path,
    composed: Composed,
    registry: Registry,
    *,
    arms: Sequence[SweepArm],
    seeds: Sequence[int],
    blocked: Sequence[str] = (),
) -> Sweep:
    """Write down a new sweep in `folder`, which must not be there yet, once every arm was found to make a config.

    Raises:
        ConfigError, PluginError: an arm sets what cannot be set; nothing is written.
        RunError: the folder exists, or cannot be written.
    """
    if folder.exists():
        raise RunError(f"{folder} exists already: go on with it by --resume {folder}, or choose another --folder")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"--seeds {','.join(map(str, seeds))}: a seed stands there twice")
    composed.require_installed()
    sweep = Sweep(
        plugin=composed.plugin,
        recipe=composed.recipe,
        blocked=tuple(blocked),
        arms=tuple(arms),
        runs=tuple(SweepRun(arm=arm.name, seed=seed, folder=f"{arm.name}-s{seed}") for arm in arms for seed in seeds),
    )
    text = composed.yaml()
    for arm in arms:
        _checked(registry, text, folder, arm)
    (folder / LOGS).mkdir(parents=True)
    write_atomic(folder / CONFIG, text)
    save(folder, sweep)
    return sweep


def _checked(registry: Registry, text: str, folder: Path, arm: SweepArm) -> None:
    """Compose an arm as its runs will be."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="mappa-sweep-") as aside:
        file = Path(aside) / CONFIG
        file.write_text(text, encoding="utf-8")
        compose(registry, config_files=(file,), words=arm.words).require_installed()


def load(folder: Path) -> Sweep:
    """The sweep in a folder, its runs as they stand: one that was under way when the sweep ended is `interrupted`.

    Raises RunError where the folder holds none.
    """
    if not (folder / NAME).is_file():
        raise RunError(f"{folder} is not the folder of a sweep: it has no {NAME}")
    sweep = read_versioned(folder / NAME, SCHEMA, lambda text: msgspec.json.decode(text, type=Sweep))
    return replace(sweep, runs=tuple(_standing(folder, run) for run in sweep.runs))


def save(folder: Path, sweep: Sweep) -> None:
    """Write `sweep.json`, whole or not at all."""
    write_atomic(folder / NAME, msgspec.json.format(msgspec.json.encode(sweep), indent=2) + b"\n")


def _standing(folder: Path, run: SweepRun) -> SweepRun:
    """A run by what is in its folder, which knows more than what was written about it."""
    if _is_done(folder / run.folder):
        return replace(run, status="done", error=None)
    return replace(run, status="interrupted") if run.status in ("running", "done") else run


def _is_done(folder: Path) -> bool:
    return (folder / SUMMARY).is_file() and read_summary(folder).status == "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep came to so far: its arms `compared`, by the setting each is of, None before a run is done. `chosen`
    is the arm whose runs were best on the tasks that checkpoints are chosen on, with its mean there over seeds; None
    where the runs set no such tasks apart: then none is named best, since the reported figures would choose it."""

    sweep: Sweep
    compared: Compared | None
    chosen: tuple[str, float] | None


def swept(folder: Path, sweep: Sweep) -> Swept:
    """The results of the runs that are done.

    Raises:
        ConfigError: the runs cannot be compared.
    """
    groups: dict[str, list[Result]] = {}
    choosing: dict[str, list[float]] = {}
    for run in sweep.at("done"):
        name = sweep.setting(run)
        groups.setdefault(name, []).append(read_result(folder / run.folder))
        found = read_summary(folder / run.folder).eval
        if found is not None and found.selection is not None:
            choosing.setdefault(name, []).append(found.selection.value)
    everyone = bool(groups) and all(name in choosing and len(choosing[name]) == len(groups[name]) for name in groups)
    means = {name: sum(values) / len(values) for name, values in choosing.items()}
    best = max(means, key=means.__getitem__) if everyone else None
    return Swept(
        sweep=sweep,
        compared=compare(groups) if groups else None,
        chosen=None if best is None else (best, means[best]),
    )


class Launch(Protocol):
    """Runs `mappa` with these arguments to its end, and appends what it prints to the file `log`; its exit code.

    Where it is cancelled, the program is asked to stop first. It may raise ConfigError, where no run can be started
    there, and EngineLost, where the machine of this one was lost.
    """

    async def __call__(self, arguments: Sequence[str], log: Path) -> int: ...


async def here(arguments: Sequence[str], log: Path) -> int:
    """Launch on this machine, with one thread, so that figures do not depend on how many run at a time."""
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    command = [sys.executable, "-m", "mappa_core", *arguments]
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=output, stderr=output, stdin=asyncio.subprocess.DEVNULL, env=environment
        )
        try:
            return await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_S)
            except TimeoutError:
                process.kill()
                await process.wait()
            raise


class Running:
    """Runs what is not done of a sweep, `jobs` at a time, by `launch`. `changed` hears of every run that starts or
    ends."""

    def __init__(
        self, folder: Path, sweep: Sweep, *, jobs: int, changed: Callable[[Sweep, SweepRun], None], launch: Launch
    ) -> None:
        self.sweep = sweep
        self._folder = folder
        self._jobs = asyncio.Semaphore(jobs)
        self._changed = changed
        self._launch = launch

    async def run(self) -> Sweep:
        """Run everything to its end; a run that fails does not stop the others. Where this is cancelled, the runs under
        way are asked to stop, and can go on later."""
        waiting = [run for run in self.sweep.runs if run.status != "done"]
        async with asyncio.TaskGroup() as group:
            for run in waiting:
                group.create_task(self._one(run))
        return self.sweep

    async def _one(self, run: SweepRun) -> None:
        async with self._jobs:
            self._now(replace(run, status="running", error=None))
            log = self._folder / LOGS / f"{run.folder}.log"
            try:
                code = await self._launch(self.arguments(run), log)
            except (EngineLost, ConfigError) as error:
                self._now(replace(run, status="failed", error=str(error)))
                return
            except asyncio.CancelledError:
                self._now(replace(run, status="interrupted"))
                raise
            if code == 0 and _is_done(self._folder / run.folder):
                self._now(replace(run, status="done", error=None))
            else:
                self._now(replace(run, status="failed", error=_why(log, code)))

    def arguments(self, run: SweepRun) -> list[str]:
        """What `mappa` is started with for a run: a new one, or that in its folder gone on with."""
        start = [part for name in self.sweep.blocked for part in ("--block", name)]
        path = self._folder / run.folder
        if path.exists():
            return [*start, "train", "--quiet", "--resume", str(path)]
        (arm,) = (arm for arm in self.sweep.arms if arm.name == run.arm)
        place = (f"run.root={scalar(str(self._folder))}", f"run.name={scalar(run.folder)}", f"seed={run.seed}")
        return [*start, "train", "--quiet", "--config", str(self._folder / CONFIG), *arm.words, *place]

    def _now(self, run: SweepRun) -> None:
        runs = tuple(run if one.folder == run.folder else one for one in self.sweep.runs)
        self.sweep = replace(self.sweep, runs=runs)
        save(self._folder, self.sweep)
        self._changed(self.sweep, run)


def _why(log: Path, code: int) -> str:
    """What a run said last of why it ended: its message, or the last line of a traceback."""
    lines = [line.rstrip() for line in log.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    told = [place for place, line in enumerate(lines) if line.startswith(_TOLD)]
    if told:
        return "\n".join(lines[told[-1] :])
    return f"exit code {code}: {lines[-1]}" if lines else f"exit code {code}"
