"""Tracks the copies of trajectories' folders on one server, and the copies to remove."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

MAX_COPIES = 256
"""Copies on one server; beyond this, the least recently used are removed."""
MAX_REMOVED_PER_CALL = 16


@dataclass(eq=False)
class FolderCopy:
    """A copy of a trajectory's folder. `created`: whether the server has created its folder. `files`: name to sha256
    as of the last response."""

    folder: str
    created: bool = False
    busy: bool = False
    files: Mapping[str, str] = field(default_factory=dict)


class FolderCopies:
    """The copies on one server, by the path of the local folder."""

    def __init__(self) -> None:
        self._of: dict[Path, FolderCopy] = {}
        self._useless: list[str] = []

    def __contains__(self, folder: Path) -> bool:
        return folder in self._of

    def take(self, folder: Path) -> FolderCopy:
        """Return the copy of `folder` for one call, a new one where there is none. It is in use until `give_back`."""
        copy = self._of.pop(folder, None) or FolderCopy(secrets.token_hex(16))
        copy.busy = True
        self._forget_idle()
        self._of[folder] = copy  # at the end: it was used last
        return copy

    def give_back(self, folder: Path) -> None:
        """End the use of a copy whose remote folder is as recorded."""
        self._of[folder].busy = False

    def drop(self, folder: Path) -> None:
        """Discard a copy whose remote content is unknown or not needed any more."""
        self._useless.append(self._of.pop(folder).folder)

    @contextmanager
    def removal(self) -> Iterator[list[str]]:
        """Yield names of remote folders for the next call to remove; they are queued again where that call fails."""
        names, self._useless = self._useless[:MAX_REMOVED_PER_CALL], self._useless[MAX_REMOVED_PER_CALL:]
        try:
            yield names
        except BaseException:
            self._useless += names
            raise

    def _forget_idle(self) -> None:
        idle = [folder for folder, copy in self._of.items() if not copy.busy]
        too_many = max(0, len(self._of) + 1 - MAX_COPIES)
        for index, folder in enumerate(idle):
            if index < too_many or not folder.exists():
                self.drop(folder)
