"""Which trajectories have a copy of their folder on one server, and which copies are of no use any more."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

MOST = 256
"""Copies on one server; beyond, those that were not used for longest are removed."""
REMOVED_AT_ONCE = 16


@dataclass(eq=False)
class Copy:
    """A copy of a trajectory's folder. `made`: the server has made its folder. `files`: name to sha256 as of the last
    answer."""

    folder: str
    made: bool = False
    busy: bool = False
    files: Mapping[str, str] = field(default_factory=dict)


class Copies:
    """The copies on one server by the path of the folder on our side."""

    def __init__(self) -> None:
        self._of: dict[Path, Copy] = {}
        self._useless: list[str] = []

    def __contains__(self, folder: Path) -> bool:
        return folder in self._of

    def take(self, folder: Path) -> Copy:
        """The copy of `folder`, for one call; a new one where there is none. It is in use until `give_back`."""
        copy = self._of.pop(folder, None) or Copy(secrets.token_hex(16))
        copy.busy = True
        self._forget_idle()
        self._of[folder] = copy  # at the end: it was used last
        return copy

    def give_back(self, folder: Path) -> None:
        """Its folder on the server is as it says."""
        self._of[folder].busy = False

    def drop(self, folder: Path) -> None:
        """Nobody knows what is in its folder on the server, or nobody will ask."""
        self._useless.append(self._of.pop(folder).folder)

    @contextmanager
    def removal(self) -> Iterator[list[str]]:
        """Names of some folders that the server can remove with its next call, unless that fails."""
        names, self._useless = self._useless[:REMOVED_AT_ONCE], self._useless[REMOVED_AT_ONCE:]
        try:
            yield names
        except BaseException:
            self._useless += names
            raise

    def _forget_idle(self) -> None:
        idle = [folder for folder, copy in self._of.items() if not copy.busy]
        too_many = max(0, len(self._of) + 1 - MOST)
        for index, folder in enumerate(idle):
            if index < too_many or not folder.exists():
                self.drop(folder)
