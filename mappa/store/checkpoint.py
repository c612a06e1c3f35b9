"""Checkpoints: one folder per iteration with all that a run needs to resume, described by its manifest.

    checkpoints/000012/manifest.json
    checkpoints/000012/policies/…       what the engine saves: weights, optimiser, randomness
    checkpoints/best.json               which of them has the best evaluation so far, if that is recorded

A checkpoint is written into a hidden sibling folder and renamed when complete: one under its final name is complete.
An engine that hashes FILE while it writes it leaves FILE.sha256 in the form of sha256sum; other files are read again.
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
from typing import Any, Literal

import msgspec

from mappa.store.mirror import Mirror
from mappa_core.codec import from_json, to_json
from mappa_core.errors import RunError
from mappa_core.files import fsync_path, read_versioned, storage_errors, write_atomic
from mappa_core.protocols import Lora, PolicySpec

CHECKPOINT_SCHEMA = 1
POLICIES = "policies"
"""Folder in a checkpoint into which the engine saves."""
_MANIFEST = "manifest.json"
_BEST = "best.json"
_UNFINISHED = ".unfinished-"
_HASH = ".sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint. `size` in bytes."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """One policy whose weights are in the checkpoint, described so that they are usable without the run's config."""

    kind: Literal["full", "lora", "frozen"]
    model: str
    lora: Lora | None = None

    @classmethod
    def of(cls, spec: PolicySpec) -> PolicyEntry:
        return cls(kind=spec.kind, model=spec.model, lora=spec.lora)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Contents of a checkpoint: the state after `iteration` iterations.

    `created` is a time in UTC; `versions` are those of the packages that wrote it; `coach` and `estimator` are their
    states as JSON values; `policies` are the trained ones, by name; `agents` names the policy of each agent, `prompts`
    holds the texts that they acted by; `files` are keyed by path in the checkpoint.
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
    prompts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCheckpoint:
    """The best evaluation of a run so far: its iteration, metric and mean."""

    schema: int = CHECKPOINT_SCHEMA
    iteration: int
    metric: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose files were verified against its manifest."""

    path: Path
    manifest: Manifest


class Checkpoints:
    """The checkpoints of one run. `before_publish` is called before one becomes visible (the writer of a run flushes
    its records there). Checkpoints missing in `folder` are fetched from `mirror` into `folder`."""

    def __init__(
        self, folder: Path, *, before_publish: Callable[[], None] | None = None, mirror: Mirror | None = None
    ) -> None:
        self.folder = folder
        self.mirror = mirror
        self._before_publish = before_publish

    def iterations(self) -> tuple[int, ...]:
        """Iterations with a checkpoint, in order: those in the folder or, if it has none, in the mirror."""
        here = self._local_iterations()
        return here if here or self.mirror is None else self.mirror.checkpoints(_MANIFEST)

    def _local_iterations(self) -> tuple[int, ...]:
        if not self.folder.is_dir():
            return ()
        # Six digits or more: names are padded to six, and a run may have more than 999,999 iterations.
        return tuple(sorted(int(path.name) for path in self.folder.iterdir() if re.fullmatch(r"\d{6,}", path.name)))

    def latest_iteration(self) -> int | None:
        """The last iteration with a checkpoint, or None."""
        iterations = self.iterations()
        return iterations[-1] if iterations else None

    def load_latest(self) -> Checkpoint:
        """Load and verify the last checkpoint. Raises RunError if there is none."""
        latest = self.latest_iteration()
        if latest is None:
            raise RunError(f"{self.folder} holds no checkpoint: the run ended before it wrote its first")
        return self.load(latest)

    def path(self, iteration: int) -> Path:
        return self.folder / f"{iteration:06d}"

    @contextmanager
    def new_checkpoint(
        self,
        iteration: int,
        *,
        seed: int,
        coach: Mapping[str, Any],
        estimator: Mapping[str, Any],
        policies: Mapping[str, PolicyEntry] | None = None,
        agents: Mapping[str, str] | None = None,
        prompts: Mapping[str, str] | None = None,
    ) -> Iterator[Path]:
        """Create a checkpoint from what the body saves into the folder that it gets.

        When the body ends, the checkpoint replaces an older one of this iteration. If the body or the storage fails
        (RunError), no checkpoint is created.
        """
        aside = self.folder / f"{_UNFINISHED}{iteration:06d}"
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            aside.mkdir()
            try:
                yield aside
                manifest = Manifest(
                    schema=CHECKPOINT_SCHEMA,
                    iteration=iteration,
                    seed=seed,
                    created=datetime.now(UTC).isoformat(timespec="seconds"),
                    versions=dict(_package_versions()),
                    coach=coach,
                    estimator=estimator,
                    files=_sync_files(aside),
                    policies=policies or {},
                    agents=agents or {},
                    prompts=prompts or {},
                )
                write_atomic(aside / _MANIFEST, msgspec.json.format(to_json(manifest), indent=2))
                # Records first: a checkpoint that survives a power cut must not be ahead of its run.
                if self._before_publish is not None:
                    self._before_publish()
                self._publish(aside, self.path(iteration))
            except BaseException:
                shutil.rmtree(aside, ignore_errors=True)
                raise

    def _publish(self, aside: Path, path: Path) -> None:
        # A folder cannot be renamed over one that is not empty, so an older one steps aside first.
        if path.exists():
            path.rename(self._discarded_path(path))
        aside.rename(path)
        # The names are on the disk only when their folder is synced; before that the older one must not be removed.
        fsync_path(self.folder)
        shutil.rmtree(self._discarded_path(path), ignore_errors=True)

    def _discarded_path(self, path: Path) -> Path:
        """Path to which a checkpoint is renamed before removal, so that a kill leaves no partial one under its name."""
        return self.folder / f"{_UNFINISHED}{path.name}-old"

    def load(self, iteration: int) -> Checkpoint:
        """Load the checkpoint of an iteration and verify every file against the manifest.

        Raises RunError if there is none, or naming the file that is missing, changed or of another schema.
        """
        path = self.path(iteration)
        if not path.is_dir() and self.mirror is not None and iteration in self.mirror.checkpoints(_MANIFEST):
            self._fetch(iteration, self.mirror)
        if not path.is_dir():
            raise RunError(
                f"{self.folder} has no checkpoint of iteration {iteration}; {self._other_checkpoints(iteration)}"
            )
        try:
            return Checkpoint(path=path, manifest=_verify_files(path))
        except RunError as error:
            raise RunError(f"{error}; {self._other_checkpoints(iteration)}") from error

    def _other_checkpoints(self, iteration: int) -> str:
        others = [str(other) for other in self.iterations() if other != iteration]
        return f"checkpoints of other iterations: {', '.join(others)}" if others else "there is no other checkpoint"

    def best(self) -> BestCheckpoint | None:
        """The best evaluation so far; None if it was not recorded."""
        path = self.folder / _BEST
        if not path.is_file():
            data = None if self.mirror is None else self.mirror.read(_BEST)
            if data is None:
                return None
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, data)
        return read_versioned(path, CHECKPOINT_SCHEMA, lambda text: from_json(BestCheckpoint, text))

    def keep_best(self, best: BestCheckpoint) -> None:
        """Record `best`, whose checkpoint must exist, and protect that checkpoint from pruning."""
        if not self.path(best.iteration).is_dir():
            raise ValueError(f"{self.folder}: there is no checkpoint of iteration {best.iteration} to keep as the best")
        data = msgspec.json.format(to_json(best), indent=2)
        write_atomic(self.folder / _BEST, data)
        if self.mirror is not None:
            self.mirror.write(_BEST, data)

    def prune(self, keep: int) -> None:
        """Remove all checkpoints but the last `keep` and that of the best evaluation."""
        if keep < 1:
            raise ValueError(f"{self.folder}: at least one checkpoint has to stay, and {keep} were to be kept")
        best = self.best()
        protected = set() if best is None else {best.iteration}
        older = self._local_iterations()[:-keep]
        for iteration in set(older) - protected:
            path = self.path(iteration)
            path.rename(self._discarded_path(path))
            shutil.rmtree(self._discarded_path(path))
        if self.mirror is not None:
            remaining = {*self._local_iterations(), *protected}
            for iteration in set(self.mirror.checkpoints(_MANIFEST)) - remaining:
                self.mirror.remove(self.path(iteration).name, first=_MANIFEST)

    def copy_to_mirror(self, written: int) -> None:
        """Copy the checkpoint of iteration `written` to the mirror, and all others that the mirror lacks."""
        if self.mirror is None:
            return
        there = self.mirror.checkpoints(_MANIFEST)
        for iteration in self._local_iterations():
            # The mirror may hold an older one of the iteration just written; others that it lacks were not copied
            # because the remote could not be reached then.
            if iteration == written or iteration not in there:
                path = self.path(iteration)
                self.mirror.push(path, _read_manifest(path).files, last=_MANIFEST)

    def _fetch(self, iteration: int, mirror: Mirror) -> None:
        """Fetch a checkpoint from the mirror; it appears under its name only when complete."""
        path = self.path(iteration)
        aside = self.folder / f"{_UNFINISHED}{path.name}"
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(aside, ignore_errors=True)
            try:
                mirror.pull(f"{path.name}/{_MANIFEST}", aside / _MANIFEST)
                for name in _read_manifest(aside).files:
                    mirror.pull(f"{path.name}/{name}", aside / name)
                _verify_files(aside)
                self._publish(aside, path)
            except (FileNotFoundError, RunError) as error:
                raise RunError(f"{mirror.url}/{path.name} cannot be used: {error}") from error
            finally:
                shutil.rmtree(aside, ignore_errors=True)

    def remove_unfinished(self) -> None:
        """Remove leftovers of a killed writer. Only the writer of the run may call this."""
        for path in self.folder.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(path)


class RemoteCheckpoints(Checkpoints):
    """Read-only checkpoints at a URL, cached in `folder`."""

    def __init__(self, folder: Path, mirror: Mirror) -> None:
        super().__init__(folder, mirror=mirror)
        self._source = mirror

    def iterations(self) -> tuple[int, ...]:
        return self._source.checkpoints(_MANIFEST)

    def best(self) -> BestCheckpoint | None:
        data = self._source.read(_BEST)
        return None if data is None else from_json(BestCheckpoint, data)

    def load(self, iteration: int) -> Checkpoint:
        manifest = self.path(iteration) / _MANIFEST
        # A run that resumed from an earlier checkpoint may have rewritten this one.
        if manifest.is_file() and self._source.read(f"{manifest.parent.name}/{_MANIFEST}") != manifest.read_bytes():
            shutil.rmtree(manifest.parent)
        return super().load(iteration)


def _package_versions() -> Iterator[tuple[str, str]]:
    for package in ("mappa-core", "numpy", "torch", "transformers", "safetensors"):
        with suppress(PackageNotFoundError):
            yield package, version(package)


def _sync_files(folder: Path) -> dict[str, FileEntry]:
    """Sync all files under a folder to disk and return their entries."""
    entries = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(_HASH):
                continue
            file = Path(parent, name)
            fsync_path(file)
            hash_file = file.with_name(f"{name}{_HASH}")
            # Reading gigabytes again takes as long as writing them did.
            sha256 = hash_file.read_text().split()[0] if hash_file.exists() else _sha256(file)
            entries[file.relative_to(folder).as_posix()] = FileEntry(size=file.stat().st_size, sha256=sha256)
        # A file whose name is not in a synced folder may be gone after a power cut, however its content was synced.
        fsync_path(Path(parent))
    return dict(sorted(entries.items()))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_manifest(path: Path) -> Manifest:
    manifest = read_versioned(path / _MANIFEST, CHECKPOINT_SCHEMA, lambda text: from_json(Manifest, text))
    for name in manifest.files:
        # A manifest may come from elsewhere: its paths must stay inside the checkpoint.
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise RunError(f"{path / _MANIFEST} is damaged: it names {name!r}, which is no file of a checkpoint")
    return manifest


def _verify_files(path: Path) -> Manifest:
    manifest = _read_manifest(path)
    for name, entry in manifest.files.items():
        file = path / name
        if not file.is_file():
            raise RunError(f"{file} is missing, and the manifest of its checkpoint names it")
        # The size first: it finds a cut off file without reading it.
        if file.stat().st_size != entry.size or _sha256(file) != entry.sha256:
            raise RunError(f"{file} is damaged: it is not as it was written")
    return manifest
