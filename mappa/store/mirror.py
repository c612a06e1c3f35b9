"""Mirror: remote copies of a run's checkpoints, at any URL that fsspec supports (s3://, gs://, file://, …).

URL/000012/manifest.json    written last: a checkpoint without it is incomplete and is ignored
URL/000012/policies/…
URL/best.json
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import fsspec
import structlog

from mappa_core.errors import ConfigError, RunError

T = TypeVar("T")
log = structlog.get_logger()

_PAUSES_S = (1.0, 5.0, 20.0)
"""Seconds before each retry."""
SMALL_FILE_BYTES = 2**20


class Mirror:
    """One folder at a URL. Raises ConfigError if no installed package supports the URL.

    Failed operations are retried; the final RunError holds the error of the remote. A credential is never part of a
    URL: the packages behind fsspec read theirs from the environment.
    """

    def __init__(self, url: str, *, pauses: tuple[float, ...] = _PAUSES_S) -> None:
        self.url = url.rstrip("/")
        self._pauses = pauses
        try:
            self._files, root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                f"{url}: this place cannot be reached: {error}. Install the package that supports it, or choose "
                "another checkpoint.url"
            ) from error
        self._root: str = root.rstrip("/")

    def subfolder(self, name: str) -> Mirror:
        return Mirror(f"{self.url}/{name}", pauses=self._pauses)

    def checkpoints(self, manifest: str) -> tuple[int, ...]:
        """Iterations whose checkpoint is complete (has its `manifest`), in order."""
        pattern = re.compile(rf"/(\d{{6,}})/{re.escape(manifest)}$")
        matches = (pattern.search(path) for path in self._retry(self._list_files))
        return tuple(sorted(int(match[1]) for match in matches if match))

    def push(self, folder: Path, names: Iterable[str], *, last: str) -> None:
        """Upload the files `names` of a local folder, and the file `last` after all others.

        `last` of an older copy under the folder's name is removed first, which marks that copy as incomplete.
        """
        self._retry(self._remove, f"{folder.name}/{last}")
        for name in (*names, last):
            self._retry(self._put, folder / name, f"{folder.name}/{name}")

    def pull(self, name: str, target: Path) -> None:
        """Download a file; FileNotFoundError if there is none."""
        target.parent.mkdir(parents=True, exist_ok=True)
        self._retry(self._files.get_file, self._path(name), str(target))

    def remove(self, name: str, *, first: str) -> None:
        """Remove a folder, beginning with the file `first` in it."""
        for path in (f"{name}/{first}", name):
            self._retry(self._remove, path)

    def write(self, name: str, data: bytes) -> None:
        """Write a small file in one operation."""
        self._retry(self._pipe, name, data)

    def read(self, name: str) -> bytes | None:
        """Read a small file; None if there is none."""
        try:
            # As many bytes as small files have, whatever lies there.
            return bytes(self._retry(self._files.cat_file, self._path(name), 0, SMALL_FILE_BYTES))
        except FileNotFoundError:
            return None

    def _list_files(self) -> list[str]:
        # File systems of fsspec cache listings for as long as the process lives; other processes write there, too.
        self._files.invalidate_cache()
        try:
            # With a slash in front, as object stores begin with the bucket's name and local paths with a slash.
            return [f"/{path}" for path in self._files.find(self._root)]
        except FileNotFoundError:
            return []

    def _put(self, file: Path, name: str) -> None:
        self._files.makedirs(self._path(name).rpartition("/")[0], exist_ok=True)
        self._files.put_file(str(file), self._path(name))

    def _pipe(self, name: str, data: bytes) -> None:
        self._files.makedirs(self._root, exist_ok=True)
        self._files.pipe_file(self._path(name), data)

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._files.rm(self._path(name), recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _retry(self, work: Callable[..., T], *arguments: Any) -> T:
        for pause_s in (*self._pauses, None):
            try:
                return work(*arguments)
            except FileNotFoundError:
                raise  # An answer of the remote, which the next attempt would get, too.
            except OSError as error:
                if pause_s is None:
                    raise RunError(
                        f"{self.url}: checkpoints could not be copied there, or read from there, in "
                        f"{len(self._pauses) + 1} attempts: {error}. What is in the run's folder is complete: resume "
                        "the run when the place can be reached"
                    ) from error
                log.warning("mirror.again", url=self.url, seconds=pause_s, error=str(error))
                time.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")
