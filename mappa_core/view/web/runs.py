"""Which runs are shown, and whether one of them has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from mappa_core.errors import ConfigError
from mappa_core.store.folder import run_folders
from mappa_core.store.schema import NAME as DATABASE
from mappa_core.store.summary import NAME as SUMMARY

MOST = 200
"""Runs of one folder that are shown, the newest."""


class Runs:
    """Run folders, and folders of runs, in which new ones appear as they begin.

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
        """Every run by its name, the newest first; runs of one name get a number."""
        found = [run for path in self._paths for run in _runs_at(path)]
        named: dict[str, Path] = {}
        for run in sorted(dict.fromkeys(path.resolve() for path in found), key=_begun, reverse=True):
            name = run.name
            while name in named:
                name = f"{name}~"
            named[name] = run
        return named


def stamp(runs: Mapping[str, Path]) -> str:
    """What differs whenever one of the runs has written something since, or another run is there."""
    return f"{hash(tuple((name, *_written(run)) for name, run in runs.items())) & 0xFFFFFFFFFFFF:x}"


def last_written(run: Path) -> float:
    """When the run wrote a record last, in seconds since the epoch."""
    return max((time for time, _ in _written(run)), default=0) / 1e9


def _written(run: Path) -> list[tuple[int, int]]:
    found = []
    for name in (DATABASE, f"{DATABASE}-wal", SUMMARY):
        try:
            status = (run / name).stat()
        except FileNotFoundError:
            continue
        found.append((status.st_mtime_ns, status.st_size))
    return found


def _runs_at(path: Path) -> tuple[Path, ...]:
    return (path,) if (path / DATABASE).is_file() else run_folders(path)[-MOST:]


def _begun(run: Path) -> int:
    return (run / "config.yaml").stat().st_mtime_ns if (run / "config.yaml").is_file() else 0
