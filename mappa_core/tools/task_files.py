"""Files of a task: check them before a rollout starts, and link them into a workspace."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from mappa_core.errors import TaskError


def resolve_task_files(files: Mapping[str, str | Path]) -> Mapping[str, Path]:
    """Check the files of a task, and return them by name as absolute paths without links. Raises TaskError if a name
    leads out of the workspace or into another file, or a file does not exist or is not regular."""
    names = set(files)
    for name in files:
        if "\0" in name or not {"", ".", ".."}.isdisjoint(name.split("/")):
            raise TaskError(f"the task file {name!r} must be named by a plain relative path: no '..', no outer slash")
        for above in list(PurePosixPath(name).parents)[:-1]:  # The last one is `.`.
            if str(above) in names:
                raise TaskError(f"the task file {name!r} would lie in the task file {str(above)!r}: rename one of them")
    return {name: _regular(name, Path(file)) for name, file in files.items()}


def link_task_files(files: Mapping[str, Path], folder: Path) -> None:
    """Create a symbolic link to each file, by its name below `folder`. Raises OSError if the name is taken."""
    for name, file in files.items():
        link = folder / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)


def _regular(name: str, file: Path) -> Path:
    try:
        target = file.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise TaskError(
            f"the task file {name!r} is not there: {file} ({error}). Its source gives the path: prepare its files, or "
            "correct the path in its options"
        ) from error
    if not target.is_file():
        raise TaskError(f"the task file {name!r} is no regular file: {file}; a folder's files are named one by one")
    return target
