"""The run that `mappa demo` shows, which is shipped: a few iterations of MathChat's three agents, made by
`release/demo_run.py`."""

from __future__ import annotations

import io
import tarfile
from importlib.resources import files
from pathlib import Path

from mappa_core import RunError

NAME = "demo"


def unpack_demo(root: Path) -> Path:
    """Write the run into the folder `root`, and return its own folder. Raises RunError if there is one already, or the
    folder cannot be written."""
    if (folder := root / NAME).exists():
        raise RunError(f"{folder} is there already: show it with mappa view {folder}, or choose another --to")
    packed = files(__name__).joinpath("run.tar.gz").read_bytes()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            archive.extractall(root, filter="data")
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}") from error
    return folder
