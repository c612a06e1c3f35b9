"""Packages to upload to a running cluster: Mappa and every installed plugin."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path


def py_module_paths() -> list[str]:
    """List folders and single files for Ray's `py_modules`. Their dependencies must be installed on every node."""
    names = {"mappa_core", *(point.module.partition(".")[0] for point in entry_points(group="mappa"))}
    return [str(place) for name in sorted(names) if (place := _package_path(name)) is not None]


def _package_path(package: str) -> Path | None:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
