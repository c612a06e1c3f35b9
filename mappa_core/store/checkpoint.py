"""Checkpoints: a folder an iteration with all that a run needs to go on, described by its manifest.

    checkpoints/000012/manifest.json
    checkpoints/000012/policies/…       what the engine saves: weights, optimiser, randomness
    checkpoints/best.json               which of them the best evaluation so far is of, where that is kept

A checkpoint is written into a hidden sibling folder and renamed when it is whole: one that has its name is complete.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path, PurePosixPath
from typing import Any

import msgspec

from mappa_core.errors import RunError
from mappa_core.protocols import Lora, PolicySpec
from mappa_core.store.codec import from_json, to_json
from mappa_core.store.files import read_versioned, storage_errors, sync, write_atomic
from mappa_core.store.mirror import Mirror

SCHEMA = 1
POLICIES = "policies"
"""Folder in a checkpoint that the engine saves into."""
_MANIFEST = "manifest.json"
_BEST = "best.json"
_UNFINISHED = ".unfinished-"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint. `size` in bytes."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """One policy that the checkpoint has weights of, so that they can be used without the config of the run."""

    kind: str
    model: str
    lora: Lora | None = None

    @classmethod
    def of(cls, spec: PolicySpec) -> PolicyEntry:
        return cls(kind=spec.kind, model=spec.model, lora=spec.lora)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint holds: the state after `iteration` iterations.

    `created` is a time in UTC; `versions` are of the packages that wrote it; `coach` and `estimator` are their states
    as JSON values; `policies` are those that learn, by name, and `agents` names the policy of each agent; `files` are
    by their path in the checkpoint.
    """

    schema: int
    iteration: int
    seed: int
    created: str
    versions: Mapping[str, str]
    coach: Mapping[str, Any]
    estimator: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    policies: Mapping[str, PolicyEntry] = field(default_factory=dict)
    agents: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best evaluation of a run so far: after how many iterations, of what, and the mean that it came to."""

    schema: int = SCHEMA
    iteration: int
    metric: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose files were found to be as they were written."""

    path: Path
    manifest: Manifest


class Checkpoints:
    """The checkpoints of one run. `before` is called before one becomes visible (the writer of a run makes its records
    durable there). What is not in `folder` is read from `mirror`, through `folder`."""

    def __init__(self, folder: Path, *, before: Callable[[], None] | None = None, mirror: Mirror | None = None) -> None:
        self.folder = folder
        self.mirror = mirror
        self._before = before

    def iterations(self) -> tuple[int, ...]:
        """The iterations that have a checkpoint, in order: those in the folder or, where it has none, in the mirror."""
        here = self._here()
        return here if here or self.mirror is None else self.mirror.checkpoints(_MANIFEST)

    def _here(self) -> tuple[int, ...]:
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
        self,
        iteration: int,
        *,
        seed: int,
        coach: Mapping[str, Any],
        estimator: Mapping[str, Any],
        policies: Mapping[str, PolicyEntry] | None = None,
        agents: Mapping[str, str] | None = None,
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
                    policies=policies or {},
                    agents=agents or {},
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
        if not path.is_dir() and self.mirror is not None and iteration in self.mirror.checkpoints(_MANIFEST):
            self._fetch(iteration, self.mirror)
        if not path.is_dir():
            raise RunError(f"{self.folder} has no checkpoint of iteration {iteration}; {self._choices(iteration)}")
        try:
            return Checkpoint(path=path, manifest=_checked(path))
        except RunError as error:
            raise RunError(f"{error}; {self._choices(iteration)}") from error

    def _choices(self, iteration: int) -> str:
        others = [str(other) for other in self.iterations() if other != iteration]
        return f"checkpoints of other iterations: {', '.join(others)}" if others else "there is no other checkpoint"

    def best(self) -> Best | None:
        """The best evaluation so far; None where it was not kept."""
        path = self.folder / _BEST
        if not path.is_file():
            data = None if self.mirror is None else self.mirror.read(_BEST)
            if data is None:
                return None
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)
        return read_versioned(path, SCHEMA, lambda text: from_json(Best, text))

    def keep_best(self, best: Best) -> None:
        """Keep the checkpoint of `best`, which has to be there, from being pruned."""
        if not self.path(best.iteration).is_dir():
            raise ValueError(f"there is no checkpoint of iteration {best.iteration} to keep")
        data = msgspec.json.format(to_json(best), indent=2)
        write_atomic(self.folder / _BEST, data)
        if self.mirror is not None:
            self.mirror.write(_BEST, data)

    def prune(self, keep: int) -> None:
        """Remove all but the last `keep` checkpoints and that of the best evaluation."""
        if keep < 1:
            raise ValueError(f"at least one checkpoint has to stay, not {keep}")
        best = self.best()
        spared = set() if best is None else {best.iteration}
        for iteration in set(self._here()[:-keep]) - spared:
            path = self.path(iteration)
            path.rename(self._doomed(path))
            shutil.rmtree(self._doomed(path))
        if self.mirror is not None:
            for iteration in set(self.mirror.checkpoints(_MANIFEST)) - {*self._here(), *spared}:
                self.mirror.remove(self.path(iteration).name, first=_MANIFEST)

    def copy(self, written: int) -> None:
        """Copy the checkpoint of iteration `written` to the mirror, with all others that it lacks."""
        if self.mirror is None:
            return
        there = self.mirror.checkpoints(_MANIFEST)
        for iteration in self._here():
            if iteration == written or iteration not in there:
                path = self.path(iteration)
                self.mirror.push(path, _manifest(path).files, last=_MANIFEST)

    def _fetch(self, iteration: int, mirror: Mirror) -> None:
        """Copy a checkpoint from the mirror; it is there under its name only once it is whole."""
        path = self.path(iteration)
        aside = self.folder / f"{_UNFINISHED}{path.name}"
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            try:
                mirror.pull(f"{path.name}/{_MANIFEST}", aside / _MANIFEST)
                for name in _manifest(aside).files:
                    mirror.pull(f"{path.name}/{name}", aside / name)
                _checked(aside)
                self._publish(aside, path)
            except (FileNotFoundError, RunError) as error:
                raise RunError(f"{mirror.url}/{path.name} cannot be used: {error}") from error
            finally:
                shutil.rmtree(aside, ignore_errors=True)

    def remove_unfinished(self) -> None:
        """Remove what a killed writer left; only the writer of the run may."""
        for path in self.folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(path)


class Fetched(Checkpoints):
    """Checkpoints at a URL, to be read: the URL says what there is, and `folder` keeps what was fetched."""

    def __init__(self, folder: Path, mirror: Mirror) -> None:
        super().__init__(folder, mirror=mirror)
        self._source = mirror

    def iterations(self) -> tuple[int, ...]:
        return self._source.checkpoints(_MANIFEST)

    def best(self) -> Best | None:
        data = self._source.read(_BEST)
        return None if data is None else from_json(Best, data)

    def load(self, iteration: int) -> Checkpoint:
        manifest = self.path(iteration) / _MANIFEST
        # A run that went on from an earlier checkpoint may have written this one anew.
        if manifest.is_file() and self._source.read(f"{manifest.parent.name}/{_MANIFEST}") != manifest.read_bytes():
            shutil.rmtree(manifest.parent)
        return super().load(iteration)


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


def _manifest(path: Path) -> Manifest:
    manifest = read_versioned(path / _MANIFEST, SCHEMA, lambda text: from_json(Manifest, text))
    for name in manifest.files:
        # A manifest may come from elsewhere: what it names lies in the checkpoint.
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise RunError(f"{path / _MANIFEST} is damaged: it names {name!r}, which is no file of a checkpoint")
    return manifest


def _checked(path: Path) -> Manifest:
    manifest = _manifest(path)
    for name, entry in manifest.files.items():
        file = path / name
        if not file.is_file():
            raise RunError(f"{file} is missing")
        if file.stat().st_size != entry.size or _sha256(file) != entry.sha256:
            raise RunError(f"{file} is damaged: it is not as it was written")
    return manifest
