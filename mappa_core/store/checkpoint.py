"""Checkpoints: a folder an iteration with all that a run needs to go on, described by its manifest.

    checkpoints/000012/manifest.json
    checkpoints/000012/policies/…       what the engine saves: weights, optimiser, randomness

A checkpoint is written into a hidden sibling folder and renamed when it is whole: one that has its name is complete.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import msgspec

from mappa_core.errors import RunError
from mappa_core.store.codec import from_json, to_json
from mappa_core.store.files import read_versioned, storage_errors, sync, write_atomic

SCHEMA = 1
POLICIES = "policies"
"""Folder in a checkpoint that the engine saves into."""
_MANIFEST = "manifest.json"
_UNFINISHED = ".unfinished-"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint. `size` in bytes."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint holds: the state after `iteration` iterations.

    `created` is a time in UTC; `versions` are of the packages that wrote it; `coach` and `estimator` are their states
    as JSON values; `files` are by their path in the checkpoint.
    """

    schema: int
    iteration: int
    seed: int
    created: str
    versions: Mapping[str, str]
    coach: Mapping[str, Any]
    estimator: Mapping[str, Any]
    files: Mapping[str, FileEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose files were found to be as they were written."""

    path: Path
    manifest: Manifest


class Checkpoints:
    """The checkpoints of one run. `before` is called before one becomes visible (the writer of a run makes its records
    durable there)."""

    def __init__(self, folder: Path, *, before: Callable[[], None] | None = None) -> None:
        self.folder = folder
        self._before = before

    def iterations(self) -> tuple[int, ...]:
        """The iterations that have a checkpoint, in order."""
        if not self.folder.is_dir():
            return ()
        return tuple(sorted(int(path.name) for path in self.folder.iterdir() if re.fullmatch(r"\d{6,}", path.name)))

    def latest(self) -> int | None:
        """The last iteration that has a checkpoint."""
        iterations = self.iterations()
        return iterations[-1] if iterations else None

    def last(self) -> Checkpoint:
        """The last checkpoint, checked. Raises RunError where there is none."""
        latest = self.latest()
        if latest is None:
            raise RunError(f"{self.folder} holds no checkpoint: the run did not come to its first")
        return self.load(latest)

    def path(self, iteration: int) -> Path:
        return self.folder / f"{iteration:06d}"

    @contextmanager
    def writing(
        self, iteration: int, *, seed: int, coach: Mapping[str, Any], estimator: Mapping[str, Any]
    ) -> Iterator[Path]:
        """A new checkpoint: what the body saves into the folder that it is given becomes part of it.

        It is there, in place of an older one of this iteration, when the body ends, and not at all where the body or
        the storage fails (RunError).
        """
        aside = self.folder / f"{_UNFINISHED}{iteration:06d}"
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            aside.mkdir()
            try:
                yield aside
                manifest = Manifest(
                    schema=SCHEMA,
                    iteration=iteration,
                    seed=seed,
                    created=datetime.now(UTC).isoformat(timespec="seconds"),
                    versions=dict(_versions()),
                    coach=coach,
                    estimator=estimator,
                    files=_sealed(aside),
                )
                write_atomic(aside / _MANIFEST, msgspec.json.format(to_json(manifest), indent=2))
                if self._before is not None:
                    self._before()
                self._publish(aside, self.path(iteration))
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise

    def _publish(self, aside: Path, path: Path) -> None:
        if path.exists():
            path.rename(self._doomed(path))
        aside.rename(path)
        sync(self.folder)
        shutil.rmtree(self._doomed(path), ignore_errors=True)

    def _doomed(self, path: Path) -> Path:
        """Where a checkpoint goes before it is removed, so that a kill leaves no half of one under its name."""
        return self.folder / f"{_UNFINISHED}{path.name}-old"

    def load(self, iteration: int) -> Checkpoint:
        """The checkpoint of an iteration, every file checked against the manifest.

        Raises RunError where there is none, or naming the file that is missing, changed or of a newer schema.
        """
        path = self.path(iteration)
        if not path.is_dir():
            raise RunError(f"{self.folder} has no checkpoint of iteration {iteration}; {self._choices(iteration)}")
        try:
            return Checkpoint(path=path, manifest=_checked(path))
        except RunError as error:
            raise RunError(f"{error}; {self._choices(iteration)}") from error

    def _choices(self, iteration: int) -> str:
        others = [str(other) for other in self.iterations() if other != iteration]
        return f"checkpoints of other iterations: {', '.join(others)}" if others else "there is no other checkpoint"

    def prune(self, keep: int) -> None:
        """Remove all but the last `keep` checkpoints."""
        if keep < 1:
            raise ValueError(f"at least one checkpoint has to stay, not {keep}")
        for iteration in self.iterations()[:-keep]:
            path = self.path(iteration)
            path.rename(self._doomed(path))
            shutil.rmtree(self._doomed(path))

    def remove_unfinished(self) -> None:
        """Remove what a killed writer left; only the writer of the run may."""
        for path in self.folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(path)


def _versions() -> Iterator[tuple[str, str]]:
    for package in ("mappa-core", "numpy", "torch", "transformers", "safetensors"):
        with suppress(PackageNotFoundError):
            yield package, version(package)


def _sealed(folder: Path) -> dict[str, FileEntry]:
    """All files under a folder, made durable."""
    entries = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            file = Path(parent, name)
            sync(file)
            entries[file.relative_to(folder).as_posix()] = FileEntry(size=file.stat().st_size, sha256=_sha256(file))
        sync(Path(parent))
    return dict(sorted(entries.items()))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked(path: Path) -> Manifest:
    manifest = read_versioned(path / _MANIFEST, SCHEMA, lambda text: from_json(Manifest, text))
    for name, entry in manifest.files.items():
        file = path / name
        if not file.is_file():
            raise RunError(f"{file} is missing")
        if file.stat().st_size != entry.size or _sha256(file) != entry.sha256:
            raise RunError(f"{file} is damaged: it is not as it was written")
    return manifest
