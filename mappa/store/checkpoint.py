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
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import msgspec

from mappa.store.mirror import Mirror
from mappa_core.codec import from_json, to_json
from mappa_core.errors import RunError
from mappa_core.files import (
    fsync_path,
    has_file,
    has_folder,
    open_file,
    read_file,
    read_text,
    read_versioned,
    storage_errors,
    write_file,
)
from mappa_core.protocols import Lora, PolicySpec
from mappa_core.safe_files import UnsafeFileError, split_name
from mappa_core.safe_walk import remove_tree, walk

CHECKPOINT_SCHEMA = 1
POLICIES = "policies"
"""Folder in a checkpoint into which the engine saves."""
REFERENCE = "reference"
"""Folder in that of a policy with the weights of its reference, where these are not the model's."""
_MANIFEST = "manifest.json"
_BEST = "best.json"
_UNFINISHED = ".unfinished-"
_HASH = ".sha256"
MAX_MANIFEST_BYTES = 64 << 20
_MAX_HASH_BYTES = 4096


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
        if not has_folder(self.folder.parent, self.folder.name):
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
        self._make_folder()
        with storage_errors(self.folder):
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
                write_file(aside, _MANIFEST, msgspec.json.format(to_json(manifest), indent=2))
                # Records first: a checkpoint that survives a power cut must not be ahead of its run.
                if self._before_publish is not None:
                    self._before_publish()
                self._publish(aside, self.path(iteration))
            except BaseException:
                remove_tree(aside)
                raise

    def _publish(self, aside: Path, path: Path) -> None:
        # A folder cannot be renamed over one that is not empty, so an older one steps aside first.
        if os.path.lexists(path):
            path.rename(self._discarded_path(path))
        aside.rename(path)
        # The names are on the disk only when their folder is synced; before that the older one must not be removed.
        fsync_path(self.folder)
        remove_tree(self._discarded_path(path))

    def _discarded_path(self, path: Path) -> Path:
        """Path to which a checkpoint is renamed before removal, so that a kill leaves no partial one under its name."""
        return self.folder / f"{_UNFINISHED}{path.name}-old"

    def load(self, iteration: int) -> Checkpoint:
        """Load the checkpoint of an iteration and verify every file against the manifest.

        Raises RunError if there is none, or naming the file that is missing, changed or of another schema.
        """
        path = self.path(iteration)
        is_here = has_folder(self.folder.parent, f"{self.folder.name}/{path.name}")
        if not is_here and self.mirror is not None and iteration in self.mirror.checkpoints(_MANIFEST):
            self._fetch(iteration, self.mirror)
        elif not is_here:
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
        name = f"{self.folder.name}/{_BEST}"
        if not has_file(self.folder.parent, name):
            data = None if self.mirror is None else self.mirror.read(_BEST)
            if data is None:
                return None
            write_file(self.folder.parent, name, data)
        return read_versioned(
            self.folder.parent,
            name,
            CHECKPOINT_SCHEMA,
            lambda text: from_json(BestCheckpoint, text),
            max_bytes=MAX_MANIFEST_BYTES,
        )

    def keep_best(self, best: BestCheckpoint) -> None:
        """Record `best`, whose checkpoint must exist, and protect that checkpoint from pruning."""
        if not self.path(best.iteration).is_dir():
            raise ValueError(f"{self.folder}: there is no checkpoint of iteration {best.iteration} to keep as the best")
        data = msgspec.json.format(to_json(best), indent=2)
        write_file(self.folder.parent, f"{self.folder.name}/{_BEST}", data)
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
            remove_tree(self._discarded_path(path))
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
        self._make_folder()
        with storage_errors(self.folder):
            remove_tree(aside)
            try:
                mirror.pull(f"{path.name}/{_MANIFEST}", aside / _MANIFEST)
                for name in _read_manifest(aside).files:
                    mirror.pull(f"{path.name}/{name}", aside / name)
                _verify_files(aside)
                self._publish(aside, path)
            except (FileNotFoundError, RunError) as error:
                raise RunError(f"{mirror.url}/{path.name} cannot be used: {error}") from error
            finally:
                remove_tree(aside)

    def _make_folder(self) -> None:
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        has_folder(self.folder.parent, self.folder.name)

    def remove_unfinished(self) -> None:
        """Remove leftovers of a killed writer. Only the writer of the run may call this."""
        has_folder(self.folder.parent, self.folder.name)
        for path in self.folder.glob(f"{_UNFINISHED}*"):
            remove_tree(path)


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
        name = f"{self.path(iteration).name}/{_MANIFEST}"
        # A run that resumed from an earlier checkpoint may have rewritten this one.
        if has_file(self.folder, name) and self._source.read(name) != read_file(
            self.folder, name, max_bytes=MAX_MANIFEST_BYTES
        ):
            remove_tree(self.path(iteration))
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
            hashed, plain = f"{name}{_HASH}", Path(parent)
            # Reading gigabytes again takes as long as writing them did.
            known = has_file(plain, hashed)
            sha256 = read_text(plain, hashed, max_bytes=_MAX_HASH_BYTES).split()[0] if known else _sha256(plain, name)
            entries[file.relative_to(folder).as_posix()] = FileEntry(size=file.stat().st_size, sha256=sha256)
        # A file whose name is not in a synced folder may be gone after a power cut, however its content was synced.
        fsync_path(Path(parent))
    return dict(sorted(entries.items()))


def _sha256(folder: Path, name: str) -> str:
    with open_file(folder, name) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_manifest(path: Path) -> Manifest:
    manifest = read_versioned(
        path, _MANIFEST, CHECKPOINT_SCHEMA, lambda text: from_json(Manifest, text), max_bytes=MAX_MANIFEST_BYTES
    )
    # A manifest may come from elsewhere: its paths must stay inside the checkpoint.
    for name in (*manifest.files, *(f"{POLICIES}/{policy}" for policy in manifest.policies)):
        try:
            split_name(name)
        except UnsafeFileError as error:
            raise RunError(f"{path / _MANIFEST} is damaged: it names {name!r}, no file of a checkpoint") from error
    return manifest


def _verify_files(path: Path) -> Manifest:
    """Check that a checkpoint has the files of its manifest as they were written, and no others, as an engine would
    take one for a shard of another."""
    if not has_folder(path.parent, path.name):
        raise RunError(f"{path} is missing")
    manifest = _read_manifest(path)
    hashes = {f"{name}{_HASH}" for name in manifest.files}
    known = {_MANIFEST, *hashes, *manifest.files}
    for found in walk(path):
        kind = found.status.st_mode
        if found.inaccessible or not (stat.S_ISDIR(kind) or stat.S_ISREG(kind)):
            raise RunError(f"{path / found.path} is no file or folder that can be read: remove it")
        if stat.S_ISREG(kind) and found.path not in known:
            raise RunError(f"{path / found.path} is not in the manifest of its checkpoint: remove it")
    for name, entry in manifest.files.items():
        file = path / name
        if not has_file(path, name):
            raise RunError(f"{file} is missing, and the manifest of its checkpoint names it")
        # The size first: it finds a cut off file without reading it.
        with open_file(path, name) as content:
            is_whole = os.fstat(content.fileno()).st_size == entry.size
            if not is_whole or hashlib.file_digest(content, "sha256").hexdigest() != entry.sha256:
                raise RunError(f"{file} is damaged: it is not as it was written")
    return manifest
