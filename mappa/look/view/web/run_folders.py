"""Finds the runs to show and detects when they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mappa.store.folder import is_run_folder, list_run_folders
from mappa_core import ConfigError

MAX_RUNS = 200
"""Maximum number of runs shown from one folder, the newest."""
RECORD_FILES = ("run.db", "run.db-wal", "summary.json")
"""Files that change when a run records something; not all of them always exist."""


class RunFolders:
    """A set of run folders and folders of runs; new runs in the latter appear as they begin.

    Raises ConfigError for a path that is neither.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        for path in self._paths:
            if not path.is_dir():
                raise ConfigError(f"{path} is no folder: name a run, or a folder that runs lie in")
        if not self.folders():
            listed = ", ".join(map(str, self._paths))
            raise ConfigError(f"there is no run in {listed}: name a run folder, or the folder that run.root is")

    def folders(self) -> dict[str, Path]:
        """All runs by name, the newest first; a repeated name gets the suffix `~`."""
        found = [run for path in self._paths for run in _find_runs(path)]
        named: dict[str, Path] = {}
        for run in sorted(dict.fromkeys(path.resolve() for path in found), key=_start_time, reverse=True):
            name = run.name
            while name in named:
                name = f"{name}~"
            named[name] = run
        return named


def change_stamp(runs: Mapping[str, Path]) -> str:
    """A token that changes when one of the runs writes something, or when the set of runs changes."""
    return f"{hash(tuple((name, *_record_stats(run)) for name, run in runs.items())) & 0xFFFFFFFFFFFF:x}"


def last_written(run: Path) -> float:
    """The time of the run's last write, in seconds since the epoch."""
    return max((time for time, _ in _record_stats(run)), default=0) / 1e9


def _record_stats(run: Path) -> list[tuple[int, int]]:
    found = []
    for name in RECORD_FILES:
        try:
            status = (run / name).stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        found.append((status.st_mtime_ns, status.st_size))
    return found


def _find_runs(path: Path) -> tuple[Path, ...]:
    return (path,) if is_run_folder(path) else list_run_folders(path)[-MAX_RUNS:]


def _start_time(run: Path) -> int:
    try:
        return (run / "config.yaml").stat(follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return 0
