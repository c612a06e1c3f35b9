"""Sweeps: every combination of settings and seeds is a run in its own process. Finished runs are never run again.

<folder>/sweep.json        the planned runs and their status
<folder>/sweep.mark        that this user planned them (see `mappa.store.marks`)
<folder>/config.yaml       the settings that all runs share, resolved when the sweep was created
<folder>/<arm>-s<seed>/    a run folder
<folder>/logs/             the output of every run
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from mappa.config.compose import ComposedConfig, compose, read_config_file, read_stored
from mappa.config.yaml_io import format_scalar, parse_yaml
from mappa.look.arm_checks import check_arms
from mappa.look.compare import Comparison, compare_arms, sequential_level
from mappa.look.run_results import RunResult, differing_settings, read_result
from mappa.runs import RunReader
from mappa.session.trust import find_differences, require_trusted
from mappa.store.marks import write_mark
from mappa.store.summary import Summary
from mappa_core import ConfigError, RunError
from mappa_core.config.layers import SettingsNode
from mappa_core.engine import EngineLost
from mappa_core.files import has_file, open_log, read_file, read_versioned, storage_errors, write_file
from mappa_core.plugins import Registry

SWEEP_FILE = "sweep.json"
CONFIG = "config.yaml"
SWEEP_SCHEMA = 1
MAX_SWEEP_BYTES = 16 << 20
MAX_LOG_BYTES = 256 << 20
LOGS_FOLDER = "logs"
STOP_TIMEOUT_S = 30.0
"""Seconds that a run has to end when the sweep is stopped."""
_REASON_PREFIXES = ("Error: ", "Stopped: ")
"""Prefixes of the lines in which the command line reports why a run ended."""

SweepStatus = Literal["waiting", "running", "done", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepArm:
    """One setting: its overrides as `key=value` words. `name` is the prefix of its run folders; `title` is what people
    are shown: the name that they gave it, if any, and the words that they varied."""

    name: str
    title: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRun:
    """One run of a sweep: its folder within the sweep and its status; `error` is why it failed."""

    arm: str
    seed: int
    folder: str
    status: SweepStatus = "waiting"
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The content of `sweep.json`."""

    schema: int = SWEEP_SCHEMA
    plugin: str
    recipe: str
    blocked: tuple[str, ...]
    file: str | None = None
    """The file of the plugin, where it has no package."""
    arms: tuple[SweepArm, ...]
    runs: tuple[SweepRun, ...]

    def setting(self, run: SweepRun) -> str:
        """The title of a run's arm."""
        return self.arm(run).title

    def arm(self, run: SweepRun) -> SweepArm:
        """The arm of a run."""
        (arm,) = (arm for arm in self.arms if arm.name == run.arm)
        return arm

    def runs_with_status(self, status: SweepStatus) -> tuple[SweepRun, ...]:
        """The runs that have this status."""
        return tuple(run for run in self.runs if run.status == status)

    def with_run(self, run: SweepRun) -> Sweep:
        """The sweep with another state of one of its runs."""
        return replace(self, runs=tuple(run if one.folder == run.folder else one for one in self.runs))


def build_arms(named: Mapping[str, Sequence[str]], grid: Sequence[str]) -> tuple[SweepArm, ...]:
    """Build an arm for every combination of the arms that have a name, by their overrides, and of the values in
    `KEY=[VALUE, VALUE]` words. Raises as `expand_grid`."""
    varied = expand_grid(grid)
    if not named:
        return tuple(
            SweepArm(name=f"arm{number}", title=" ".join(words) or "all", words=words)
            for number, words in enumerate(varied, start=1)
        )
    return tuple(
        SweepArm(
            name=f"{name}-{number}" if grid else name, title=" ".join((name, *words)), words=(*named[name], *words)
        )
        for name in named
        for number, words in enumerate(varied, start=1)
    )


def read_arms(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Read the overrides of named arms: of `process`, which rewards each action by its own verdict; of `outcome`, which
    rewards every action by the metric of the workflow; or of a YAML file of settings, named by its stem.

    Raises:
        ConfigError: a name is neither of them nor a file, or comes twice, or a file cannot be used.
    """
    known = {
        "process": ("shapers=[{use: scale}]",),
        "outcome": ("shapers=[{use: outcome}]",),
    }
    arms: dict[str, tuple[str, ...]] = {}
    for text in names:
        name = text if text in known else Path(text).stem
        if name in arms:
            raise ConfigError(f"--arms {','.join(names)}: {name} comes twice")
        if text not in known and not Path(text).is_file():
            raise ConfigError(
                f"--arms {text}: an arm is {', '.join(known)} or a YAML file of settings, and this is none"
            )
        arms[name] = known[text] if text in known else _read_arm_file(Path(text))
    return arms


def _read_arm_file(path: Path) -> tuple[str, ...]:
    settings = read_config_file(path)
    for key, node in settings.fields.items():
        _check_free(f"{key} (set by {node.origin})", key)
    return tuple(_to_words(settings))


def _to_words(settings: SettingsNode, key: str = "") -> Iterator[str]:
    """Convert settings to `key=value` words; a list is one value."""
    if not settings.fields:
        yield f"{key}={format_scalar(settings.plain)}"
    for name, child in settings.fields.items():
        yield from _to_words(child, f"{key}.{name}" if key else name)


def _check_free(place: str, key: str) -> None:
    """Raise ConfigError for a key that a sweep sets itself."""
    if key.partition(".")[0] in ("seed", "run"):
        raise ConfigError(f"{place}: every run of a sweep has its own: seeds are named by --seeds 0,1,2")


def expand_grid(grid: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the overrides of every combination of values in `KEY=[VALUE, VALUE]` words. Each value is YAML of any
    type.

    Raises:
        ConfigError: a word has no list of two or more different values, a key is given twice, or a sweep sets it
            itself.
    """
    axes: dict[str, list[str]] = {}
    for word in grid:
        key, equals, text = word.partition("=")
        how = f"--vary {word}: write KEY=[VALUE, VALUE], for example --vary 'train.learning_rate=[2e-4, 5e-4]'"
        if not (key and equals):
            raise ConfigError(how)
        _check_free(f"--vary {key}", key)
        values = parse_yaml(f"values: {text}", f"--vary {key}").fields["values"].plain
        if not isinstance(values, list) or len(values) < 2:
            raise ConfigError(how)
        if key in axes:
            raise ConfigError(f"--vary {key} comes twice: give all its values in one list")
        axes[key] = [format_scalar(value) for value in values]
        if len(set(axes[key])) < len(values):
            raise ConfigError(f"--vary {word}: a value stands there twice, which would be one setting twice")
    return list(product(*([f"{key}={value}" for value in values] for key, values in axes.items())))


def create_sweep(
    folder: Path,
    composed: ComposedConfig,
    registry: Registry,
    *,
    arms: Sequence[SweepArm],
    seeds: Sequence[int],
    blocked: Sequence[str] = (),
) -> Sweep:
    """Create a sweep in the new `folder`, after checking that every arm composes to a valid config, and that their runs
    can be compared.

    Raises:
        ConfigError, PluginError: an arm does not compose, or `check_arms` refuses it; nothing is written.
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
        file=None if composed.file is None else composed.file.place,
        arms=tuple(arms),
        runs=tuple(SweepRun(arm=arm.name, seed=seed, folder=f"{arm.name}-s{seed}") for arm in arms for seed in seeds),
    )
    text = composed.to_yaml()
    check_arms(registry, {arm.title: _compose_arm(registry, text, arm) for arm in arms})
    with storage_errors(folder):
        (folder / LOGS_FOLDER).mkdir(parents=True)
    write_file(folder, CONFIG, text)
    save_sweep(folder, sweep)
    write_mark(folder / SWEEP_FILE, _planned_text(sweep, text))
    return sweep


def require_trusted_sweep(folder: Path, sweep: Sweep, registry: Registry, *, trust: bool) -> None:
    """Check that the user made the sweep in a folder, or trusts it, before its runs are started: its config and the
    words of its arms are taken as if the user gave them. Raises UntrustedRun."""
    stored = read_stored(folder / CONFIG)
    differences = find_differences(registry, stored, ())
    words = [word for arm in sweep.arms for word in arm.words]
    file = () if sweep.file is None else (f"--plugin {sweep.file}",)
    shown = (*map(str, differences), *file, *words, *(f"run.name={run.folder}" for run in sweep.runs))
    require_trusted(folder / SWEEP_FILE, _planned_text(sweep, stored.text), shown, trust=trust)


def _planned_text(sweep: Sweep, config: str) -> str:
    """What a sweep was begun with, whatever became of its runs."""
    planned = replace(sweep, runs=tuple(replace(run, status="waiting", error=None) for run in sweep.runs))
    return f"{msgspec.json.encode(planned).decode()}\n{config}"


def _compose_arm(registry: Registry, text: str, arm: SweepArm) -> ComposedConfig:
    """Compose an arm in the way its runs will be composed."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="mappa-sweep-") as aside:
        file = Path(aside) / CONFIG
        file.write_text(text, encoding="utf-8")
        composed = compose(registry, config_files=(file,), overrides=arm.words)
        composed.require_installed()
        return composed


def load_sweep(folder: Path) -> Sweep:
    """Read the sweep in a folder. A run that was under way when the sweep ended is `interrupted`.

    Raises RunError if the folder holds no sweep.
    """
    if not has_file(folder, SWEEP_FILE):
        raise RunError(f"{folder} is not the folder of a sweep: it has no {SWEEP_FILE}")
    sweep = read_versioned(
        folder,
        SWEEP_FILE,
        SWEEP_SCHEMA,
        lambda text: msgspec.json.decode(text, type=Sweep),
        max_bytes=MAX_SWEEP_BYTES,
    )
    for run in sweep.runs:
        if Path(run.folder).name != run.folder:
            raise RunError(f"{folder / SWEEP_FILE} is damaged: {run.folder!r} is no folder of a run in it")
    return replace(sweep, runs=tuple(_refresh_status(folder, run) for run in sweep.runs))


def save_sweep(folder: Path, sweep: Sweep) -> None:
    """Write `sweep.json` atomically."""
    write_file(folder, SWEEP_FILE, msgspec.json.format(msgspec.json.encode(sweep), indent=2) + b"\n")


def _refresh_status(folder: Path, run: SweepRun) -> SweepRun:
    """Update the status of a run from its folder, which is more recent than `sweep.json`."""
    try:
        if _is_done(folder / run.folder):
            return replace(run, status="done", error=None)
    except RunError as error:
        return replace(run, status="failed", error=str(error))
    return replace(run, status="interrupted") if run.status in ("running", "done") else run


def _is_done(folder: Path) -> bool:
    summary = _read_summary(folder) if folder.is_dir() else None
    return summary is not None and summary.status == "done"


def _read_summary(folder: Path) -> Summary | None:
    """Read the summary of a run; None if it has none yet."""
    with RunReader(folder) as reader:
        return reader.summary


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepResult:
    """The results of a sweep so far; a run that is done and cannot be read has failed in its `sweep`. `compared` holds
    the arms, named by their settings; None before a run is done, or if they cannot be compared, for `why_not`.

    `chosen` is the arm whose runs were best on the tasks reserved for checkpoint selection, with its mean there over
    seeds. It is None if the runs reserve no such tasks: choosing an arm by the reported figures would bias them; and
    before all runs are done, as a mean over fewer seeds is the best by chance more often.
    """

    sweep: Sweep
    compared: Comparison | None
    chosen: tuple[str, float] | None
    why_not: str | None = None


def collect_results(folder: Path, sweep: Sweep) -> SweepResult:
    """Compare the runs that are done, at a level of significance that holds however often the sweep is looked at."""
    groups: dict[str, list[RunResult]] = {}
    selection: dict[str, list[float]] = {}
    for run in sweep.runs_with_status("done"):
        name = sweep.setting(run)
        try:
            result, summary = read_result(folder / run.folder), _read_summary(folder / run.folder)
        except RunError as error:
            sweep = sweep.with_run(replace(run, status="failed", error=str(error)))
            continue
        groups.setdefault(name, []).append(result)
        if summary is not None and summary.eval is not None and summary.eval.selection is not None:
            selection.setdefault(name, []).append(summary.eval.selection.value)
    is_complete = sum(map(len, selection.values())) == len(sweep.runs)
    means = {name: sum(values) / len(values) for name, values in selection.items()}
    seeds = min(map(len, groups.values()), default=0)
    level = sequential_level(sum(map(len, groups.values())), len(sweep.runs), seeds)
    best = max(means, key=means.__getitem__) if is_complete else None
    named_by = differing_settings([result for group in groups.values() for result in group])
    try:
        compared = compare_arms(groups, level=level, named_by=named_by) if groups else None
    except ConfigError as error:
        return SweepResult(sweep=sweep, compared=None, chosen=None, why_not=str(error))
    return SweepResult(sweep=sweep, compared=compared, chosen=None if best is None else (best, means[best]))


class Launcher(Protocol):
    """Runs `mappa` with the given arguments to its end, appends its output to the file `log`, returns its exit code.

    When cancelled, it first asks the program to stop. Raises ConfigError if no run can be started, and EngineLost if
    the machine of this run was lost.
    """

    async def __call__(self, arguments: Sequence[str], log: Path) -> int: ...


async def launch_locally(arguments: Sequence[str], log: Path) -> int:
    """Launch on this machine with one thread, so that results do not depend on the number of parallel runs."""
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    command = [sys.executable, "-m", "mappa", *arguments]
    with open_log(log.parent, log.name) as output:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=output, stderr=output, stdin=asyncio.subprocess.DEVNULL, env=environment
        )
        try:
            return await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
            except TimeoutError:
                process.kill()
                await process.wait()
            raise


class SweepRunner:
    """Runs the unfinished runs of a sweep with `launch`, `jobs` at a time. `on_change` is called for every run that
    starts or ends."""

    def __init__(
        self, folder: Path, sweep: Sweep, *, jobs: int, on_change: Callable[[Sweep, SweepRun], None], launch: Launcher
    ) -> None:
        self.sweep = sweep
        self._folder = folder
        self._jobs = asyncio.Semaphore(jobs)
        self._on_change = on_change
        self._launch = launch

    async def run(self) -> Sweep:
        """Run everything to its end; a failed run does not stop the others. On cancellation the active runs are asked
        to stop, and can be resumed later."""
        waiting = [run for run in self.sweep.runs if run.status != "done"]
        async with asyncio.TaskGroup() as group:
            for run in waiting:
                group.create_task(self._run_one(run))
        return self.sweep

    async def _run_one(self, run: SweepRun) -> None:
        async with self._jobs:
            self._update(replace(run, status="running", error=None))
            log = self._folder / LOGS_FOLDER / f"{run.folder}.log"
            try:
                code = await self._launch(self.arguments(run), log)
            except (EngineLost, ConfigError) as error:
                self._update(replace(run, status="failed", error=str(error)))
                return
            except asyncio.CancelledError:
                self._update(replace(run, status="interrupted"))
                raise
            now = _refresh_status(self._folder, replace(run, status="running"))
            if code != 0 or now.status == "interrupted":
                now = replace(run, status="failed", error=_failure_reason(log, code))
            self._update(now)

    def arguments(self, run: SweepRun) -> list[str]:
        """The arguments of `mappa` for a run: they start a new one, or resume the one in its folder."""
        start = [part for name in self.sweep.blocked for part in ("--block", name)]
        path = self._folder / run.folder
        if path.exists():
            return [*start, "train", "--quiet", "--resume", str(path)]
        place = (
            f"run.root={format_scalar(str(self._folder))}",
            f"run.name={format_scalar(run.folder)}",
            f"seed={run.seed}",
        )
        file = () if self.sweep.file is None else ("--plugin", self.sweep.file)
        words = self.sweep.arm(run).words
        return [*start, "train", "--quiet", *file, "--config", str(self._folder / CONFIG), *words, *place]

    def _update(self, run: SweepRun) -> None:
        self.sweep = self.sweep.with_run(run)
        save_sweep(self._folder, self.sweep)
        self._on_change(self.sweep, run)


def _failure_reason(log: Path, code: int) -> str:
    """The last reason that a run printed for its end: its error message, or the last line of a traceback."""
    text = read_file(log.parent, log.name, max_bytes=MAX_LOG_BYTES).decode(errors="replace")
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    reasons = [place for place, line in enumerate(lines) if line.startswith(_REASON_PREFIXES)]
    if reasons:
        return "\n".join(lines[reasons[-1] :])
    return f"exit code {code}: {lines[-1]}" if lines else f"exit code {code}"
