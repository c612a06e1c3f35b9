"""The plugin's cache folder on a user's machine, and atomic writes to it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from mappa_core import ConfigError, TaskError


def resolve_cache_folder(option: str | None) -> Path:
    """Return the folder that a recipe names, else `mappa/dsbench` below the user's cache folder (XDG_CACHE_HOME,
    ~/.cache). ConfigError: agents' programs can read it."""
    if option is not None:
        folder = Path(option).expanduser().absolute()
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mappa" / "dsbench"
    return check_out_of_reach(folder, "tasks.options.folder")


def check_out_of_reach(folder: Path, option: str) -> Path:
    """Return the folder, which holds answers. ConfigError: agents' programs can read it."""
    for readable in {Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve() / "lib"}:
        if folder.resolve().is_relative_to(readable):
            raise ConfigError(
                f"{option}: {folder} lies in {readable}, which programs of agents can read, and it holds answers: "
                "name another folder"
            )
    return folder


def write_atomically(path: Path, data: bytes, *, secret: bool) -> None:
    """Write a file atomically, safe with concurrent writers. A `secret` file is readable by this user alone, any other
    by everyone, as agents' programs may run as another user.

    Raises:
        TaskError: it cannot be written.
    """
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(exist_ok=True, mode=0o700 if secret else 0o755)
        number, name = tempfile.mkstemp(prefix=".", dir=path.parent)
        aside = Path(name)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(data)
            aside.chmod(0o600 if secret else 0o644)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise TaskError(
            f"{path} cannot be written: {error.strerror}. Name a folder for tables with tasks.options.folder"
        ) from error
