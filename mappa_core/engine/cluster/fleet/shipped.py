"""What a cluster that runs already must be sent: the packages of Mappa and of every installed plugin."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from mappa_core.plugins import installed


def packages() -> list[str]:
    """Folders and single files, for Ray's `py_modules`. What these packages need must be installed on every node."""
    names = {"mappa_core", *(point.module.partition(".")[0] for point in installed())}
    return [str(place) for name in sorted(names) if (place := _place(name)) is not None]


def _place(package: str) -> Path | None:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
