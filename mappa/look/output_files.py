"""Files that a user has Mappa write: whether their place takes them, and names for what is written by agent."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryFile

from mappa_core.files import storage_errors

_MAX_NAME_BYTES = 200
"""File systems take 255: an ending and a number have to fit in, too."""


def check_writable(path: Path) -> None:
    """Check that a file can be written to `path`, before the work whose result it is to hold. Nothing is left there.

    Raises:
        RunError: it cannot; the message says why and what to do.
    """
    with storage_errors(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        # Permissions do not tell: /proc has them, and takes no file.
        with TemporaryFile(dir=path.parent):
            pass


def unique_file_name(text: str, taken: Collection[str]) -> str:
    """Make a name of a file or folder of any text. What a name cannot hold everywhere becomes `_`, and one of `taken`
    gets a number; names that differ in capitals alone are the same."""
    plain = re.sub(r"[^\w .-]|^[ .-]", "_", text).encode()[:_MAX_NAME_BYTES].decode(errors="ignore") or "_"
    used = {name.casefold() for name in taken}
    numbered = (f"{plain}-{number}" for number in count(2))
    return next(name for name in chain([plain], numbered) if name.casefold() not in used)
